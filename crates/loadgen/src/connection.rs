//! One non-blocking connection (or UDP flow): unsent bytes, and requests that wait for their answers.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;

use crate::config::{Options, Transport, Workload};
use crate::error::LoadError;
use crate::http::ResponseParser;
use crate::memcached::{ProtocolError, Reply, ReplyParser};
use crate::network::{Datagrams, Interest, Network, Seat, Socket};
use crate::redis;
use crate::rr::MessageCounter;
use crate::workload::Kind;

/// A request that was handed to the socket and has no answer yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// The intended send time, ns.
    pub(crate) intended: u64,
    /// The actual send time, ns.
    pub(crate) sent: u64,
    pub(crate) kind: Kind,
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Hit,
    Miss,
    Stored,
    Exchanged,
}

#[derive(Debug)]
enum Carrier<N: Network> {
    Tcp(N::Stream),
    /// Each request is a datagram of this many bytes.
    Udp(N::Datagrams, usize),
}

#[derive(Debug)]
enum Replies {
    Values(ReplyParser),
    Http(ResponseParser),
    Messages(MessageCounter),
    Datagrams(usize),
}

#[derive(Debug)]
pub(crate) struct Connection<N: Network> {
    target: SocketAddr,
    socket: Carrier<N>,
    replies: Replies,
    /// Requests, in the order of their answers.
    waiting: VecDeque<Request>,
    /// Bytes of requests; those before `written` have been sent.
    out: Vec<u8>,
    written: usize,
    /// Whether the epoll instance reports this socket as writable, too.
    pub(crate) watched_for_room: bool,
}

/// Datagrams received per readiness event, so that sending is not delayed.
const DATAGRAMS_PER_EVENT: usize = 32;

