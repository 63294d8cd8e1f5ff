//! Interposed `connect(2)`, `bind(2)` and `shutdown(2)`.
//!
//! `connect` makes a TCP socket a datapath connection if the NIC reaches the destination ([`route`]). Otherwise, and
//! wherever a call does not fit a datapath socket, the kernel answers it. A failed attempt leaves the socket as it was
//! before, so that `connect` can be called again, as on Linux.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use abey_datapath::{Error, LocalEndpoint, OpenError, Readiness, Shutdown, TcpStream};
use libc::{c_int, sockaddr, socklen_t};

use super::context::{datapath_config, is_nic_addr, uninterposed};
use super::error_codes::{errno_of, errno_of_open, errno_of_socket_error, fail};
use super::fd_table::{self, Entry};
use super::route::{self, NicRoute};
use super::runtime::runtime;
use super::socket::{Role, Socket};
use super::socket_options::{SocketOptions, int, is_tcp};
use super::socket_wait::SocketWait;
use super::{listen, member_table, signals, socket_address, udp};
use crate::report::Topic;
use crate::{real, report};

/// How often a thread that waits to be connected checks whether the link is still up.
const LINK_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// `bind(2)`.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn bind(fd: c_int, to: *const sockaddr, length: socklen_t) -> c_int {
    // SAFETY: the caller's guarantees are passed on.
    let pass_on = || unsafe { real::BIND.get()(fd, to, length) };
    if fd_table::with_socket(fd, |socket| socket.stream().is_some()) == Some(true) {
        return fail(libc::EINVAL);
    }
    // SAFETY: guaranteed by the caller.
    let at = unsafe { socket_address::read(to, length) };
    let answer = at.and_then(|at| udp::bind(fd, at, pass_on).or_else(|| listen::bind(fd, at, pass_on)));
    answer.unwrap_or_else(pass_on)
}

/// `connect(2)`.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn connect(fd: c_int, to: *const sockaddr, length: socklen_t) -> c_int {
    // SAFETY: guaranteed by the caller.
    if let Some(answer) = unsafe { udp::connect(fd, to, length) } {
        return answer;
    }
    // SAFETY: guaranteed by the caller.
    let attempt = || unsafe {
        match socket_address::read(to, length) {
            Some(to) => datapath_connect(fd, to),
            None if socket_address::family(to, length) == Some(libc::AF_UNSPEC) => disconnect(fd),
            None => None,
        }
    };
    while let Some(answer) = attempt() {
        if !signals::should_restart(answer < 0) {
            return answer;
        }
    }
    // SAFETY: the caller's guarantees are passed on.
    unsafe { real::CONNECT.get()(fd, to, length) }
}

/// What a `connect` finds of the socket.
enum ConnectState {
    /// The call has its answer: the socket has a connection or an attempt.
    Answered(c_int),
    /// The socket has no connection yet. It may have a local address in the datapath only.
    New(Option<SocketAddr>),
}

fn datapath_connect(fd: c_int, to: SocketAddr) -> Option<c_int> {
    let config = datapath_config()?;
    let datapath_only = match fd_table::with_socket(fd, |socket| connect_state(fd, socket)) {
        Some(ConnectState::Answered(answer)) => return Some(answer),
        Some(ConnectState::New(datapath_only)) => datapath_only,
        None => None,
    };
    let nic_route = route::lookup(config, to)?;
    if !is_tcp(fd) || !route::may_use_device(config, fd) {
        return None;
    }
    let socket = Socket::new(fd, datapath_only);
    let v6_only = socket.is_v6 && int(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) == Some(1);
    let remote = SocketAddr::new(to.ip().to_canonical(), to.port());
    // The kernel has an errno for an address of another family than the socket's.
    if socket.is_v6 != to.is_ipv6() || v6_only && remote.is_ipv4() {
        return None;
    }
    let (address, port) = local_end(fd, datapath_only, remote, nic_route)?;
    if address.is_some_and(|address| !is_nic_addr(config, SocketAddr::new(address, 0))) {
        return None;
    }
    let runtime = runtime(config)?;
    let options = SocketOptions::from_kernel_socket(fd);
    let local = LocalEndpoint { address, port, options: options.tcp };
    // SAFETY: the caller's descriptor, which it keeps open during its call.
    let own = unsafe { BorrowedFd::borrow_raw(fd) };
    let stream = match uninterposed(|| TcpStream::connect_with(runtime, local, remote, Some(own))) {
        Ok(stream) => stream,
        Err(error @ OpenError::NoSteering(_)) => {
            report::print_once(Topic::Datapath, format_args!("{error}; the connection to {remote} uses the kernel"));
            return None;
        }
        Err(error) => return Some(fail(errno_of_connect(&error))),
    };
    socket.become_role(Role::Stream(stream), Arc::new(options));
    if !fd_table::insert(fd, Arc::new(Entry::Socket(socket))) {
        return Some(fail(libc::EMFILE));
    }
    member_table::migrate(fd);
    fd_table::with_socket(fd, |socket| match socket.is_nonblocking() {
        true => fail(libc::EINPROGRESS),
        false => wait_until_connected(fd, socket),
    })
}

