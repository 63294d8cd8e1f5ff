//! A process's connection to its broker, with limits of time: a broker that is stopped, or whose machine is attacked, must not
//! stop the program. The other end is a [`Peer`](super::Peer).

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, connect, socket_with};

use super::protocol::{Reply, Request, address};
use crate::message;

/// Pause between two attempts to connect while the broker's backlog is full.
const CONNECT_PAUSE: Duration = Duration::from_millis(5);

/// A connection for one request at a time.
#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
    /// Requests that got no reply in time. Their replies come first, if the broker continues.
    overdue: usize,
}

impl Connection {
    /// Connects to the broker at an abstract name.
    ///
    /// # Errors
    /// `TimedOut` after `limit`; those of `connect(2)`.
    pub(super) fn open(name: &str, limit: Duration) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let end = Instant::now() + limit;
        loop {
            match connect(&socket, &address(name)?) {
                Ok(()) => return Ok(Self { socket, overdue: 0 }),
                Err(Errno::AGAIN) if Instant::now() < end => std::thread::sleep(CONNECT_PAUSE),
                Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends a request and waits for its reply.
    ///
    /// # Errors
    /// `TimedOut` after `limit`. The broker may perform the request later.
    pub(super) fn request(
        &mut self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> io::Result<(Reply, Vec<OwnedFd>)> {
        let end = Instant::now() + limit;
        self.send(request, descriptors, end)?;
        loop {
            match self.receive(end) {
                Ok((bytes, descriptors)) if self.overdue == 0 => {
                    return Ok((Reply::parse(&bytes).ok_or(io::ErrorKind::InvalidData)?, descriptors));
                }
                Ok(_) => self.overdue -= 1,
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    self.overdue += 1;
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends a request whose reply is discarded when it comes, without waiting.
    pub(super) fn send_only(&mut self, request: &Request) {
        if self.send(request, &[], Instant::now()).is_ok() {
            self.overdue += 1;
        }
    }

    fn send(&self, request: &Request, descriptors: &[BorrowedFd<'_>], end: Instant) -> io::Result<()> {
        let bytes = request.to_bytes();
        loop {
            match message::send(&self.socket, &bytes, descriptors) {
                // The socket does not block: the broker has many requests to read.
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, end)?,
                Err(Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    fn receive(&self, end: Instant) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        loop {
            match message::receive(&self.socket, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => self.wait(PollFlags::IN, end)?,
                Err(Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    fn wait(&self, what: PollFlags, end: Instant) -> io::Result<()> {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // Rounded up to milliseconds, so that the wait does not end before the deadline.
        let left = Timespec::try_from(left + Duration::from_millis(1)).expect("a few seconds");
        match poll(&mut [PollFd::new(&self.socket, what)], Some(&left)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::protocol::{Arrival, Listener, Peer};
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);

    fn pair(name: &str) -> (Connection, Peer, Listener) {
        let name = format!("abey-test/{name}/{}", std::process::id());
        let mut listener = Listener::bind(&name).expect("a name");
        let connection = Connection::open(&name, LONG).expect("connected");
        let Ok(Arrival::Peer(peer)) = listener.accept() else { panic!("no connection") };
        (connection, peer, listener)
    }

    /// Before: the program blocked for as long as the broker was stopped.
    #[test]
    fn late_replies_are_not_taken_for_those_of_later_requests() {
        let (mut connection, peer, _listener) = pair("late");
        for _ in 0..2 {
            let error = connection.request(&Request::Engage, &[], SHORT).expect_err("no reply");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        }
        connection.send_only(&Request::GiveBack);
        for number in [1, 2, 3, 4] {
            peer.send(&Reply::Failed(number), &[]).expect("sent");
        }
        let (reply, _) = connection.request(&Request::Engage, &[], LONG).expect("a reply");
        assert_eq!(reply, Reply::Failed(4));
    }

    #[test]
    fn a_broker_that_reads_nothing_and_a_full_backlog_end_in_time() {
        let (mut connection, _peer, _listener) = pair("deaf");
        let error = (0..10_000).find_map(|_| {
            connection.send_only(&Request::Engage);
            connection.send(&Request::Engage, &[], Instant::now()).err()
        });
        assert_eq!(error.expect("the socket is full").kind(), io::ErrorKind::TimedOut);

        let name = format!("abey-test/full/{}", std::process::id());
        let _listener = Listener::bind(&name).expect("a name");
        let mut waiting = Vec::new();
        let error = loop {
            match Connection::open(&name, SHORT) {
                Ok(connection) => waiting.push(connection),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
