//! The calls that make a socket what it is: bind, accept, connect, shutdown, and whose addresses they are.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use abey_datapath::{Error, OpenError, Readiness, Shutdown, TcpStream};
use libc::{c_int, sockaddr, socklen_t};

use super::errno::{fail, of, of_network, of_open};
use super::kept::{Kept, number};
use super::route::{self, Way};
use super::socket::{Role, Socket};
use super::table::{self, Object};
use super::watch::Waiting;
use super::{accept, address, config, inside, is_own, is_tcp, listen, members, runtime, signals, udp};
use crate::report::Topic;
use crate::{real, report};

/// How often who waits to be connected looks whether the link is still there.
const LOOK_AT_LINK: Duration = Duration::from_millis(100);

/// `bind(2)`.
///
/// # Safety
/// As the C library's function of this name.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn bind(fd: c_int, to: *const sockaddr, length: socklen_t) -> c_int {
    // SAFETY: the caller's promises are passed on.
    let pass_on = || unsafe { real::BIND.get()(fd, to, length) };
    if table::with_socket(fd, |socket| socket.stream().is_some()) == Some(true) {
        return fail(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    let at = unsafe { address::read(to, length) };
    let ours = at.and_then(|at| udp::bind(fd, at, pass_on).or_else(|| listen::bind(fd, at, pass_on)));
    ours.unwrap_or_else(pass_on)
}

/// `accept(2)`.
///
/// # Safety
/// As the C library's function of this name.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn accept(fd: c_int, peer: *mut sockaddr, length: *mut socklen_t) -> c_int {
    signals::test_cancel();
    signals::test_cancel();
    // SAFETY: the caller's promises are passed on.
    unsafe {
        while let Some(answer) = accept::accept(fd, peer, length, 0) {
            if !signals::is_restarted(answer < 0) {
                return answer;
            }
        }
        let new = real::ACCEPT.get()(fd, peer, length);
        table::forget(new);
        new
    }
}

/// `accept4(2)`.
///
/// # Safety
/// As the C library's function of this name.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn accept4(fd: c_int, peer: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int {
    signals::test_cancel();
    signals::test_cancel();
    // SAFETY: the caller's promises are passed on.
    unsafe {
        while let Some(answer) = accept::accept(fd, peer, length, flags) {
            if !signals::is_restarted(answer < 0) {
                return answer;
            }
        }
        let new = real::ACCEPT4.get()(fd, peer, length, flags);
        table::forget(new);
        new
    }
}

/// `connect(2)`.
///
/// # Safety
/// As the C library's function of this name.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn connect(fd: c_int, to: *const sockaddr, length: socklen_t) -> c_int {
    // SAFETY: the caller's promises.
    if let Some(answer) = unsafe { udp::connect(fd, to, length) } {
        return answer;
    }
    // SAFETY: the caller's promise.
    let ours = || unsafe {
        match address::read(to, length) {
            Some(to) => connect_ours(fd, to),
            None if address::family(to, length) == Some(libc::AF_UNSPEC) => disconnect(fd),
            None => None,
        }
    };
    while let Some(answer) = ours() {
        if !signals::is_restarted(answer < 0) {
            return answer;
        }
    }
    // SAFETY: the caller's promises are passed on.
    unsafe { real::CONNECT.get()(fd, to, length) }
}

/// How far a socket of ours is when it is to connect.
enum Before {
    /// It has a connection, or made one before.
    Answer(c_int),
    /// It is new; it may be bound apart from the kernel's.
    New(Option<SocketAddr>),
}

