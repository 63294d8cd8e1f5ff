//! The client of control sockets.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use abey_delivery::Nanos;
use abey_nic::credentials::PeerCredentials;
use abey_text::{visible, visible_within};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send, socket_with,
};
use rustix::process::geteuid;
use serde_json::Value;

use super::directory::Found;
use super::error::ControlError;
use super::latency::LatencyPage;
use super::protocol::{Answer, Change, MAX_ANSWER, Query, Reply, Request, SettingChange};
use super::search::Unreachable;
use super::sockets::SocketPage;
use super::status::Status;

/// How long a whole answer may take.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// The longest text in an answer, in characters; the rest is cut off.
const MAX_TEXT: usize = 1024;

/// A connection to a running datapath.
#[derive(Debug)]
pub struct Client {
    pub(super) socket: OwnedFd,
    pid: u32,
    number: u32,
    is_local: bool,
    /// The user whose datapath it is, if it is not that of this process.
    pub(super) user: Option<u32>,
    path: PathBuf,
}

impl Client {
    /// Connects to a socket. Returns `None` if its process has ended.
    pub(super) fn connect(found: Found) -> Result<Option<Self>, ControlError> {
        let user = found.foreign_user();
        let address = found.address();
        let Found { path, pid, number, is_lent, owner, .. } = &found;
        let failed =
            |source: Errno| ControlError::System { action: "connect to", path: path.clone(), source: source.into() };
        // Not blocking, because a process that accepts nothing may have a full backlog.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(failed)?;
        for timeout in [Timeout::Send, Timeout::Recv] {
            set_socket_timeout(&socket, timeout, Some(ANSWER_TIMEOUT)).map_err(failed)?;
        }
        match connect(&socket, &SocketAddrUnix::new(&address).map_err(failed)?) {
            Ok(()) => {}
            Err(Errno::CONNREFUSED) => {
                found.remove();
                return Ok(None);
            }
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::AGAIN) => return Err(ControlError::Silent { pid: *pid }),
            Err(error) => return Err(failed(error)),
        }
        ioctl_fionbio(&socket, false).map_err(failed)?;
        // Nothing is sent before the peer's user is checked.
        let peer =
            PeerCredentials::of(&socket).map_err(|error| failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        // In another user's directory that user only: a link in the path could lead to a socket of root's.
        let is_own = peer.is_user(geteuid().as_raw()) || geteuid().is_root() && peer.is_user(*owner);
        let trusted = if user.is_some() { peer.is_user(*owner) } else { is_own };
        if !trusted {
            return Err(ControlError::OtherUser { path: path.clone(), user: peer.user() });
        }
        // The peer's ID in the PID namespace of this process. For a lent socket it would be the lender's.
        let pid = if *is_lent { *pid } else { peer.pid().unwrap_or(*pid) };
        Ok(Some(Self { socket, pid, number: *number, is_local: peer.pid().is_some(), user, path: found.path }))
    }

    /// Returns the user whose datapath it is, if it is not that of this process: what it answers is that user's word.
    pub fn user(&self) -> Option<u32> {
        self.user
    }

    /// Returns this datapath as one that was not reached.
    #[must_use]
    pub fn unreachable(&self, error: ControlError) -> Unreachable {
        Unreachable { pid: self.pid, user: self.user, error }
    }

    /// Returns the ID of the process at the other end, in the PID namespace of this process if that contains it, otherwise
    /// in its own.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the ID of the process at the other end, or `None` if the PID namespace of this process does not contain it.
    pub fn local_pid(&self) -> Option<u32> {
        self.is_local.then_some(self.pid)
    }

    /// Returns the number of the socket among those of processes with this ID. Two PID namespaces whose datapaths share a
    /// directory may have processes with the same ID.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Requests the status.
    ///
    /// # Errors
    /// There is no answer, or the answer is invalid in this version of the protocol.
    pub fn status(&self) -> Result<Status, ControlError> {
        self.request(Query::Status).and_then(|answer| self.to_status(answer))
    }

    pub(super) fn to_status(&self, answer: Answer) -> Result<Status, ControlError> {
        match answer {
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

    pub(super) fn invalid(&self, problem: impl ToString) -> ControlError {
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
        self.parse(&self.receive()?)
    }

    /// Returns the answer in a line.
    pub(super) fn parse(&self, line: &[u8]) -> Result<Answer, ControlError> {
        parse_reply(line).map_err(|problem| self.invalid(visible(&problem)))
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

    pub(super) fn failed(&self, error: Errno) -> ControlError {
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

/// Returns the answer in a reply. Its texts, which the process at the other end chooses, are made visible.
///
/// # Errors
/// What is wrong with the reply.
pub(super) fn parse_reply(line: &[u8]) -> Result<Answer, String> {
    let mut reply: Value = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    make_visible(&mut reply);
    let reply: Reply = serde_json::from_value(reply).map_err(|error| error.to_string())?;
    Ok(reply.answer)
}

fn make_visible(value: &mut Value) {
    match value {
        Value::String(text) => {
            let visible = visible_within(text, MAX_TEXT);
            if visible != *text {
                *text = visible.into_owned();
            }
        }
        Value::Array(values) => values.iter_mut().for_each(make_visible),
        Value::Object(fields) => {
            // Names of counters are keys.
            if fields.keys().any(|key| visible_within(key, MAX_TEXT) != *key) {
                let visible = |(key, value): (String, Value)| (visible_within(&key, MAX_TEXT).into_owned(), value);
                *fields = std::mem::take(fields).into_iter().map(visible).collect();
            }
            fields.values_mut().for_each(make_visible);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
