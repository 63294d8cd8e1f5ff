//! The epoll loop of a TCP server thread: accepts, reads, calls a [`Service`] for the answers, writes.

use std::io::{self, ErrorKind, Read, Write};
use std::time::Duration;

use super::{LISTENER, STOP, ServeError, Worker};
use crate::network::{Epoll, Event, Interest, Network, Socket};

const READ_SIZE: usize = 64 << 10;
/// Number of unsent bytes at which a service stops answering until they are sent.
pub(super) const OUT_LIMIT: usize = 1 << 20;
/// The token of the first connection; lower ones are the loop's own.
const FIRST: usize = 2;

/// The result of [`Service::serve`].
pub(super) struct Served {
    /// Bytes of the input that were consumed.
    pub(super) consumed: usize,
    /// Close the connection after the output is sent.
    pub(super) close: bool,
    /// Number of complete requests.
    pub(super) requests: u64,
}

/// A protocol's server side.
pub(super) trait Service {
    /// The state of one connection.
    type Session: Default;

    /// Answers the complete requests at the start of `input`, but none once `out` holds [`OUT_LIMIT`] bytes.
    fn serve(&mut self, session: &mut Self::Session, input: &[u8], out: &mut Vec<u8>) -> Served;
}

struct Peer<T, S> {
    stream: T,
    session: S,
    input: Vec<u8>,
    out: Vec<u8>,
    written: usize,
    closing: bool,
    /// Registered for writing instead of reading.
    blocked: bool,
}

/// Serves connections until the server is stopped.
pub(super) fn serve<N: Network, S: Service>(worker: &Worker<N, N::Listener>, mut service: S) -> Result<(), ServeError> {
    let mut epoll = worker.epoll()?;
    let mut peers: Vec<Option<Peer<N::Stream, S::Session>>> = Vec::new();
    let mut free = Vec::new();
    let mut buffer = vec![0; READ_SIZE];
    let mut events = Vec::new();
    loop {
        epoll.wait(&mut events, None)?;
        for event in &events {
            match event.token {
                STOP => return Ok(()),
                LISTENER => accept::<N, _>(&worker.socket, &epoll, &mut peers, &mut free)?,
                token => {
                    let slot = token as usize - FIRST;
                    // An earlier event of this wait may have closed the connection.
                    let Some(peer) = &mut peers[slot] else { continue };
                    let requests = peer.turn(event, &mut service, &mut buffer).ok().flatten();
                    worker.count(requests.unwrap_or(0));
                    if requests.is_none() || peer.watch(&epoll, token).is_err() {
                        peers[slot] = None;
                        free.push(slot);
                    }
                }
            }
        }
    }
}

fn accept<N: Network, S: Default>(
    listener: &N::Listener,
    epoll: &N::Epoll,
    peers: &mut Vec<Option<Peer<N::Stream, S>>>,
    free: &mut Vec<usize>,
) -> Result<(), ServeError> {
    loop {
        let stream = match N::accept(listener) {
            Ok(stream) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            // The client has closed the connection already.
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => continue,
            Err(_) => {
                // Out of descriptors or memory. The listener stays ready, so pause rather than spin.
                std::thread::sleep(Duration::from_millis(10));
                return Ok(());
            }
        };
        let slot = free.pop().unwrap_or_else(|| {
            peers.push(None);
            peers.len() - 1
        });
        stream.watch(epoll, (slot + FIRST) as u64, Interest::Read)?;
        let (input, out) = (Vec::new(), Vec::new());
        let session = S::default();
        peers[slot] = Some(Peer { stream, session, input, out, written: 0, closing: false, blocked: false });
    }
}

impl<T: Read + Write, S> Peer<T, S> {
    /// Handles readiness. Returns the number of complete requests, or `None` when the connection has ended.
    fn turn<V: Service<Session = S>>(
        &mut self,
        ready: &Event,
        service: &mut V,
        buffer: &mut [u8],
    ) -> io::Result<Option<u64>> {
        if self.blocked {
            self.flush()?;
        } else if ready.readable {
            match self.stream.read(buffer) {
                Ok(0) => return Ok(None),
                Ok(size) => self.input.extend_from_slice(&buffer[..size]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
        let mut requests = 0;
        // Until the input is consumed, or the answers cannot be sent.
        while self.out.is_empty() && !self.closing {
            let served = service.serve(&mut self.session, &self.input, &mut self.out);
            self.input.drain(..served.consumed);
            self.closing = served.close;
            requests += served.requests;
            self.flush()?;
            if served.consumed == 0 || self.input.is_empty() {
                break;
            }
        }
        Ok((!self.closing || !self.out.is_empty()).then_some(requests))
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

    /// Registers for writing while answers are unsent, and otherwise for reading.
    fn watch<E>(&mut self, epoll: &E, token: u64) -> io::Result<()>
    where
        T: Socket<E>,
    {
        let blocked = !self.out.is_empty();
        if blocked == self.blocked {
            return Ok(());
        }
        self.blocked = blocked;
        let interest = if blocked { Interest::Write } else { Interest::Read };
        self.stream.rewatch(epoll, token, interest)
    }
}
