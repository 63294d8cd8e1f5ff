//! The program that is measured: an installed one, or the server built into the `abey` command.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use abey_linux::library;
use abey_load::{HttpGet, Memcached, Workload};

/// The program that is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum App {
    /// memcached, by its path.
    Memcached(PathBuf),
    /// redis-server, by its path.
    Redis(PathBuf),
    /// The key-value server built into the `abey` command, by that command's path.
    BuiltIn(PathBuf),
    /// Any other program, which listens on the port and speaks the protocol.
    Command(CommandLine),
}

/// A command line that was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLine {
    /// The program, by its path.
    pub program: PathBuf,
    /// Its arguments, in which `{address}` and `{port}` stand for where it is to listen.
    pub arguments: Vec<String>,
    /// Where it listens.
    pub port: u16,
    /// What it speaks.
    pub protocol: Protocol,
}

/// What the load can speak to a program.
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
    /// GETs only, as the published measurements nearly are: the mode is what differs, not the mix.
    pub(crate) fn workload(self) -> Workload {
        let gets = Memcached { set_ratio: 0.0, ..Memcached::default() };
        match self {
            Self::Memcached => Workload::Memcached(gets),
            Self::Redis => Workload::Redis(gets),
            Self::Http => Workload::Http(HttpGet::default()),
        }
    }

    /// One request, in a word.
    pub const fn request(self) -> &'static str {
        match self {
            Self::Memcached | Self::Redis => "GET",
            Self::Http => "GET / (HTTP)",
        }
    }
}

/// Where a program of this name is: in `PATH`, or where daemons are often installed and only root's `PATH` looks.
pub fn installed(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/bin", "/usr/sbin", "/usr/local/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|directory| directory.join(name)).find(|file| file.is_file())
}

impl App {
    /// memcached if there is one in `PATH`, and otherwise the server built into `abey`.
    pub fn find(abey: &Path) -> Self {
        installed("memcached").map_or_else(|| Self::BuiltIn(abey.to_owned()), Self::Memcached)
    }

    /// The program and its version, for the report.
    pub fn description(&self) -> String {
        let said = |path: &Path, argument: &str| {
            let output = Command::new(path).arg(argument).stdin(Stdio::null()).output();
            let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
            text.ok().filter(|text| !text.is_empty())
        };
        match self {
            Self::Memcached(path) => said(path, "-V").unwrap_or_else(|| "memcached".to_owned()) + ", 1 worker thread",
            Self::Redis(path) => {
                // "Redis server v=7.0.15 sha=... bits=64 build=..."
                let text = said(path, "--version").unwrap_or_default();
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

    /// Where it listens.
    pub fn port(&self) -> u16 {
        match self {
            Self::Memcached(_) | Self::BuiltIn(_) => 11_211,
            Self::Redis(_) => 6_379,
            Self::Command(line) => line.port,
        }
    }

    /// What it speaks.
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
            // One worker thread: one CPU serves. No UDP, and no other user, which the kill on exit depends on.
            Self::Memcached(path) => {
                run(path, &["-l", &ip, "-p", &port, "-U", "0", "-t", "1", "-m", "64", "-c", "4096", "-u", "root"])
            }
            // Nothing is written to disk, and it stays in the foreground.
            Self::Redis(path) => {
                let alone = ["--save", "", "--appendonly", "no", "--daemonize", "no", "--protected-mode", "no"];
                run(path, &[&["--bind", &ip, "--port", &port][..], &alone].concat())
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
    fn a_command_line_is_told_where_to_listen() {
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
