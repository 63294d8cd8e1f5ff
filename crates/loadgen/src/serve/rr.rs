//! The request/response server: reads requests of one size, answers with responses of another; TCP and UDP.

use std::io::ErrorKind;

use super::tcp::{OUT_LIMIT, Served, Service};
use super::{Listen, STOP, ServeError, Server, Worker, tcp};
use crate::config::{RequestResponse, Transport};
use crate::kernel::Kernel;
use crate::network::{Datagrams, Epoll, Network};

/// Datagrams taken before the next wait.
const BATCH: usize = 64;

/// Starts the server on the kernel's sockets.
///
/// Over UDP a datagram that is not of the request size is not answered.
///
/// # Errors
///
/// [`ServeError`] if the sizes are out of range or the address cannot be listened on.
pub fn start(listen: Listen, exchange: &RequestResponse) -> Result<Server, ServeError> {
    start_on(&Kernel, listen, exchange)
}

/// Starts the server on any network; see [`start`].
///
/// # Errors
///
/// Those of [`start`].
pub fn start_on<N: Network>(network: &N, listen: Listen, exchange: &RequestResponse) -> Result<Server, ServeError> {
    exchange.check()?;
    let RequestResponse { request_bytes, response_bytes, .. } = *exchange;
    match exchange.transport {
        Transport::Tcp => Server::start(network, listen, N::listen, || {
            let service = Exchange { request_bytes, response: vec![b'r'; response_bytes] };
            move |worker| tcp::serve(&worker, service)
        }),
        Transport::Udp => Server::start(network, listen, N::bind, || {
            let response = vec![b'r'; response_bytes];
            move |worker| serve_udp(&worker, request_bytes, &response)
        }),
    }
}

struct Exchange {
    request_bytes: usize,
    response: Vec<u8>,
}

impl Service for Exchange {
    /// Bytes of the current request that were read and discarded.
    type Session = usize;

    fn serve(&mut self, partial: &mut usize, input: &[u8], out: &mut Vec<u8>) -> Served {
        let (mut consumed, mut requests) = (0, 0);
        while consumed < input.len() && out.len() < OUT_LIMIT {
            let taken = (self.request_bytes - *partial).min(input.len() - consumed);
            consumed += taken;
            *partial += taken;
            if *partial == self.request_bytes {
                *partial = 0;
                requests += 1;
                out.extend_from_slice(&self.response);
            }
        }
        Served { consumed, close: false, requests }
    }
}

fn serve_udp<N: Network>(
    worker: &Worker<N, N::Datagrams>,
    request_bytes: usize,
    response: &[u8],
) -> Result<(), ServeError> {
    let mut epoll = worker.epoll()?;
    let mut buffer = vec![0; 1 << 16];
    let mut events = Vec::new();
    loop {
        epoll.wait(&mut events, None)?;
        if events.iter().any(|event| event.token == STOP) {
            return Ok(());
        }
        for _ in 0..BATCH * events.len() {
            match worker.socket.receive_from(&mut buffer) {
                // An answer that cannot be sent is lost, as any datagram may be.
                Ok((size, peer)) if size == request_bytes => {
                    worker.count(u64::from(worker.socket.send_to(response, peer).is_ok()));
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The error of an earlier datagram (ICMP).
                Err(_) => {}
            }
        }
    }
}
