//! The request/response server: reads requests of one size, answers with responses of another; TCP and UDP.

use std::io::ErrorKind;
use std::net::{TcpListener, UdpSocket};

use nix::sys::epoll::EpollEvent;
use nix::sys::eventfd::EventFd;
use socket2::Type;

use super::tcp::{OUT_LIMIT, Served, Service};
use super::{EVENTS, Listen, STOP, ServeError, Server, epoll_with, tcp, wait};
use crate::config::{RequestResponse, Transport};

/// Datagrams taken before `epoll_wait` is called again.
const BATCH: usize = 64;

/// Starts the server.
///
/// Over UDP a datagram that is not of the request size is not answered.
///
/// # Errors
///
/// [`ServeError`] if the sizes are out of range or the address cannot be listened on.
pub fn start(listen: Listen, exchange: &RequestResponse) -> Result<Server, ServeError> {
    exchange.check()?;
    let RequestResponse { request_bytes, response_bytes, .. } = *exchange;
    match exchange.transport {
        Transport::Tcp => Server::start(listen, Type::STREAM, TcpListener::from, || {
            let service = Exchange { request_bytes, response: vec![b'r'; response_bytes] };
            Box::new(move |listener, stop| tcp::serve(&listener, stop, service))
        }),
        Transport::Udp => Server::start(listen, Type::DGRAM, UdpSocket::from, || {
            let response = vec![b'r'; response_bytes];
            Box::new(move |socket, stop| serve_udp(&socket, stop, request_bytes, &response))
        }),
    }
}

struct Exchange {
    request_bytes: usize,
    response: Vec<u8>,
}

impl Service for Exchange {
    /// Bytes of the present request that were read and thrown away.
    type Session = usize;

    fn serve(&mut self, partial: &mut usize, input: &[u8], out: &mut Vec<u8>) -> Served {
        let mut consumed = 0;
        while consumed < input.len() && out.len() < OUT_LIMIT {
            let taken = (self.request_bytes - *partial).min(input.len() - consumed);
            consumed += taken;
            *partial += taken;
            if *partial == self.request_bytes {
                *partial = 0;
                out.extend_from_slice(&self.response);
            }
        }
        Served { consumed, close: false }
    }
}

fn serve_udp(socket: &UdpSocket, stop: &EventFd, request_bytes: usize, response: &[u8]) -> Result<(), ServeError> {
    let epoll = epoll_with(stop, socket)?;
    let mut buffer = vec![0; 1 << 16];
    let mut events = [EpollEvent::empty(); EVENTS];
    loop {
        for event in wait(&epoll, &mut events)? {
            if event.data() == STOP {
                return Ok(());
            }
            for _ in 0..BATCH {
                match socket.recv_from(&mut buffer) {
                    // An answer that cannot be sent is lost, as a datagram may be.
                    Ok((size, peer)) if size == request_bytes => drop(socket.send_to(response, peer)),
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    // What a client's ICMP error left behind.
                    Err(_) => {}
                }
            }
        }
    }
}