fn connect_ours(fd: c_int, to: SocketAddr) -> Option<c_int> {
    let config = config()?;
    let apart = match table::with_socket(fd, |socket| before(fd, socket)) {
        Some(Before::Answer(answer)) => return Some(answer),
        Some(Before::New(apart)) => apart,
        None => None,
    };
    let way = route::to(config, to)?;
    if !is_tcp(fd) || !route::may_use_device(config, fd) {
        return None;
    }
    let socket = Socket::new(fd, apart);
    let only_v6 = socket.is_v6 && number(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) == Some(1);
    let remote = SocketAddr::new(to.ip().to_canonical(), to.port());
    // The kernel has words for an address that does not fit the socket.
    if socket.is_v6 != to.is_ipv6() || only_v6 && remote.is_ipv4() {
        return None;
    }
    let (address, port) = own_end(fd, apart, remote, way)?;
    if address.is_some_and(|address| !is_own(config, SocketAddr::new(address, 0))) {
        return None;
    }
    let runtime = runtime(config)?;
    let stream = match inside(|| TcpStream::connect_from(runtime, address, port, remote)) {
        Ok(stream) => stream,
        Err(error @ OpenError::NoSteering(_)) => {
            report::say_once(Topic::Datapath, format_args!("{error}; it goes by the kernel"));
            return None;
        }
        Err(error) => return Some(fail(of_connect(&error))),
    };
    socket.become_role(Role::Stream(stream), Arc::new(Kept::of(fd)));
    if !table::put(fd, Arc::new(Object::Socket(socket))) {
        return Some(fail(libc::EMFILE));
    }
    members::adopt(fd);
    table::with_socket(fd, |socket| match socket.is_nonblocking() {
        true => fail(libc::EINPROGRESS),
        false => wait_until_connected(fd, socket),
    })
}

/// The end that the program bound, if it did: address and port. `None`: it does not fit, and the kernel says so.
fn own_end(
    fd: c_int,
    apart: Option<SocketAddr>,
    remote: SocketAddr,
    way: Way,
) -> Option<(Option<IpAddr>, Option<u16>)> {
    let Some(bound) = apart.or_else(|| address::own(fd)) else { return Some((way.source, None)) };
    let ip = bound.ip().to_canonical();
    let port = (bound.port() != 0).then_some(bound.port());
    if ip.is_unspecified() {
        return Some((way.source, port));
    }
    (ip.is_ipv4() == remote.is_ipv4()).then_some((Some(ip), port))
}

fn of_connect(error: &OpenError) -> c_int {
    match of_open(error) {
        // From this port there is a connection to the same peer: Linux says it in these words.
        libc::EADDRINUSE => libc::EADDRNOTAVAIL,
        number => number,
    }
}

/// As Linux answers who connects again: the state of an attempt is told once, and what failed can be tried anew.
fn before(fd: c_int, socket: &Socket) -> Before {
    if socket.listening.get().is_some_and(|listening| !listening.is_shut.load(Ordering::Relaxed)) {
        return Before::Answer(fail(libc::EISCONN));
    }
    let Some(stream) = socket.stream() else { return Before::New(socket.bound_apart) };
    if socket.is_connected.load(Ordering::Relaxed) {
        return Before::Answer(fail(libc::EISCONN));
    }
    if !is_decided(stream) {
        let answer = if socket.is_nonblocking() { fail(libc::EALREADY) } else { wait_until_connected(fd, socket) };
        return Before::Answer(answer);
    }
    Before::Answer(outcome(fd, socket, stream))
}

/// Whether an attempt to connect is over.
fn is_decided(stream: &TcpStream) -> bool {
    stream.readiness().intersects(Readiness::WRITABLE | Readiness::HANG_UP | Readiness::ERROR)
        || stream.is_connected().unwrap_or(true)
}

fn wait_until_connected(fd: c_int, socket: &Socket) -> c_int {
    let Some(stream) = socket.stream() else { return fail(libc::ENOTCONN) };
    let mut waiting = Waiting::new(fd, socket, Readiness::WRITABLE, socket.limit(Readiness::WRITABLE));
    while !is_decided(stream) {
        match waiting.wait(socket, Some(LOOK_AT_LINK)) {
            // A peer at the other end of the wire that has gone will not answer.
            Ok(()) if stream.link_is_lost() => {
                renew(fd, socket);
                return fail(libc::EHOSTUNREACH);
            }
            Ok(()) => {}
            Err(Error::TimedOut) => return fail(libc::EINPROGRESS),
            // One that a signal ends goes on being made.
            Err(error) => return fail(of(&error)),
        }
    }
    outcome(fd, socket, stream)
}

