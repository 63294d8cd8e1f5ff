//! The client of control sockets.

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

use super::directory::{self, Found};
use super::error::ControlError;
use super::latency::LatencyPage;
use super::protocol::{Answer, Change, MAX_ANSWER, Query, Reply, Request, SettingChange};
use super::sockets::SocketPage;
use super::status::Status;

/// How long a whole answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// A connection to a running datapath.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    pid: u32,
    path: PathBuf,
}

/// A datapath that was found and cannot be reached.
#[derive(Debug)]
pub struct Unreachable {
    /// Its process.
    pub pid: u32,
    /// The reason.
    pub error: ControlError,
}

/// Connects to every datapath of this user; for root, to those of every user with a runtime directory. Removes the sockets
/// of processes that have ended.
///
/// # Errors
/// The user has no directory for control sockets, or it cannot be read.
pub fn find() -> Result<Vec<Result<Client, Unreachable>>, ControlError> {
    connect_all(directory::directories()?)
}

/// Connects to every datapath in one directory ([`crate::Runtime::serve_control_in`]).
///
/// # Errors
/// The directory cannot be read.
pub fn find_in(directory: &Path) -> Result<Vec<Result<Client, Unreachable>>, ControlError> {
    connect_all(vec![directory.to_owned()])
}

fn connect_all(directories: Vec<PathBuf>) -> Result<Vec<Result<Client, Unreachable>>, ControlError> {
    let found = directory::find(directories)?.into_iter();
    let clients = found.filter_map(|found| {
        let pid = found.pid;
        Client::connect(found).map_err(|error| Unreachable { pid, error }).transpose()
    });
    Ok(clients.collect())
}

impl Client {
    /// Connects to a socket. Returns `None` if its process has ended.
    fn connect(found: Found) -> Result<Option<Self>, ControlError> {
        let Found { path, pid, is_lent, owner } = found;
        let failed =
            |source: Errno| ControlError::System { action: "connect to", path: path.clone(), source: source.into() };
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(failed)?;
        for timeout in [Timeout::Send, Timeout::Recv] {
            set_socket_timeout(&socket, timeout, Some(ANSWER_TIMEOUT)).map_err(failed)?;
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
        // Nothing is sent before the peer's user is checked.
        let peer = socket_peercred(&socket).map_err(failed)?;
        let user = peer.uid.as_raw();
        let trusted = peer.uid == geteuid() || geteuid().is_root() && user == owner;
        if !trusted {
            return Err(ControlError::OtherUser { path, user });
        }
        // The peer's ID in the PID namespace of this process. For a lent socket it would be the lender's.
        let pid = if is_lent { pid } else { peer.pid.as_raw_nonzero().get().unsigned_abs() };
        Ok(Some(Self { socket, pid, path }))
    }

    /// Returns the ID of the process at the other end, in the PID namespace of this process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Requests the status.
    ///
    /// # Errors
    /// There is no answer, or the answer is invalid in this version of the protocol.
    pub fn status(&self) -> Result<Status, ControlError> {
        match self.request(Query::Status)? {
            Answer::Status(status) => Ok(*status),
            other => Err(self.unexpected(other)),
        }
    }

    /// Requests the sockets, at most `most` of each shard.
    ///
    /// # Errors
    /// Those of [`Self::status`]; [`ControlError::Refused`] by an earlier version of Abey that cannot list them.
    pub fn sockets(&self, most: usize) -> Result<Vec<SocketPage>, ControlError> {
        match self.request(Query::Sockets { most })? {
            Answer::Sockets(pages) => Ok(pages),
            other => Err(self.unexpected(other)),
        }
    }

    /// Requests the latencies so far, and their measurement for `watch` after this query: see [`Query::Latency`].
    ///
    /// # Errors
    /// Those of [`Self::status`]; [`ControlError::Refused`] by an earlier version of Abey that cannot measure them.
    pub fn latency(&self, watch: Nanos) -> Result<Vec<LatencyPage>, ControlError> {
        match self.request(Query::Latency { watch_ns: watch.as_nanos() })? {
            Answer::Latency(pages) => Ok(pages),
            other => Err(self.unexpected(other)),
        }
    }

    /// Changes settings, all or none. Returns the changes, read back.
    ///
    /// # Errors
    /// Those of [`Self::status`]; [`ControlError::Refused`] if the change is not possible.
    pub fn set(&self, change: Change) -> Result<Vec<SettingChange>, ControlError> {
        match self.request(Query::Set(change))? {
            Answer::Changes(changes) => Ok(changes),
            other => Err(self.unexpected(other)),
        }
    }

    fn unexpected(&self, answer: Answer) -> ControlError {
        match answer {
            Answer::Refused(refusal) => refusal.into(),
            Answer::Status(_) => self.invalid("a status that was not requested"),
            Answer::Sockets(_) => self.invalid("sockets that were not requested"),
            Answer::Latency(_) => self.invalid("latencies that were not requested"),
            Answer::Changes(_) => self.invalid("changes that were not requested"),
        }
    }

    fn invalid(&self, problem: impl ToString) -> ControlError {
        ControlError::Foreign { pid: self.pid, problem: problem.to_string() }
    }

    fn request(&self, query: Query) -> Result<Answer, ControlError> {
        let mut line = serde_json::to_vec(&Request::new(query)).map_err(|error| self.invalid(error))?;
        line.push(b'\n');
        let mut rest = &line[..];
        while !rest.is_empty() {
            let sent = send(&self.socket, rest, SendFlags::NOSIGNAL).map_err(|error| self.failed(error))?;
            rest = &rest[sent..];
        }
        let reply: Reply = serde_json::from_slice(&self.receive()?).map_err(|error| self.invalid(error))?;
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
                _ if line.len() > MAX_ANSWER => return Err(self.invalid("an answer that is too long")),
                _ if began.elapsed() > ANSWER_TIMEOUT => return Err(ControlError::Silent { pid: self.pid }),
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
