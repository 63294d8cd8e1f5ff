//! One nonblocking connection (or UDP flow): bytes waiting to leave, requests waiting for their answers.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::config::{Options, Transport, Workload};
use crate::error::LoadError;
use crate::memcached::{ProtocolError, Reply, ReplyParser};
use crate::rr::MessageCounter;
use crate::workload::Kind;

/// A request that was handed to the socket and has no answer yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// When it should have left, ns.
    pub(crate) intended: u64,
    /// When it left, ns.
    pub(crate) sent: u64,
    pub(crate) kind: Kind,
}

/// An answer that fits its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Hit,
    Miss,
    Stored,
    Exchanged,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    /// Each request is a datagram of so many bytes.
    Udp(UdpSocket, usize),
}

#[derive(Debug)]
enum Replies {
    Memcached(ReplyParser),
    Messages(MessageCounter),
    Datagrams(usize),
}

#[derive(Debug)]
pub(crate) struct Connection {
    target: SocketAddr,
    socket: Socket,
    replies: Replies,
    /// Requests in the order their answers must come.
    waiting: VecDeque<Request>,
    /// Bytes of requests; those before `written` have left.
    out: Vec<u8>,
    written: usize,
    /// Whether epoll watches this socket for room to write, too.
    pub(crate) watched_for_room: bool,
}

/// Datagrams that one readiness event takes from a flow, so that sending is not held up.
const DATAGRAMS_PER_EVENT: usize = 32;

impl Connection {
    /// Connects; `number` (from 1) is for the error's text.
    pub(crate) fn open(options: &Options, number: usize) -> Result<Self, LoadError> {
        let target = options.target;
        let (socket, replies) = match &options.workload {
            Workload::Memcached(_) => {
                (Socket::Tcp(connect_tcp(options, number)?), Replies::Memcached(ReplyParser::default()))
            }
            Workload::RequestResponse(rr) => match rr.transport {
                Transport::Tcp => (
                    Socket::Tcp(connect_tcp(options, number)?),
                    Replies::Messages(MessageCounter::new(rr.response_bytes)),
                ),
                Transport::Udp => {
                    let socket = connect_udp(target).map_err(|source| connect_error(options, number, source))?;
                    (Socket::Udp(socket, rr.request_bytes), Replies::Datagrams(rr.response_bytes))
                }
            },
        };
        let waiting = VecDeque::with_capacity(options.depth);
        Ok(Self { target, socket, replies, waiting, out: Vec::new(), written: 0, watched_for_room: false })
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.waiting.len()
    }

    /// Bytes that have not left yet.
    pub(crate) fn unwritten(&self) -> usize {
        self.out.len() - self.written
    }

    /// Queues a request whose bytes `append` puts into the buffer; [`Self::flush`] sends them.
    pub(crate) fn push(&mut self, intended: u64, sent: u64, append: impl FnOnce(&mut Vec<u8>) -> Kind) {
        let kind = append(&mut self.out);
        self.waiting.push_back(Request { intended, sent, kind });
    }

    /// Writes what the socket takes.
    pub(crate) fn flush(&mut self) -> Result<(), LoadError> {
        while self.written < self.out.len() {
            let bytes = &self.out[self.written..];
            let written = match &mut self.socket {
                Socket::Tcp(stream) => stream.write(bytes),
                Socket::Udp(socket, size) => socket.send(&bytes[..*size]),
            };
            match written {
                Ok(written) => self.written += written,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(self.failed(error)),
            }
        }
        self.out.clear();
        self.written = 0;
        Ok(())
    }

    /// Reads once (a stream) or a few times (datagrams) into `buffer`, and hands each answer with its request to
    /// `on_answer`. `now` is asked for the time behind each read.
    pub(crate) fn receive(
        &mut self,
        buffer: &mut [u8],
        now: impl Fn() -> u64,
        mut on_answer: impl FnMut(Request, Answer, u64),
    ) -> Result<(), LoadError> {
        match &mut self.socket {
            Socket::Tcp(stream) => match stream.read(buffer) {
                Ok(0) => Err(LoadError::Closed { target: self.target, outstanding: self.waiting.len() }),
                Ok(size) => self.take_stream(&buffer[..size], now(), &mut on_answer),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(()),
                Err(error) => Err(self.failed(error)),
            },
            Socket::Udp(..) => self.receive_datagrams(buffer, now, &mut on_answer),
        }
    }

