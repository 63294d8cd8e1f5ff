//! Errors of the datapath as the numbers that the kernel would give.

use abey_datapath::{EpollError, Error, IoError, OpenError, SocketError};
use libc::c_int;

/// Sets errno, and is what a call answers that failed.
pub(crate) fn fail<N: From<i8>>(number: c_int) -> N {
    crate::wait::set_errno(number);
    N::from(-1)
}

pub(crate) fn of_network(error: SocketError) -> c_int {
    match error {
        SocketError::Refused => libc::ECONNREFUSED,
        SocketError::Reset => libc::ECONNRESET,
        SocketError::TimedOut => libc::ETIMEDOUT,
        SocketError::HostUnreachable => libc::EHOSTUNREACH,
        SocketError::NetworkUnreachable => libc::ENETUNREACH,
        SocketError::MessageTooLong => libc::EMSGSIZE,
        _ => libc::EIO,
    }
}

pub(crate) fn of(error: &Error) -> c_int {
    match error {
        Error::Socket(error) => match *error {
            IoError::WouldBlock => libc::EAGAIN,
            IoError::NotConnected => libc::ENOTCONN,
            IoError::BrokenPipe => libc::EPIPE,
            IoError::NoSuchSocket => libc::EBADF,
            IoError::WrongKind => libc::EOPNOTSUPP,
            IoError::MessageTooLong(_) => libc::EMSGSIZE,
            IoError::NoRoute(_) => libc::ENETUNREACH,
            IoError::AddressInUse(_) => libc::EADDRINUSE,
            IoError::Network(error) => of_network(error),
            _ => libc::EIO,
        },
        // As of a socket with SO_RCVTIMEO.
        Error::TimedOut => libc::EAGAIN,
        Error::Interrupted => libc::EINTR,
        Error::RuntimeGone | Error::Nic(_) => libc::ENETDOWN,
        _ => libc::ENOBUFS,
    }
}

pub(crate) fn of_open(error: &OpenError) -> c_int {
    use abey_datapath::StackOpenError as Stack;
    match error {
        OpenError::Stack(error) => match error {
            Stack::AddressInUse(_) => libc::EADDRINUSE,
            Stack::AddressNotAvailable(_) | Stack::NoPort(_) => libc::EADDRNOTAVAIL,
            Stack::NoRoute(_) => libc::EHOSTUNREACH,
            Stack::BadDestination(_) => libc::EINVAL,
            Stack::TooManySockets(_) => libc::ENFILE,
            _ => libc::EIO,
        },
        OpenError::PortInUse { .. } => libc::EADDRINUSE,
        OpenError::NoKernelPort { .. } | OpenError::NoSteering(_) => libc::EADDRNOTAVAIL,
        OpenError::Network(error) => of_network(*error),
        OpenError::TimedOut => libc::ETIMEDOUT,
        OpenError::RuntimeGone | OpenError::Nic(_) | OpenError::LinkDown { .. } => libc::ENETDOWN,
        _ => libc::ENOBUFS,
    }
}

pub(crate) fn of_epoll(error: &EpollError) -> c_int {
    match error {
        EpollError::AlreadyAdded => libc::EEXIST,
        EpollError::NotAdded => libc::ENOENT,
        EpollError::System(_) => libc::EMFILE,
        EpollError::RuntimeGone => libc::EBADF,
        _ => libc::EINVAL,
    }
}
