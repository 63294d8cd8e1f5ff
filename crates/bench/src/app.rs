//! The measured server: an installed program, or the server built into the `abey` command.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use abey_linux::library;
use abey_loadgen::{HttpGet, Memcached, Workload};

/// The measured server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum App {
    /// memcached, at this path.
    Memcached(PathBuf),
    /// redis-server, at this path.
    Redis(PathBuf),
    /// The key-value server built into the `abey` command at this path.
    BuiltIn(PathBuf),
    /// Any other command line.
    Command(CommandLine),
}

/// A command line of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLine {
    /// Path of the program.
    pub program: PathBuf,
    /// Arguments, in which `{address}` and `{port}` are replaced by the address and port to listen on.
    pub arguments: Vec<String>,
    /// Port it listens on.
    pub port: u16,
    /// Protocol it speaks.
    pub protocol: Protocol,
}

/// A protocol of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// `get` over memcached's text protocol.
    Memcached,
    /// `GET` over RESP.
    Redis,
    /// `GET /` over HTTP/1.1 connections that stay open.
    Http,
}

impl Protocol {
    /// Returns the workload: GETs only, as nearly all requests of the published measurements.
    pub(crate) fn workload(self) -> Workload {
        let gets = Memcached { set_ratio: 0.0, ..Memcached::default() };
        match self {
            Self::Memcached => Workload::Memcached(gets),
            Self::Redis => Workload::Redis(gets),
            Self::Http => Workload::Http(HttpGet::default()),
        }
    }

    /// Returns a name of the request, for the report.
    pub const fn request(self) -> &'static str {
        match self {
            Self::Memcached | Self::Redis => "GET",
            Self::Http => "GET / (HTTP)",
        }
    }
}

/// Finds an installed program in `PATH` and in directories of daemons that are often missing from a user's `PATH`.
pub fn installed(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let others = ["/usr/bin", "/usr/sbin", "/usr/local/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(others).map(|directory| directory.join(name)).find(|file| file.is_file())
}

impl App {
    /// Returns memcached if it is installed, otherwise the server built into `abey`.
    pub fn find(abey: &Path) -> Self {
        installed("memcached").map_or_else(|| Self::BuiltIn(abey.to_owned()), Self::Memcached)
    }

    /// Returns the program and its version, for the report.
    pub fn description(&self) -> String {
        let output_of = |path: &Path, argument: &str| {
            let output = Command::new(path).arg(argument).stdin(Stdio::null()).output();
            let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
            text.ok().filter(|text| !text.is_empty())
        };
        match self {
            Self::Memcached(path) => {
                output_of(path, "-V").unwrap_or_else(|| "memcached".to_owned()) + ", 1 worker thread"
            }
            Self::Redis(path) => {
                // "Redis server v=7.0.15 sha=... bits=64 build=..."
                let text = output_of(path, "--version").unwrap_or_default();
                let version = text.split_whitespace().find_map(|word| word.strip_prefix("v="));
                format!("redis-server {}", version.unwrap_or_default()).trim_end().to_owned()
            }
            Self::BuiltIn(_) => format!("abey serve kv {}, 1 worker thread", library::VERSION),
            Self::Command(line) => {
                let name = line.program.file_name().unwrap_or_default().to_string_lossy().into_owned();
                std::iter::once(&name).chain(&line.arguments).map(String::as_str).collect::<Vec<_>>().join(" ")
            }
        }
    }

    /// Returns the port it listens on.
    pub fn port(&self) -> u16 {
        match self {
            Self::Memcached(_) | Self::BuiltIn(_) => 11_211,
            Self::Redis(_) => 6_379,
            Self::Command(line) => line.port,
        }
    }

    /// Returns the protocol it speaks.
    pub fn protocol(&self) -> Protocol {
        match self {
            Self::Memcached(_) | Self::BuiltIn(_) => Protocol::Memcached,
            Self::Redis(_) => Protocol::Redis,
            Self::Command(line) => line.protocol,
        }
    }

    pub(crate) fn command(&self, address: SocketAddr) -> Command {
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        let run = |path: &Path, arguments: &[&str]| {
            let mut command = Command::new(path);
            command.args(arguments);
            command
        };
        match self {
            // One worker thread for one CPU. No UDP. The user stays root: PR_SET_PDEATHSIG is cleared when a process changes its user.
            Self::Memcached(path) => {
                run(path, &["-l", &ip, "-p", &port, "-U", "0", "-t", "1", "-m", "64", "-c", "4096", "-u", "root"])
            }
            // In the foreground, without writes to disk.
            Self::Redis(path) => {
                let options = ["--save", "", "--appendonly", "no", "--daemonize", "no", "--protected-mode", "no"];
                run(path, &[&["--bind", &ip, "--port", &port][..], &options].concat())
            }
            Self::BuiltIn(path) => run(path, &["serve", "kv", "--listen", &address.to_string(), "--threads", "1"]),
            Self::Command(line) => {
                let mut command = Command::new(&line.program);
                let fill = |word: &String| OsString::from(word.replace("{address}", &ip).replace("{port}", &port));
                command.args(line.arguments.iter().map(fill));
                command
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_gets_address_and_port() {
        let line = CommandLine {
            program: "/bin/server".into(),
            arguments: vec!["--at".into(), "{address}:{port}".into(), "-v".into()],
            port: 8_080,
            protocol: Protocol::Http,
        };
        let app = App::Command(line);
        let command = app.command("198.18.0.1:8080".parse().expect("an address"));
        let arguments: Vec<_> = command.get_args().collect();
        assert_eq!(arguments, ["--at", "198.18.0.1:8080", "-v"]);
        assert_eq!(app.description(), "server --at {address}:{port} -v");
        assert_eq!((app.port(), app.protocol()), (8_080, Protocol::Http));
    }
}
