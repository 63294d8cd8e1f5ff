//! The server under test: started on its CPU, in its namespace, with the library where the mode needs it.

use std::fs::File;
use std::io::{Read, Seek};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use abey_delivery::Mode;
use abey_linux::library::{self, LibraryConfig};
use abey_linux::spawn::CommandPlace;
use nix::sys::signal::Signal;

use super::error::BenchError;
use super::testbed::TestBed;

/// The program that is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum App {
    /// memcached, by its path.
    Memcached(PathBuf),
    /// The key-value server built into the `abey` command, by that command's path.
    BuiltIn(PathBuf),
}

impl App {
    /// memcached if there is one in `PATH`, and otherwise the server built into `abey`.
    pub fn find(abey: &Path) -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        // Daemons are often installed where only root's PATH looks.
        let more = ["/usr/bin", "/usr/sbin", "/usr/local/bin"].map(PathBuf::from);
        let mut candidates = std::env::split_paths(&path).chain(more).map(|directory| directory.join("memcached"));
        candidates.find(|file| file.is_file()).map_or_else(|| Self::BuiltIn(abey.to_owned()), Self::Memcached)
    }

    /// The program and its version, for the report.
    pub fn description(&self) -> String {
        match self {
            Self::Memcached(path) => {
                let output = Command::new(path).arg("-V").stdin(Stdio::null()).output();
                let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
                text.ok().filter(|text| !text.is_empty()).unwrap_or_else(|| "memcached".to_owned())
            }
            Self::BuiltIn(_) => format!("abey serve kv {}", library::VERSION),
        }
    }

    fn command(&self, address: SocketAddr) -> Command {
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        match self {
            Self::Memcached(path) => {
                let mut command = Command::new(path);
                // One worker thread: one CPU serves. No UDP, and no other user, which the kill on exit depends on.
                command.args(["-l", &ip, "-p", &port, "-U", "0", "-t", "1", "-m", "64", "-c", "4096", "-u", "root"]);
                command
            }
            Self::BuiltIn(path) => {
                let mut command = Command::new(path);
                command.args(["serve", "kv", "--listen", &address.to_string(), "--threads", "1"]);
                command
            }
        }
    }
}

/// A server that runs; it ends with this value.
pub(super) struct Server {
    child: Child,
    output: File,
    shown: String,
}

/// How long a server may take until it accepts connections.
const PATIENCE: Duration = Duration::from_secs(5);

impl Server {
    /// Starts the server and waits until it accepts connections.
    pub(super) fn start(app: &App, mode: Mode, library: &Path, bed: &TestBed) -> Result<Self, BenchError> {
        let io = |action| move |source| BenchError::Io { action, source };
        let output = tempfile::tempfile().map_err(io("make a temporary file"))?;
        let mut command = app.command(TestBed::address());
        let shown = format!("{command:?}").replace('"', "");
        command.in_netns(&bed.server).on_cpus(&[bed.server_cpu as usize]).dies_with_parent(Signal::SIGKILL);
        // A process group of its own: Ctrl-C at the terminal is for the bench, which then ends the server.
        command.stdin(Stdio::null()).process_group(0);
        let config = LibraryConfig { strict: true, ..LibraryConfig::new(Some(mode), &mode.settings()) };
        library::equip(&mut command, (!config.is_passive()).then_some((library, &config)), None);
        let copy = || output.try_clone().map_err(io("share a temporary file"));
        command.stdout(copy()?).stderr(copy()?);
        let child = command.spawn().map_err(|source| BenchError::Server {
            server: shown.clone(),
            what: format!("does not start: {source}"),
            output: String::new(),
        })?;
        let mut server = Self { child, output, shown };
        server.wait_until_ready(bed)?;
        Ok(server)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait_until_ready(&mut self, bed: &TestBed) -> Result<(), BenchError> {
        let since = Instant::now();
        let connects = || TcpStream::connect_timeout(&TestBed::address(), Duration::from_millis(200)).is_ok();
        while !bed.server.run(connects)? {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(self.failed(format!("ended at once ({status})")));
            }
            if since.elapsed() > PATIENCE {
                return Err(self.failed(format!("does not accept connections after {} s", PATIENCE.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// An error about the server, with what it printed.
    fn failed(&mut self, what: String) -> BenchError {
        let mut output = String::new();
        let read = self.output.rewind().and_then(|()| self.output.read_to_string(&mut output));
        // An error is one line, whatever the server printed.
        let lines: Vec<&str> = output.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let output = match lines[..] {
            [] => String::new(),
            _ if read.is_err() => String::new(),
            _ => format!(" and printed: {}", lines.join("; ")),
        };
        BenchError::Server { server: self.shown.clone(), what, output }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
