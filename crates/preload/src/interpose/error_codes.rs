//! Conversions of the datapath's errors to the errno values that the kernel uses for the same errors.

use abey_datapath::{EpollError, Error, IoError, OpenError, SocketError};
use libc::c_int;

/// Sets errno and returns the -1 of a call that failed.
pub(crate) fn fail<N: From<i8>>(number: c_int) -> N {
    crate::errno::set_errno(number);
    N::from(-1)
}

pub(crate) fn errno_of_socket_error(error: SocketError) -> c_int {
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

pub(crate) fn errno_of(error: &Error) -> c_int {
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
            IoError::Network(error) => errno_of_socket_error(error),
            _ => libc::EIO,
        },
        // As for a socket with SO_RCVTIMEO.
        Error::TimedOut => libc::EAGAIN,
        Error::Interrupted => libc::EINTR,
        Error::RuntimeDropped | Error::Nic(_) => libc::ENETDOWN,
        _ => libc::ENOBUFS,
    }
}

pub(crate) fn errno_of_open(error: &OpenError) -> c_int {
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
        OpenError::Network(error) => errno_of_socket_error(*error),
        OpenError::TimedOut => libc::ETIMEDOUT,
        OpenError::RuntimeDropped | OpenError::Nic(_) | OpenError::LinkDown { .. } => libc::ENETDOWN,
        _ => libc::ENOBUFS,
    }
}

pub(crate) fn errno_of_epoll(error: &EpollError) -> c_int {
    match error {
        EpollError::AlreadyAdded => libc::EEXIST,
        EpollError::NotAdded => libc::ENOENT,
        EpollError::System(_) => libc::EMFILE,
        EpollError::RuntimeDropped => libc::EBADF,
        _ => libc::EINVAL,
    }
}