/// Returns the local address and port that the program bound, if any. Returns `None` if they do not fit the destination; the
/// kernel then fails the call.
fn local_end(
    fd: c_int,
    datapath_only: Option<SocketAddr>,
    remote: SocketAddr,
    nic_route: NicRoute,
) -> Option<(Option<IpAddr>, Option<u16>)> {
    let Some(bound) = datapath_only.or_else(|| socket_address::bound_addr(fd)) else {
        return Some((nic_route.source, None));
    };
    let ip = bound.ip().to_canonical();
    let port = (bound.port() != 0).then_some(bound.port());
    if ip.is_unspecified() {
        return Some((nic_route.source, port));
    }
    (ip.is_ipv4() == remote.is_ipv4()).then_some((Some(ip), port))
}

fn errno_of_connect(error: &OpenError) -> c_int {
    match errno_of_open(error) {
        // A connection from this port to the same peer exists. Linux reports EADDRNOTAVAIL.
        libc::EADDRINUSE => libc::EADDRNOTAVAIL,
        number => number,
    }
}

/// Answers a `connect` on a socket that may have been connected before, as Linux does: the outcome of an attempt is reported
/// once, and after a failure the socket can be connected again.
fn connect_state(fd: c_int, socket: &Socket) -> ConnectState {
    if socket.listening.get().is_some_and(|listening| !listening.is_shut_down.load(Ordering::Relaxed)) {
        return ConnectState::Answered(fail(libc::EISCONN));
    }
    let Some(stream) = socket.stream() else { return ConnectState::New(socket.datapath_only_addr) };
    if socket.is_connected.load(Ordering::Relaxed) {
        return ConnectState::Answered(fail(libc::EISCONN));
    }
    if !has_outcome(stream) {
        let answer = if socket.is_nonblocking() { fail(libc::EALREADY) } else { wait_until_connected(fd, socket) };
        return ConnectState::Answered(answer);
    }
    ConnectState::Answered(outcome(fd, socket, stream))
}

/// Returns whether an attempt to connect has succeeded or failed.
fn has_outcome(stream: &TcpStream) -> bool {
    stream.readiness().intersects(Readiness::WRITABLE | Readiness::HANG_UP | Readiness::ERROR)
        || stream.is_connected().unwrap_or(true)
}

fn wait_until_connected(fd: c_int, socket: &Socket) -> c_int {
    let Some(stream) = socket.stream() else { return fail(libc::ENOTCONN) };
    let mut wait = SocketWait::new(fd, socket, Readiness::WRITABLE, socket.timeout(Readiness::WRITABLE));
    while !has_outcome(stream) {
        match wait.wait(socket, Some(LINK_CHECK_INTERVAL)) {
            // Without a link, no answer will come from the peer.
            Ok(()) if stream.link_is_lost() => {
                reset(fd, socket);
                return fail(libc::EHOSTUNREACH);
            }
            Ok(()) => {}
            Err(Error::TimedOut) => return fail(libc::EINPROGRESS),
            // A signal ends the call, and the attempt continues.
            Err(error) => return fail(errno_of(&error)),
        }
    }
    outcome(fd, socket, stream)
}

/// Reports the outcome of an attempt. After a failure the socket is as before the attempt.
fn outcome(fd: c_int, socket: &Socket, stream: &TcpStream) -> c_int {
    if stream.is_connected().unwrap_or(false) {
        socket.is_connected.store(true, Ordering::Relaxed);
        return 0;
    }
    // The connection may have been made and closed since; then an error or the end of the stream can be read.
    let error = stream.take_error().ok().flatten();
    let answer = fail(error.map_or(libc::ECONNABORTED, errno_of_socket_error));
    crate::errno::preserve_errno(|| reset(fd, socket));
    answer
}

/// Makes the descriptor's socket one without a connection.
fn reset(fd: c_int, socket: &Socket) {
    match socket.datapath_only_addr {
        None => fd_table::remove(fd),
        datapath_only => {
            fd_table::insert(fd, Arc::new(Entry::Socket(Socket::new(fd, datapath_only))));
        }
    }
}

/// Ends the connection with a reset, as `connect` to AF_UNSPEC does. The kernel then does the same to its own socket, which
/// has no connection.
fn disconnect(fd: c_int) -> Option<c_int> {
    fd_table::with_socket(fd, |socket| {
        if let Some(stream) = socket.stream() {
            // The call fails if the connection was reset already.
            let _ = stream.set_linger(Some(Duration::ZERO));
            reset(fd, socket);
        }
        if let Some(listening) = socket.listening.get() {
            listening.shut_down(socket.listener());
        }
        socket.datapath_only_addr.map(|_| 0)
    })
    .flatten()
}

/// `shutdown(2)`.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    let answer = fd_table::with_socket(fd, |socket| {
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Some(fail(libc::EINVAL)),
        };
        if let Some(listening) = socket.listening.get()
            && how != Shutdown::Write
        {
            listening.shut_down(socket.listener());
        }
        if let Some(datagram) = socket.datagram() {
            return Some(datagram.shutdown(how));
        }
        let stream = socket.stream()?;
        if !has_outcome(stream) {
            reset(fd, socket);
            return Some(0);
        }
        Some(stream.shutdown(how).map_or_else(|error| fail(errno_of(&error)), |()| 0))
    });
    // SAFETY: the call takes no pointers.
    answer.flatten().unwrap_or_else(|| unsafe { real::SHUTDOWN.get()(fd, how) })
}