/// What has become of an attempt. After a failure the socket is as it was before.
fn outcome(fd: c_int, socket: &Socket, stream: &TcpStream) -> c_int {
    if stream.is_connected().unwrap_or(false) {
        socket.is_connected.store(true, Ordering::Relaxed);
        return 0;
    }
    // The peer may have come and gone since; then there is an error or the end to be read.
    let error = stream.take_error().ok().flatten();
    let answer = fail(error.map_or(libc::ECONNABORTED, of_network));
    crate::state::keep_errno(|| renew(fd, socket));
    answer
}

/// The number is a socket's again that is not connected.
fn renew(fd: c_int, socket: &Socket) {
    match socket.bound_apart {
        None => table::forget(fd),
        apart => {
            table::put(fd, Arc::new(Object::Socket(Socket::new(fd, apart))));
        }
    }
}

/// `connect` to no address: ends the connection, with a reset. Then the kernel's socket does the same, with nothing to end.
fn disconnect(fd: c_int) -> Option<c_int> {
    table::with_socket(fd, |socket| {
        if let Some(stream) = socket.stream() {
            // One that is gone is reset already.
            let _ = stream.set_linger(Some(Duration::ZERO));
            renew(fd, socket);
        }
        if let Some(listening) = socket.listening.get() {
            listening.shut(socket.listener());
        }
        socket.bound_apart.map(|_| 0)
    })
    .flatten()
}

/// `shutdown(2)`.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    let ours = table::with_socket(fd, |socket| {
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Some(fail(libc::EINVAL)),
        };
        if let Some(listening) = socket.listening.get()
            && how != Shutdown::Write
        {
            listening.shut(socket.listener());
        }
        if let Some(datagrams) = socket.datagrams() {
            return Some(datagrams.shutdown(how));
        }
        let stream = socket.stream()?;
        if !is_decided(stream) {
            renew(fd, socket);
            return Some(0);
        }
        Some(stream.shutdown(how).map_or_else(|error| fail(of(&error)), |()| 0))
    });
    // SAFETY: takes no pointers.
    ours.flatten().unwrap_or_else(|| unsafe { real::SHUTDOWN.get()(fd, how) })
}

/// `getsockname(2)`.
///
/// # Safety
/// As the C library's function of this name.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getsockname(fd: c_int, to: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let ours = table::with_socket(fd, |socket| {
        let known = match socket.datagrams() {
            Some(datagrams) => datagrams.socket.local_addr().ok(),
            None => socket.stream().and_then(|stream| stream.local_addr().ok()),
        };
        Some((known.or(socket.bound_apart)?, socket.is_v6))
    });
    match ours.flatten() {
        // SAFETY: the caller's promises.
        Some((own, is_v6)) => unsafe { tell(own, is_v6, to, length) },
        // SAFETY: the caller's promises are passed on.
        None => unsafe { real::GETSOCKNAME.get()(fd, to, length) },
    }
}

/// `getpeername(2)`.
///
/// # Safety
/// As the C library's function of this name.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getpeername(fd: c_int, to: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let ours = table::with_socket(fd, |socket| {
        if let Some(datagrams) = socket.datagrams() {
            return (datagrams.socket.peer_addr().ok(), socket.is_v6);
        }
        let stream = socket.stream().filter(|stream| stream.is_connected().unwrap_or(false));
        (stream.and_then(|stream| stream.peer_addr().ok()), socket.is_v6)
    });
    match ours {
        // SAFETY: the caller's promises.
        Some((Some(peer), is_v6)) => unsafe { tell(peer, is_v6, to, length) },
        Some((None, _)) => fail(libc::ENOTCONN),
        // SAFETY: the caller's promises are passed on.
        None => unsafe { real::GETPEERNAME.get()(fd, to, length) },
    }
}

unsafe fn tell(at: SocketAddr, is_v6: bool, to: *mut sockaddr, length: *mut socklen_t) -> c_int {
    if to.is_null() || length.is_null() {
        return fail(libc::EFAULT);
    }
    // SAFETY: the caller's promises.
    unsafe { address::write(at, is_v6, to, length) };
    0
}
