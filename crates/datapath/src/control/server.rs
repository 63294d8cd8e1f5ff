//! The server of a control socket: one thread, which sleeps until a request arrives.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use abey_nic::credentials::PeerCredentials;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::geteuid;

use super::error::ControlError;
use super::protocol::{Answer, MAX_ANSWER, MAX_REQUEST, Query, Refusal, RefusalKind, Reply, Request, VERSION};
use super::{change, directory, latency, sockets, view};
use crate::runtime::state::RuntimeState;
use crate::threads::ThreadRole;

/// The most clients that are connected at a time.
pub const MAX_CLIENTS: usize = 8;

/// How long the thread pauses when the process has no file descriptor left for a new client.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// A control socket that is served. Dropping this removes the socket and ends its thread.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    /// Closing it ends the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(state: &Arc<RuntimeState>, directory: &Path) -> Result<Self, ControlError> {
        let (listener, path) = directory::listen(directory)?;
        let spawned = Self::spawn(listener, state.clone());
        if spawned.is_err() {
            let _ = std::fs::remove_file(&path);
        }
        let started = spawned.map_err(|source| ControlError::System { action: "serve", path: path.clone(), source });
        let (stop, thread) = started?;
        Ok(Self { path, stop: Some(stop), thread: Some(thread) })
    }

    /// Serves a socket that another process created and will remove.
    pub(crate) fn start_at(state: &Arc<RuntimeState>, listener: UnixListener) -> io::Result<Self> {
        let (stop, thread) = Self::spawn(listener, state.clone())?;
        Ok(Self { path: PathBuf::new(), stop: Some(stop), thread: Some(thread) })
    }

    fn spawn(listener: UnixListener, state: Arc<RuntimeState>) -> io::Result<(UnixStream, JoinHandle<()>)> {
        listener.set_nonblocking(true)?;
        let (stop, stopped) = UnixStream::pair()?;
        let thread = std::thread::Builder::new().name("abey-control".to_owned()).spawn(move || {
            state.threads.register(ThreadRole::Control);
            run(&listener, &stopped, &state);
            state.threads.unregister();
        })?;
        Ok((stop, thread))
    }

    /// Returns the path of the socket; empty if it was [lent](super::lend).
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            let _ = std::fs::remove_file(&self.path);
        }
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // The panic of a thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// A connection to a client.
struct Connection {
    socket: OwnedFd,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    /// Whether it has sent a valid request.
    has_asked: bool,
    /// The round in which it was last active.
    last_active: u64,
    /// The connection is closed when the client has read the output.
    is_closing: bool,
}

/// Serves clients until `stopped` is closed.
fn run(listener: &UnixListener, stopped: &UnixStream, state: &RuntimeState) {
    let mut connections: Vec<Connection> = Vec::new();
    for round in 0.. {
        let mut descriptors = Vec::with_capacity(2 + connections.len());
        descriptors.push(PollFd::new(stopped, PollFlags::IN));
        descriptors.push(PollFd::new(listener, PollFlags::IN));
        descriptors.extend(connections.iter().map(|client| PollFd::new(&client.socket, client.interest())));
        if poll(&mut descriptors, None).is_err() {
            // A signal came.
            continue;
        }
        let ready: Vec<bool> = descriptors.iter().map(|descriptor| !descriptor.revents().is_empty()).collect();
        drop(descriptors);
        if ready[0] {
            return;
        }
        let mut is_ready = ready[2..].iter();
        connections.retain_mut(|client| {
            !is_ready.next().is_some_and(|ready| *ready) || {
                client.last_active = round;
                client.serve(state)
            }
        });
        if ready[1] {
            accept(listener, &mut connections, round);
        }
    }
}

/// Accepts a client, if it may connect.
fn accept(listener: &UnixListener, connections: &mut Vec<Connection>, round: u64) {
    let socket: OwnedFd = match listener.accept() {
        Ok((socket, _)) => socket.into(),
        Err(error) => {
            use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
            if !matches!(error.kind(), ConnectionAborted | Interrupted | WouldBlock) {
                // No descriptor is left. The client stays in the backlog, and the next `poll` would report it at once.
                connections.clear();
                std::thread::sleep(ACCEPT_PAUSE);
            }
            return;
        }
    };
    let own = geteuid().as_raw();
    let is_allowed = PeerCredentials::of(&socket).is_ok_and(|peer| peer.is_user(0) || peer.is_user(own));
    if !is_allowed {
        return;
    }
    if connections.len() >= MAX_CLIENTS
        && let Some((at, _)) =
            connections.iter().enumerate().min_by_key(|(_, client)| (client.has_asked, client.last_active))
    {
        connections.swap_remove(at);
    }
    connections.push(Connection {
        socket,
        input: Vec::new(),
        output: Vec::new(),
        sent: 0,
        has_asked: false,
        last_active: round,
        is_closing: false,
    });
}

