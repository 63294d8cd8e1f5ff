//! The epoll loop of a TCP server thread: accepts, reads, lets a [`Service`] answer, writes.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::eventfd::EventFd;

use super::{EVENTS, LISTENER, STOP, ServeError, epoll_with, wait};

const READ_SIZE: usize = 64 << 10;
/// A service stops answering at so many unsent bytes, and goes on when they have left.
pub(super) const OUT_LIMIT: usize = 1 << 20;
/// Epoll data of the first connection; those below are the loop's own.
const FIRST: usize = 2;

/// What a call of [`Service::serve`] did.
pub(super) struct Served {
    /// Bytes of the input that are done with.
    pub(super) consumed: usize,
    /// Close the connection when the output has left.
    pub(super) close: bool,
}

/// A protocol, seen from the server.
pub(super) trait Service {
    /// What is remembered of one connection.
    type Session: Default;

    /// Answers as many complete requests at the start of `input` as there are, but none once `out` holds
    /// [`OUT_LIMIT`] bytes.
    fn serve(&mut self, session: &mut Self::Session, input: &[u8], out: &mut Vec<u8>) -> Served;
}

struct Peer<S> {
    stream: TcpStream,
    session: S,
    input: Vec<u8>,
    out: Vec<u8>,
    written: usize,
    closing: bool,
    /// Watched for room to write instead of for input.
    blocked: bool,
}

/// Serves connections of `listener` until `stop` is written to.
pub(super) fn serve<S: Service>(listener: &TcpListener, stop: &EventFd, mut service: S) -> Result<(), ServeError> {
    let epoll = epoll_with(stop, listener)?;
    let mut peers: Vec<Option<Peer<S::Session>>> = Vec::new();
    let mut free = Vec::new();
    let mut buffer = vec![0; READ_SIZE];
    let mut events = [EpollEvent::empty(); EVENTS];
    loop {
        for event in wait(&epoll, &mut events)? {
            match event.data() {
                STOP => return Ok(()),
                LISTENER => accept(listener, &epoll, &mut peers, &mut free)?,
                data => {
                    let slot = data as usize - FIRST;
                    // The peer may have been closed by an event before this one.
                    let Some(peer) = &mut peers[slot] else { continue };
                    let alive = peer.turn(event.events(), &mut service, &mut buffer).unwrap_or(false);
                    if !alive || peer.watch(&epoll, data).is_err() {
                        peers[slot] = None;
                        free.push(slot);
                    }
                }
            }
        }
    }
}

fn accept<S: Default>(
    listener: &TcpListener,
    epoll: &Epoll,
    peers: &mut Vec<Option<Peer<S>>>,
    free: &mut Vec<usize>,
) -> Result<(), ServeError> {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            // The client has gone again: on to the next.
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => continue,
            Err(_) => {
                // Out of descriptors or memory; the listener stays ready, so do not turn in circles at full speed.
                std::thread::sleep(Duration::from_millis(10));
                return Ok(());
            }
        };
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let slot = free.pop().unwrap_or_else(|| {
            peers.push(None);
            peers.len() - 1
        });
        epoll.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, (slot + FIRST) as u64))?;
        let (input, out) = (Vec::new(), Vec::new());
        let session = S::default();
        peers[slot] = Some(Peer { stream, session, input, out, written: 0, closing: false, blocked: false });
    }
}

impl<S> Peer<S> {
    /// Handles readiness; `false` when the connection is over.
    fn turn<V: Service<Session = S>>(
        &mut self,
        ready: EpollFlags,
        service: &mut V,
        buffer: &mut [u8],
    ) -> io::Result<bool> {
        if self.blocked {
            self.flush()?;
        } else if ready.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR) {
            match self.stream.read(buffer) {
                Ok(0) => return Ok(false),
                Ok(size) => self.input.extend_from_slice(&buffer[..size]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
        // Until the input is used up, or its answers do not leave.
        while self.out.is_empty() && !self.closing {
            let served = service.serve(&mut self.session, &self.input, &mut self.out);
            self.input.drain(..served.consumed);
            self.closing = served.close;
            self.flush()?;
            if served.consumed == 0 || self.input.is_empty() {
                break;
            }
        }
        Ok(!(self.closing && self.out.is_empty()))
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.written < self.out.len() {
            match self.stream.write(&self.out[self.written..]) {
                Ok(written) => self.written += written,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        self.written = 0;
        Ok(())
    }

    /// Watches for room while answers wait, else for input.
    fn watch(&mut self, epoll: &Epoll, data: u64) -> nix::Result<()> {
        let blocked = !self.out.is_empty();
        if blocked == self.blocked {
            return Ok(());
        }
        self.blocked = blocked;
        let flags = if blocked { EpollFlags::EPOLLOUT } else { EpollFlags::EPOLLIN };
        epoll.modify(&self.stream, &mut EpollEvent::new(flags, data))
    }
}
