//! The program that is measured on the kernel's sockets.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use abey_linux::library;

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

    pub(super) fn command(&self, address: SocketAddr) -> Command {
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
