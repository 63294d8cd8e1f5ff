//! Requests of other processes to hand a connection over, and those that the runtime's owner answers ([`Responder`]).
//!
//! A request is one JSON value in a datagram of a sequenced-packet Unix socket, with the descriptor of the kernel socket, and
//! so is the answer. The listening socket has an abstract name in the runtime's network namespace, which a process may use
//! whatever its user and its root directory are. A token proves that it is one of the family: a child knows it from the memory
//! that it has a copy of.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use abey_nic::accept::Acceptor;
use abey_nic::message;
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with, sockopt,
};
use serde::{Deserialize, Serialize};

use super::waiting::Waiting;
use super::{ConnectionKey, HandOverError, HandedOver, hand_over};
use crate::host::Host;
use crate::threads::{ThreadRole, Threads};

/// How long a request waits for its answer, and for a handshake to end.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// How often a request is repeated while the handshake is not over.
const RETRY: Duration = Duration::from_millis(10);
/// How often a request is repeated whose connection was closed: too many others had connected.
const MAX_REPEATED: usize = 5;

/// Where to send requests. Plain data, for a child to inherit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandOverAddress {
    name: String,
    token: u128,
}

/// Answers the requests of [`HandOverAddress::ask`], for the owner of the runtime: about listeners, UDP sockets and epoll
/// instances, of which this crate does not know who has them. Runs in the server's thread. A descriptor comes with the
/// request, and may go with the answer. An error of the kind would-block is passed on as such.
pub type Responder = fn(Question, Option<OwnedFd>) -> io::Result<Option<OwnedFd>>;

/// A question that a [`Responder`] answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// What is asked; the owner numbers them.
    pub kind: u32,
    /// The name of the object, in the owner's words.
    pub object: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    token: u128,
    about: About,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum About {
    Connection(ConnectionKey),
    Owner(Question),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    /// The kernel socket has the connection.
    Kernel,
    /// A pump serves it; its descriptor is sent with the answer.
    Pump,
    /// The handshake is not over.
    NotEstablished,
    /// The owner has answered, with the descriptor, if there is one.
    Done,
    WouldBlock,
    /// It is not possible: the reason.
    Refused(String),
}

