//! Accepts connections also while the process has no descriptors left.
//!
//! A connection that cannot be accepted stays in the backlog, and the listening socket stays readable: a thread that polls it
//! would spin. So a descriptor is held in reserve. It is closed to accept the connection, which is closed in turn.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

/// A listening socket, and a descriptor in reserve.
#[derive(Debug)]
pub struct Acceptor {
    listener: OwnedFd,
    reserve: Option<OwnedFd>,
}

/// What [`Acceptor::accept`] found.
#[derive(Debug)]
pub enum Accepted {
    /// A connection. Its calls do not block.
    Connection(OwnedFd),
    /// None is waiting.
    Nothing,
    /// No descriptor or no memory is left. One connection was closed, or could not be: the caller polls the listener again
    /// after [`PAUSE`].
    Exhausted,
}

/// Time for which a thread does not poll its listening socket after [`Accepted::Exhausted`].
pub const PAUSE: Duration = Duration::from_millis(100);

impl Acceptor {
    /// Takes a non-blocking listening socket.
    #[must_use]
    pub fn new(listener: OwnedFd) -> Self {
        Self { listener, reserve: reserve() }
    }

    /// Accepts the next connection. Does not block.
    ///
    /// # Errors
    /// When the socket does not listen.
    pub fn accept(&mut self) -> io::Result<Accepted> {
        match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(connection) => Ok(Accepted::Connection(connection)),
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(Accepted::Nothing),
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                if self.reserve.take().is_some() {
                    drop(accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK));
                }
                self.reserve = reserve();
                Ok(Accepted::Exhausted)
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Acceptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

fn reserve() -> Option<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC).ok()
}