impl<N: Network> Connection<N> {
    /// Connects.
    pub(crate) fn open(network: &N, options: &Options, seat: Seat) -> Result<Self, LoadError> {
        let target = options.target;
        let failed = |source| connect_error(options, seat.number, source);
        let stream = || network.connect(target, options.timeout, seat).map(Carrier::Tcp).map_err(failed);
        let (socket, replies) = match &options.workload {
            Workload::Memcached(_) => (stream()?, Replies::Values(ReplyParser::default())),
            Workload::Redis(_) => (stream()?, Replies::Values(redis::parser())),
            Workload::Http(_) => (stream()?, Replies::Http(ResponseParser::default())),
            Workload::RequestResponse(rr) => match rr.transport {
                Transport::Tcp => (stream()?, Replies::Messages(MessageCounter::new(rr.response_bytes))),
                Transport::Udp => {
                    let socket = network.connect_datagrams(target).map_err(failed)?;
                    (Carrier::Udp(socket, rr.request_bytes), Replies::Datagrams(rr.response_bytes))
                }
            },
        };
        let waiting = VecDeque::with_capacity(options.depth);
        Ok(Self { target, socket, replies, waiting, out: Vec::new(), written: 0, watched_for_room: false })
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of unsent bytes.
    pub(crate) fn unwritten(&self) -> usize {
        self.out.len() - self.written
    }

    /// Queues a request whose bytes `append` puts into the buffer; [`Self::flush`] sends them.
    pub(crate) fn push(&mut self, intended: u64, sent: u64, append: impl FnOnce(&mut Vec<u8>) -> Kind) {
        let kind = append(&mut self.out);
        self.waiting.push_back(Request { intended, sent, kind });
    }

    /// Writes as much as the socket accepts.
    pub(crate) fn flush(&mut self) -> Result<(), LoadError> {
        while self.written < self.out.len() {
            let bytes = &self.out[self.written..];
            let written = match &mut self.socket {
                Carrier::Tcp(stream) => stream.write(bytes),
                Carrier::Udp(socket, size) => socket.send(&bytes[..*size]),
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

    /// Reads once (a stream) or a few times (datagrams) into `buffer`, and passes each answer with its request to
    /// `on_answer`. `now` returns the time after each read.
    pub(crate) fn receive(
        &mut self,
        buffer: &mut [u8],
        now: impl Fn() -> u64,
        mut on_answer: impl FnMut(Request, Answer, u64),
    ) -> Result<(), LoadError> {
        match &mut self.socket {
            Carrier::Tcp(stream) => match stream.read(buffer) {
                Ok(0) => Err(LoadError::Closed { target: self.target, outstanding: self.waiting.len() }),
                Ok(size) => self.take_stream(&buffer[..size], now(), &mut on_answer),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(()),
                Err(error) => Err(self.failed(error)),
            },
            Carrier::Udp(..) => self.receive_datagrams(buffer, now, &mut on_answer),
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
            Replies::Values(parser) => parser
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
            Replies::Http(parser) => {
                let complete = parser.feed(bytes).map_err(|source| LoadError::Http { target, source })?;
                self.exchanged(complete, now, on_answer)
            }
            Replies::Messages(counter) => {
                let complete = counter.feed(bytes.len());
                self.exchanged(complete, now, on_answer)
            }
            Replies::Datagrams(_) => unreachable!("datagrams do not come on streams"),
        }
    }

    /// Records a number of whole answers without further content.
    fn exchanged(
        &mut self,
        complete: usize,
        now: u64,
        on_answer: &mut impl FnMut(Request, Answer, u64),
    ) -> Result<(), LoadError> {
        for _ in 0..complete {
            let request = self.waiting.pop_front().ok_or(LoadError::Unasked { target: self.target })?;
            on_answer(request, Answer::Exchanged, now);
        }
        Ok(())
    }

    fn receive_datagrams(
        &mut self,
        buffer: &mut [u8],
        now: impl Fn() -> u64,
        on_answer: &mut impl FnMut(Request, Answer, u64),
    ) -> Result<(), LoadError> {
        let (Carrier::Udp(socket, _), Replies::Datagrams(wanted)) = (&self.socket, &self.replies) else {
            unreachable!("a UDP socket receives datagrams")
        };
        for _ in 0..DATAGRAMS_PER_EVENT.min(self.waiting.len().max(1)) {
            match socket.receive(buffer) {
                Ok(got) if got != *wanted => {
                    return Err(LoadError::AnswerSize { target: self.target, got, wanted: *wanted });
                }
                // A duplicate of an answer, which the network may make, is ignored.
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

    /// Gives up on this UDP flow's outstanding requests if the oldest was sent before `sent_before`, and continues from a
    /// new port. Returns how many were lost; the new socket must be registered in place of the old one.
    pub(crate) fn renew_if_lost(&mut self, network: &N, sent_before: u64) -> Result<usize, LoadError> {
        let Carrier::Udp(socket, _) = &mut self.socket else { return Ok(0) };
        if self.waiting.front().is_none_or(|oldest| oldest.sent >= sent_before) {
            return Ok(0);
        }
        *socket = network
            .connect_datagrams(self.target)
            .map_err(|source| LoadError::Socket { target: self.target, source })?;
        let lost = self.waiting.len();
        self.waiting.clear();
        self.out.clear();
        self.written = 0;
        self.watched_for_room = false;
        Ok(lost)
    }

    /// Registers the socket.
    pub(crate) fn watch(&self, epoll: &N::Epoll, token: u64) -> io::Result<()> {
        match &self.socket {
            Carrier::Tcp(stream) => stream.watch(epoll, token, Interest::Read),
            Carrier::Udp(socket, _) => socket.watch(epoll, token, Interest::Read),
        }
    }

    /// Changes the interest.
    pub(crate) fn rewatch(&self, epoll: &N::Epoll, token: u64, interest: Interest) -> io::Result<()> {
        match &self.socket {
            Carrier::Tcp(stream) => stream.rewatch(epoll, token, interest),
            Carrier::Udp(socket, _) => socket.rewatch(epoll, token, interest),
        }
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

fn connect_error(options: &Options, number: usize, source: io::Error) -> LoadError {
    let (target, wanted) = (options.target, options.connections);
    if source.kind() == ErrorKind::ConnectionRefused {
        return LoadError::Refused { target };
    }
    match rustix::io::Errno::from_io_error(&source) {
        Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
            LoadError::TooManyFiles { opened: number - 1, wanted }
        }
        _ => LoadError::Connect { target, number, source },
    }
}