    fn take_stream(
        &mut self,
        bytes: &[u8],
        now: u64,
        on_answer: &mut impl FnMut(Request, Answer, u64),
    ) -> Result<(), LoadError> {
        let target = self.target;
        let waiting = &mut self.waiting;
        match &mut self.replies {
            Replies::Memcached(parser) => parser
                .feed(bytes, |reply| {
                    let request = waiting.pop_front().ok_or(ProtocolError::Unasked)?;
                    let answer = match (request.kind, reply) {
                        (Kind::Get, Reply::Hit(_)) => Answer::Hit,
                        (Kind::Get, Reply::Miss) => Answer::Miss,
                        (Kind::Set, Reply::Stored) => Answer::Stored,
                        _ => return Err(ProtocolError::Unasked),
                    };
                    on_answer(request, answer, now);
                    Ok(())
                })
                .map_err(|source| LoadError::Protocol { target, source }),
            Replies::Messages(counter) => {
                for _ in 0..counter.feed(bytes.len()) {
                    let request = waiting.pop_front().ok_or(LoadError::Unasked { target })?;
                    on_answer(request, Answer::Exchanged, now);
                }
                Ok(())
            }
            Replies::Datagrams(_) => unreachable!("datagrams do not come on streams"),
        }
    }

    fn receive_datagrams(
        &mut self,
        buffer: &mut [u8],
        now: impl Fn() -> u64,
        on_answer: &mut impl FnMut(Request, Answer, u64),
    ) -> Result<(), LoadError> {
        let (Socket::Udp(socket, _), Replies::Datagrams(wanted)) = (&self.socket, &self.replies) else {
            unreachable!("a UDP socket receives datagrams")
        };
        for _ in 0..DATAGRAMS_PER_EVENT.min(self.waiting.len().max(1)) {
            match socket.recv(buffer) {
                Ok(got) if got != *wanted => {
                    return Err(LoadError::AnswerSize { target: self.target, got, wanted: *wanted });
                }
                // A duplicate answers nothing; the network may make one.
                Ok(_) => {
                    if let Some(request) = self.waiting.pop_front() {
                        on_answer(request, Answer::Exchanged, now());
                    }
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => break,
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(())
    }

    /// Gives up on this UDP flow's outstanding requests if the oldest was sent before `sent_before`, and goes on from
    /// a new port. Gives how many were lost; the new socket must be watched in place of the old one.
    pub(crate) fn renew_if_lost(&mut self, sent_before: u64) -> Result<usize, LoadError> {
        let Socket::Udp(socket, _) = &mut self.socket else { return Ok(0) };
        if self.waiting.front().is_none_or(|oldest| oldest.sent >= sent_before) {
            return Ok(0);
        }
        *socket = connect_udp(self.target).map_err(|source| LoadError::Socket { target: self.target, source })?;
        let lost = self.waiting.len();
        self.waiting.clear();
        self.out.clear();
        self.written = 0;
        self.watched_for_room = false;
        Ok(lost)
    }

    fn failed(&self, source: io::Error) -> LoadError {
        let target = self.target;
        match source.kind() {
            ErrorKind::ConnectionRefused => LoadError::Refused { target },
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                LoadError::Closed { target, outstanding: self.waiting.len() }
            }
            _ => LoadError::Socket { target, source },
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Udp(socket, _) => socket.as_fd(),
        }
    }
}

fn connect_tcp(options: &Options, number: usize) -> Result<TcpStream, LoadError> {
    let connect = |timeout: Duration| {
        let stream = TcpStream::connect_timeout(&options.target, timeout)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    };
    connect(options.timeout).map_err(|source| connect_error(options, number, source))
}

fn connect_udp(target: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr =
        if target.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.connect(target)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn connect_error(options: &Options, number: usize, source: io::Error) -> LoadError {
    let (target, wanted) = (options.target, options.connections);
    match rustix::io::Errno::from_io_error(&source) {
        Some(rustix::io::Errno::CONNREFUSED) => LoadError::Refused { target },
        Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
            LoadError::TooManyFiles { opened: number - 1, wanted }
        }
        _ => LoadError::Connect { target, number, source },
    }
}