impl Connection {
    fn interest(&self) -> PollFlags {
        if self.sent < self.output.len() { PollFlags::OUT } else { PollFlags::IN }
    }

    /// Reads a request, or continues to write the answer. Returns whether the connection stays open.
    fn serve(&mut self, state: &RuntimeState) -> bool {
        if self.sent < self.output.len() {
            return self.flush();
        }
        let mut part = [0; 4096];
        let count = match recv(self.socket.as_fd(), &mut part[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return false,
            Ok((count, _)) => count,
            Err(error) => return matches!(error, Errno::AGAIN | Errno::INTR),
        };
        self.input.extend_from_slice(&part[..count]);
        match self.input.iter().position(|byte| *byte == b'\n') {
            Some(end) if end + 1 == self.input.len() => {
                let answer = answer(state, &self.input[..end]);
                self.is_closing = matches!(&answer, Answer::Refused(refusal) if refusal.kind == RefusalKind::Malformed);
                self.has_asked = !self.is_closing;
                self.set_output(answer);
            }
            Some(_) => self.refuse("a second request came before the answer to the first: wait for the answer"),
            None if self.input.len() >= MAX_REQUEST => {
                self.refuse(&format!("the request is longer than {MAX_REQUEST} bytes"));
            }
            None => return true,
        }
        self.flush()
    }

    /// Refuses an invalid request, and closes the connection.
    fn refuse(&mut self, problem: &str) {
        self.is_closing = true;
        self.set_output(Answer::Refused(Refusal::new(RefusalKind::Malformed, problem)));
    }

    fn set_output(&mut self, answer: Answer) {
        self.input = Vec::new();
        self.sent = 0;
        self.output = line(answer);
        if self.output.len() > MAX_ANSWER {
            let long = Refusal::new(RefusalKind::Impossible, "the answer is longer than the protocol allows");
            self.output = line(Answer::Refused(long));
        }
    }

    /// Writes output until the socket would block. Returns whether the connection stays open.
    fn flush(&mut self) -> bool {
        while self.sent < self.output.len() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match send(self.socket.as_fd(), &self.output[self.sent..], flags) {
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN | Errno::INTR) => return true,
                Err(_) => return false,
            }
        }
        self.output = Vec::new();
        self.sent = 0;
        !self.is_closing
    }
}

fn line(answer: Answer) -> Vec<u8> {
    let reply = Reply { version: VERSION, answer };
    let mut line = serde_json::to_vec(&reply).expect("every answer can be written as JSON");
    line.push(b'\n');
    line
}

fn answer(state: &RuntimeState, line: &[u8]) -> Answer {
    #[derive(serde::Deserialize)]
    struct Version {
        version: u32,
    }
    let malformed = |error: &dyn std::fmt::Display| {
        Refusal::new(RefusalKind::Malformed, format!("the request is invalid: {error}"))
    };
    let request = match serde_json::from_slice(line) {
        Ok(Version { version: VERSION }) => serde_json::from_slice::<Request>(line).map_err(|error| malformed(&error)),
        Ok(Version { version }) => {
            let problem = format!("the request has version {version}: this datapath supports version {VERSION}");
            Err(Refusal::new(RefusalKind::Malformed, problem))
        }
        Err(error) => Err(malformed(&error)),
    };
    let answered = request.and_then(|request| match request.request {
        _ if state.host.is_shut_down() => Err(Refusal::new(RefusalKind::Gone, "the datapath has just ended")),
        Query::Status => Ok(Answer::Status(Box::new(view::status(state)))),
        Query::Sockets { most } => Ok(Answer::Sockets(sockets::pages(&state.host, most))),
        Query::Latency { watch_ns } => Ok(Answer::Latency(latency::pages(&state.host, watch_ns))),
        Query::Set(change) => change::apply(state, &change).map(Answer::Changes),
    });
    answered.unwrap_or_else(Answer::Refused)
}
