//! The answering end of a control socket: one thread that sleeps until somebody asks.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::geteuid;

use super::protocol::{Answer, Refusal, RefusalKind, Reply, Request, VERSION, Wanted};
use super::{ControlError, MAX_ANSWER, MAX_REQUEST, place};
use crate::runtime::Shared;
use crate::threads::Work;

/// Most clients that are connected at a time.
pub const MAX_CLIENTS: usize = 8;

/// How long the thread pauses when the process has no descriptors left for the client that wants in.
const PAUSE: Duration = Duration::from_millis(200);

/// A served control socket. Dropping it removes the socket and ends its thread.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    /// Closed, it ends the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(shared: &Arc<Shared>, directory: &Path) -> Result<Self, ControlError> {
        let (listener, path) = place::listen(directory)?;
        let spawned = Self::spawn(listener, shared.clone());
        if spawned.is_err() {
            let _ = std::fs::remove_file(&path);
        }
        let started = spawned.map_err(|source| ControlError::System { action: "serve", path: path.clone(), source });
        let (stop, thread) = started?;
        Ok(Self { path, stop: Some(stop), thread: Some(thread) })
    }

    /// At a socket that is somebody else's to remove.
    pub(crate) fn start_at(shared: &Arc<Shared>, listener: UnixListener) -> io::Result<Self> {
        let (stop, thread) = Self::spawn(listener, shared.clone())?;
        Ok(Self { path: PathBuf::new(), stop: Some(stop), thread: Some(thread) })
    }

    fn spawn(listener: UnixListener, shared: Arc<Shared>) -> io::Result<(UnixStream, JoinHandle<()>)> {
        listener.set_nonblocking(true)?;
        let (stop, stopped) = UnixStream::pair()?;
        let thread = std::thread::Builder::new().name("abey-control".to_owned()).spawn(move || {
            shared.threads.enter(Work::Control);
            run(&listener, &stopped, &shared);
            shared.threads.leave();
        })?;
        Ok((stop, thread))
    }

    /// Where the socket is; empty for one that was [lent](super::lend).
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
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// Somebody who is connected.
struct Visitor {
    socket: OwnedFd,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    /// When it last did something, in rounds.
    last: u64,
    /// It is disconnected as soon as it has taken what it is told.
    leaving: bool,
}

/// The thread's life.
fn run(listener: &UnixListener, stopped: &UnixStream, shared: &Shared) {
    let mut visitors: Vec<Visitor> = Vec::new();
    for round in 0.. {
        let mut waiting = Vec::with_capacity(2 + visitors.len());
        waiting.push(PollFd::new(stopped, PollFlags::IN));
        waiting.push(PollFd::new(listener, PollFlags::IN));
        waiting.extend(visitors.iter().map(|visitor| PollFd::new(&visitor.socket, visitor.interest())));
        if poll(&mut waiting, None).is_err() {
            // A signal.
            continue;
        }
        let happened: Vec<bool> = waiting.iter().map(|waiting| !waiting.revents().is_empty()).collect();
        drop(waiting);
        if happened[0] {
            return;
        }
        let mut woken = happened[2..].iter();
        visitors.retain_mut(|visitor| {
            !woken.next().is_some_and(|woken| *woken) || {
                visitor.last = round;
                visitor.serve(shared)
            }
        });
        if happened[1] {
            welcome(listener, &mut visitors, round);
        }
    }
}

/// Lets one in, if it may.
fn welcome(listener: &UnixListener, visitors: &mut Vec<Visitor>, round: u64) {
    let socket: OwnedFd = match listener.accept() {
        Ok((socket, _)) => socket.into(),
        Err(error) => {
            use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
            if !matches!(error.kind(), ConnectionAborted | Interrupted | WouldBlock) {
                // No descriptor is left: it stays at the door, where it would be seen at once again.
                visitors.clear();
                std::thread::sleep(PAUSE);
            }
            return;
        }
    };
    let may = socket_peercred(&socket).is_ok_and(|peer| peer.uid.is_root() || peer.uid == geteuid());
    if !may {
        return;
    }
    if visitors.len() >= MAX_CLIENTS
        && let Some((at, _)) = visitors.iter().enumerate().min_by_key(|(_, visitor)| visitor.last)
    {
        visitors.swap_remove(at);
    }
    visitors.push(Visitor { socket, input: Vec::new(), output: Vec::new(), sent: 0, last: round, leaving: false });
}

impl Visitor {
    fn interest(&self) -> PollFlags {
        if self.sent < self.output.len() { PollFlags::OUT } else { PollFlags::IN }
    }

    /// Takes what it says or gives it what it was told. Whether it stays.
    fn serve(&mut self, shared: &Shared) -> bool {
        if self.sent < self.output.len() {
            return self.give();
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
                let answer = answer(shared, &self.input[..end]);
                self.leaving = matches!(&answer, Answer::Refused(refusal) if refusal.kind == RefusalKind::Malformed);
                self.tell(answer);
            }
            Some(_) => self.turn_out("a second request before the answer to the first: wait for it"),
            None if self.input.len() >= MAX_REQUEST => {
                self.turn_out(&format!("a request longer than {MAX_REQUEST} bytes"));
            }
            None => return true,
        }
        self.give()
    }

    fn turn_out(&mut self, why: &str) {
        self.leaving = true;
        self.tell(Answer::Refused(Refusal::new(RefusalKind::Malformed, why)));
    }

    fn tell(&mut self, answer: Answer) {
        self.input = Vec::new();
        self.sent = 0;
        self.output = line(answer);
        if self.output.len() > MAX_ANSWER {
            let long = Refusal::new(RefusalKind::Impossible, "the answer is too long for one document");
            self.output = line(Answer::Refused(long));
        }
    }

    fn give(&mut self) -> bool {
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
        !self.leaving
    }
}

fn line(answer: Answer) -> Vec<u8> {
    let reply = Reply { version: VERSION, answer };
    let mut line = serde_json::to_vec(&reply).expect("the documents have nothing that JSON has not");
    line.push(b'\n');
    line
}

fn answer(shared: &Shared, line: &[u8]) -> Answer {
    #[derive(serde::Deserialize)]
    struct Version {
        version: u32,
    }
    let malformed =
        |error: &dyn std::fmt::Display| Refusal::new(RefusalKind::Malformed, format!("no request: {error}"));
    let request = match serde_json::from_slice(line) {
        Ok(Version { version: VERSION }) => serde_json::from_slice::<Request>(line).map_err(|error| malformed(&error)),
        Ok(Version { version }) => {
            let said = format!("a request of version {version}: this datapath speaks version {VERSION}");
            Err(Refusal::new(RefusalKind::Malformed, said))
        }
        Err(error) => Err(malformed(&error)),
    };
    let answered = request.and_then(|request| match request.request {
        _ if shared.is_over() => Err(Refusal::new(RefusalKind::Gone, "the datapath has just ended")),
        Wanted::Status => Ok(Answer::Status(Box::new(shared.status()))),
        Wanted::Sockets { most } => Ok(Answer::Sockets(shared.sockets(most))),
        Wanted::Latency { watch_ns } => Ok(Answer::Latency(shared.latencies(watch_ns))),
        Wanted::Set(change) => shared.change(&change).map(Answer::Changes),
    });
    answered.unwrap_or_else(Answer::Refused)
}