impl HandOverAddress {
    /// Asks the process that has the connection to move it into `socket`, and waits for the answer, for ten seconds at most.
    /// The thread that answers is no application thread.
    ///
    /// # Errors
    /// The process has ended, or it cannot hand the connection over.
    pub fn request(&self, connection: ConnectionKey, socket: BorrowedFd<'_>) -> io::Result<HandedOver> {
        let end = Instant::now() + ANSWER_LIMIT;
        loop {
            match self.request_once(About::Connection(connection), socket)? {
                (Answer::Kernel, _) => return Ok(HandedOver::Kernel),
                (Answer::Pump, descriptor) => {
                    return descriptor.map(HandedOver::Pump).ok_or_else(|| io::ErrorKind::InvalidData.into());
                }
                (Answer::NotEstablished, _) if Instant::now() < end => std::thread::sleep(RETRY),
                (Answer::NotEstablished, _) => return Err(io::Error::other(HandOverError::NotEstablished)),
                (Answer::Refused(reason), _) => return Err(io::Error::other(reason)),
                (Answer::Done | Answer::WouldBlock, _) => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }

    /// Asks the owner of the runtime, whose [`Responder`] answers, and waits for ten seconds at most.
    ///
    /// # Errors
    /// The process has ended, has no responder, or the responder's error.
    pub fn ask(&self, question: Question, descriptor: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
        match self.request_once(About::Owner(question), descriptor)? {
            (Answer::Done, descriptor) => Ok(descriptor),
            (Answer::WouldBlock, _) => Err(io::ErrorKind::WouldBlock.into()),
            (Answer::Refused(reason), _) => Err(io::Error::other(reason)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn request_once(&self, about: About, socket: BorrowedFd<'_>) -> io::Result<(Answer, Option<OwnedFd>)> {
        let is_closed =
            |error: &io::Error| matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe);
        let mut attempts = (0..MAX_REPEATED).map(|_| self.attempt(about, socket));
        let last = attempts.find(|answer| !answer.as_ref().is_err_and(is_closed));
        last.unwrap_or_else(|| Err(io::ErrorKind::ConnectionReset.into()))
    }

    fn attempt(&self, about: About, socket: BorrowedFd<'_>) -> io::Result<(Answer, Option<OwnedFd>)> {
        let server = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        for timeout in [sockopt::Timeout::Send, sockopt::Timeout::Recv] {
            sockopt::set_socket_timeout(&server, timeout, Some(ANSWER_LIMIT))?;
        }
        connect(&server, &SocketAddrUnix::new_abstract_name(self.name.as_bytes())?)?;
        let request = Request { token: self.token, about };
        message::send(&server, &to_bytes(&request), &[socket])?;
        let (answer, descriptors) = loop {
            match message::receive(&server, RecvFlags::empty()) {
                Err(rustix::io::Errno::INTR) => {}
                other => break other?,
            }
        };
        let answer = serde_json::from_slice(&answer).map_err(|_| io::ErrorKind::InvalidData)?;
        Ok((answer, descriptors.into_iter().next()))
    }
}

fn to_bytes(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).expect("a message is JSON")
}

/// A running server. Dropping it ends its thread.
#[derive(Debug)]
pub struct HandOverServer {
    address: HandOverAddress,
    /// Closing it ends the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl HandOverServer {
    /// Starts the server in the network namespace of the calling thread.
    pub(crate) fn start(host: &Arc<Host>, threads: &Arc<Threads>, responder: Option<Responder>) -> io::Result<Self> {
        let token = random()?;
        let address =
            HandOverAddress { name: format!("abey-handover/{}/{:016x}", std::process::id(), random()? as u64), token };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(&listener, &SocketAddrUnix::new_abstract_name(address.name.as_bytes())?)?;
        listen(&listener, 256)?;
        let (stop, stopped) = UnixStream::pair()?;
        let (host, threads) = (host.clone(), threads.clone());
        let thread = std::thread::Builder::new().name("abey-handover".to_owned()).spawn(move || {
            threads.register(ThreadRole::HandOver);
            run(Waiting::new(Acceptor::new(listener)), &stopped, &Family { host, token, responder });
            threads.unregister();
        })?;
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }

    /// Returns where to send requests.
    pub fn address(&self) -> &HandOverAddress {
        &self.address
    }
}

impl Drop for HandOverServer {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // The panic of a thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

fn random() -> io::Result<u128> {
    let mut bytes = [0; 16];
    io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(u128::from_ne_bytes(bytes))
}

/// What the server needs for an answer.
struct Family {
    host: Arc<Host>,
    token: u128,
    responder: Option<Responder>,
}

/// Serves requests until `stopped` is closed.
fn run(mut waiting: Waiting, stopped: &UnixStream, family: &Family) {
    while let Some(ready) = waiting.wait(stopped) {
        for client in ready {
            // A process that has ended needs no answer.
            let _ = family.serve(&client);
        }
    }
}

impl Family {
    /// Answers one request.
    fn serve(&self, client: &OwnedFd) -> io::Result<()> {
        let (request, descriptors) = message::receive(client, RecvFlags::DONTWAIT)?;
        let request: Request = serde_json::from_slice(&request).map_err(|_| io::ErrorKind::InvalidData)?;
        if request.token != self.token {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let (answer, end) = self.answer(request.about, descriptors.into_iter().next());
        let end: Vec<_> = end.iter().map(AsFd::as_fd).collect();
        Ok(message::send(client, &to_bytes(&answer), &end)?)
    }

    fn answer(&self, about: About, descriptor: Option<OwnedFd>) -> (Answer, Option<OwnedFd>) {
        let connection = match about {
            About::Connection(connection) => connection,
            About::Owner(question) => {
                let no_responder = || Err(io::Error::from(io::ErrorKind::Unsupported));
                return match self.responder.map_or_else(no_responder, |responder| responder(question, descriptor)) {
                    Ok(end) => (Answer::Done, end),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => (Answer::WouldBlock, None),
                    Err(error) => (Answer::Refused(error.to_string()), None),
                };
            }
        };
        match hand_over(&self.host, connection, descriptor.as_ref().map(AsFd::as_fd), None) {
            Ok(HandedOver::Kernel) => (Answer::Kernel, None),
            Ok(HandedOver::Pump(end)) => (Answer::Pump, Some(end)),
            Err(HandOverError::NotEstablished) => (Answer::NotEstablished, None),
            Err(error) => (Answer::Refused(error.to_string()), None),
        }
    }
}
