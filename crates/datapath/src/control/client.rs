//! The asking end of a control socket.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use abey_delivery::Nanos;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send, socket_with,
};
use rustix::process::geteuid;

use super::latency::LatencyPage;
use super::place::{self, Found};
use super::protocol::{Answer, Change, Reply, Request, SettingChange, Wanted};
use super::sockets::SocketPage;
use super::status::Status;
use super::{ControlError, MAX_ANSWER};

/// How long a whole answer may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// A connection to a running datapath.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    pid: u32,
    path: PathBuf,
}

/// A datapath that is there and cannot be reached.
#[derive(Debug)]
pub struct Unreachable {
    /// Its process.
    pub pid: u32,
    /// Why.
    pub error: ControlError,
}

/// Connects to every datapath there is of this user; for root, of every user with a runtime directory. Sockets that
/// processes left behind are removed.
///
/// # Errors
/// There is no directory to look in, or it cannot be read.
pub fn find() -> Result<Vec<Result<Client, Unreachable>>, ControlError> {
    reach(place::directories()?)
}

/// As [`find()`], in one directory ([`crate::Runtime::serve_control_in`]).
///
/// # Errors
/// It cannot be read.
pub fn find_in(directory: &Path) -> Result<Vec<Result<Client, Unreachable>>, ControlError> {
    reach(vec![directory.to_owned()])
}

fn reach(directories: Vec<PathBuf>) -> Result<Vec<Result<Client, Unreachable>>, ControlError> {
    let found = place::find(directories)?.into_iter();
    let reached = found.filter_map(|found| {
        let pid = found.pid;
        Client::reach(found).map_err(|error| Unreachable { pid, error }).transpose()
    });
    Ok(reached.collect())
}

impl Client {
    /// `None`: nobody is there any more.
    fn reach(found: Found) -> Result<Option<Self>, ControlError> {
        let Found { path, pid, is_lent, owner } = found;
        let failed =
            |source: Errno| ControlError::System { action: "connect to", path: path.clone(), source: source.into() };
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(failed)?;
        for timeout in [Timeout::Send, Timeout::Recv] {
            set_socket_timeout(&socket, timeout, Some(PATIENCE)).map_err(failed)?;
        }
        match connect(&socket, &SocketAddrUnix::new(&path).map_err(failed)?) {
            Ok(()) => {}
            Err(Errno::CONNREFUSED) => {
                let _ = fs::remove_file(&path);
                return Ok(None);
            }
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::AGAIN) => return Err(ControlError::Silent { pid }),
            Err(error) => return Err(failed(error)),
        }
        // Not a word before it is clear who is there.
        let peer = socket_peercred(&socket).map_err(failed)?;
        let user = peer.uid.as_raw();
        let trusted = peer.uid == geteuid() || geteuid().is_root() && user == owner;
        if !trusted {
            return Err(ControlError::OtherUser { path, user });
        }
        // As this process sees it, unless the credentials are those of who lent the socket.
        let pid = if is_lent { pid } else { peer.pid.as_raw_nonzero().get().unsigned_abs() };
        Ok(Some(Self { socket, pid, path }))
    }

    /// The process at the other end, as this one sees it.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Asks for everything.
    ///
    /// # Errors
    /// No answer, or none of this version.
    pub fn status(&self) -> Result<Status, ControlError> {
        match self.ask(Wanted::Status)? {
            Answer::Status(status) => Ok(*status),
            other => Err(self.unexpected(other)),
        }
    }

    /// Asks for the sockets, at most so many of each shard.
    ///
    /// # Errors
    /// As [`Self::status`]; and [`ControlError::Refused`] by a datapath of an Abey that could not list them.
    pub fn sockets(&self, most: usize) -> Result<Vec<SocketPage>, ControlError> {
        match self.ask(Wanted::Sockets { most })? {
            Answer::Sockets(pages) => Ok(pages),
            other => Err(self.unexpected(other)),
        }
    }

    /// Asks how long requests take, and to go on measuring for `watch` after this question: see [`Wanted::Latency`].
    ///
    /// # Errors
    /// As [`Self::status`]; and [`ControlError::Refused`] by a datapath of an Abey that could not measure them.
    pub fn latency(&self, watch: Nanos) -> Result<Vec<LatencyPage>, ControlError> {
        match self.ask(Wanted::Latency { watch_ns: watch.as_nanos() })? {
            Answer::Latency(pages) => Ok(pages),
            other => Err(self.unexpected(other)),
        }
    }

    /// Changes settings, all or nothing. What changed is answered as it was read back.
    ///
    /// # Errors
    /// As [`Self::status`]; and [`ControlError::Refused`] when the settings cannot be.
    pub fn set(&self, change: Change) -> Result<Vec<SettingChange>, ControlError> {
        match self.ask(Wanted::Set(change))? {
            Answer::Changes(changes) => Ok(changes),
            other => Err(self.unexpected(other)),
        }
    }

    fn unexpected(&self, answer: Answer) -> ControlError {
        match answer {
            Answer::Refused(refusal) => refusal.into(),
            Answer::Status(_) => self.foreign("a status that was not asked for"),
            Answer::Sockets(_) => self.foreign("sockets that were not asked for"),
            Answer::Latency(_) => self.foreign("latencies that were not asked for"),
            Answer::Changes(_) => self.foreign("changes that were not asked for"),
        }
    }

    fn foreign(&self, said: impl ToString) -> ControlError {
        ControlError::Foreign { pid: self.pid, said: said.to_string() }
    }

    fn ask(&self, wanted: Wanted) -> Result<Answer, ControlError> {
        let mut line = serde_json::to_vec(&Request::new(wanted)).map_err(|error| self.foreign(error))?;
        line.push(b'\n');
        let mut rest = &line[..];
        while !rest.is_empty() {
            let sent = send(&self.socket, rest, SendFlags::NOSIGNAL).map_err(|error| self.failed(error))?;
            rest = &rest[sent..];
        }
        let reply: Reply = serde_json::from_slice(&self.receive()?).map_err(|error| self.foreign(error))?;
        Ok(reply.answer)
    }

    fn receive(&self) -> Result<Vec<u8>, ControlError> {
        let began = Instant::now();
        let (mut line, mut part) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            let count = match recv(&self.socket, &mut part[..], RecvFlags::empty()) {
                Ok((count, _)) => count,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(self.failed(error)),
            };
            line.extend_from_slice(&part[..count]);
            if line.last() == Some(&b'\n') {
                return Ok(line);
            }
            match count {
                0 => return Err(ControlError::Gone { pid: self.pid }),
                _ if line.len() > MAX_ANSWER => return Err(self.foreign("an answer without an end")),
                _ if began.elapsed() > PATIENCE => return Err(ControlError::Silent { pid: self.pid }),
                _ => {}
            }
        }
    }

    fn failed(&self, error: Errno) -> ControlError {
        match error {
            Errno::AGAIN => ControlError::Silent { pid: self.pid },
            Errno::PIPE | Errno::CONNRESET => ControlError::Gone { pid: self.pid },
            error => {
                let source = io::Error::from(error);
                ControlError::System { action: "talk over", path: self.path.clone(), source }
            }
        }
    }
}
