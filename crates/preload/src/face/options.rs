//! Options and flags: the kernel's socket keeps them, and ours follows those that matter to it.
//!
//! What matters, and is followed ([`kept`](super::kept)): TCP_NODELAY, SO_KEEPALIVE and its times, SO_LINGER, SO_RCVTIMEO and
//! SO_SNDTIMEO, SO_RCVBUF and SO_SNDBUF once they were set. Every other option is taken by the kernel's socket, which tells
//! it again, and changes nothing of ours:
//!
//! * TCP_CORK, TCP_QUICKACK, TCP_DEFER_ACCEPT, TCP_USER_TIMEOUT, TCP_SYNCNT, TCP_FASTOPEN on a listener: only pace and
//!   patience differ. A connection with SO_LINGER and a time is closed at once, and goes on in the background for that long.
//! * TCP_INFO has the state of the connection and nothing else; TCP_MAXSEG, SIOCOUTQ and TCP_CONGESTION are those of a
//!   socket that is not connected.

use abey_datapath::Readiness;
use libc::{c_int, c_ulong, c_void, socklen_t};

use super::errno::{fail, of_network};
use super::socket::{Role, Socket};
use super::table;
use crate::real;

/// `setsockopt(2)`.
///
/// # Safety
/// As the C library's function of this name.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    from: *const c_void,
    length: socklen_t,
) -> c_int {
    // SAFETY: the caller's promises are passed on.
    let answer = unsafe { real::SETSOCKOPT.get()(fd, level, option, from, length) };
    if answer == 0 {
        table::with_socket(fd, |socket| socket.follow(fd, level, option));
    }
    answer
}

/// `getsockopt(2)`.
///
/// # Safety
/// As the C library's function of this name.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    to: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's promises are passed on.
    let answer = unsafe { real::GETSOCKOPT.get()(fd, level, option, to, length) };
    if answer == 0
        && (level, option) == (libc::IPPROTO_TCP, libc::TCP_INFO)
        && let Some(Some(state)) = table::with_socket(fd, tcp_state)
        // SAFETY: the kernel's answer was written there, with its length.
        && unsafe { length.read() } > 0
    {
        // SAFETY: as above; the state is the first byte.
        unsafe { to.cast::<u8>().write(state) };
    }
    if answer == 0
        && level == libc::SOL_SOCKET
        && let Some(Some(value)) = table::with_socket(fd, |socket| state_of(socket, option))
        // SAFETY: the kernel's answer was written there, with its length.
        && unsafe { length.read() } as usize == size_of::<c_int>()
    {
        // SAFETY: as above; the caller's place has room for a number, aligned or not.
        unsafe { to.cast::<c_int>().write_unaligned(value) };
    }
    answer
}

/// The state of a connection as TCP_INFO has it; what else it has is the kernel's socket's, and so nothing.
fn tcp_state(socket: &Socket) -> Option<u8> {
    const ESTABLISHED: u8 = 1;
    const SYN_SENT: u8 = 2;
    const CLOSED: u8 = 7;
    const CLOSE_WAIT: u8 = 8;
    let stream = socket.stream()?;
    let now = stream.readiness();
    Some(match stream.is_connected() {
        Ok(true) if now.contains(Readiness::HANG_UP) => CLOSED,
        Ok(true) if now.contains(Readiness::READ_CLOSED) => CLOSE_WAIT,
        Ok(true) => ESTABLISHED,
        _ if now.is_empty() => SYN_SENT,
        _ => CLOSED,
    })
}

/// What the kernel's socket cannot know.
fn state_of(socket: &Socket, option: c_int) -> Option<c_int> {
    match option {
        libc::SO_ERROR => {
            let error = match socket.datagrams() {
                Some(datagrams) => datagrams.socket.take_error(),
                None => socket.stream().map_or(Ok(None), |stream| stream.take_error()),
            };
            let error = error.ok().flatten();
            Some(error.map_or(0, of_network))
        }
        // One that listens apart from the kernel's.
        libc::SO_ACCEPTCONN => socket.bound_apart.map(|_| c_int::from(socket.listening.get().is_some())),
        libc::SO_INCOMING_NAPI_ID => socket.stream().map(|stream| stream.incoming_napi_id() as c_int),
        _ => None,
    }
}

/// `fcntl(2)`. The third argument is a number, a pointer or nothing, by the command; both architectures pass it alike.
///
/// # Safety
/// As the C library's function of this name.
// SAFETY: has the meaning of the C library's function of this name, and its type as it is called.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    // SAFETY: the caller's promises are passed on.
    let answer = unsafe { real::FCNTL.get()(fd, command, argument) };
    if answer < 0 {
        return answer;
    }
    match command {
        libc::F_SETFL => {
            let on = argument & libc::O_NONBLOCK as c_ulong != 0;
            table::with_socket(fd, |socket| socket.set_nonblocking(on));
        }
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => super::close::duplicated(fd, answer),
        _ => {}
    }
    answer
}

/// `fcntl(2)`, as programs with large files call it.
///
/// # Safety
/// As the C library's function of this name.
// SAFETY: has the meaning of the C library's function of this name, and its type as it is called.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    // SAFETY: the caller's promises are passed on.
    unsafe { fcntl(fd, command, argument) }
}

/// `ioctl(2)`.
///
/// # Safety
/// As the C library's function of this name.
// SAFETY: has the meaning of the C library's function of this name, and its type as it is called.
#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int {
    // SAFETY: the caller's promises are passed on.
    if let Some(answer) = unsafe { super::members::ioctl(fd, request, argument) } {
        return answer;
    }
    if matches!(request, libc::FIONREAD | libc::TIOCOUTQ | SIOCOUTQNSD)
        && let Some(count) = table::with_socket(fd, |socket| waiting(socket, request)).flatten()
    {
        let to = argument as *mut c_int;
        return match count {
            Ok(_) if to.is_null() => fail(libc::EFAULT),
            Ok(count) => {
                // SAFETY: the request's argument is a pointer to a number.
                unsafe { to.write(count) };
                0
            }
            Err(number) => fail(number),
        };
    }
    // SAFETY: the caller's promises are passed on.
    let answer = unsafe { real::IOCTL.get()(fd, request, argument) };
    if answer == 0 && request == libc::FIONBIO {
        // SAFETY: the request's argument is a pointer to a number, which the kernel has just read.
        let on = unsafe { (argument as *const c_int).read() } != 0;
        table::with_socket(fd, |socket| socket.set_nonblocking(on));
    }
    answer
}

/// Bytes that were never sent (`linux/sockios.h`).
const SIOCOUTQNSD: c_ulong = 0x894b;

/// How many bytes wait to be read, or to be sent or acknowledged. `None`: the kernel's socket knows as well.
fn waiting(socket: &Socket, request: c_ulong) -> Option<Result<c_int, c_int>> {
    let count = match (socket.role.get()?, request) {
        (Role::Stream(stream), libc::FIONREAD) => stream.readable_bytes(),
        (Role::Stream(stream), libc::TIOCOUTQ) => stream.unacknowledged_bytes(),
        (Role::Stream(stream), _) => stream.unsent_bytes(),
        (Role::Datagrams(datagrams), libc::FIONREAD) => datagrams.socket.next_bytes().map(Option::unwrap_or_default),
        (Role::Datagrams(_), libc::TIOCOUTQ) => Ok(0),
        (Role::Datagrams(_), _) => return Some(Err(libc::ENOTTY)),
        (Role::Listener(_), _) => return Some(Err(libc::EINVAL)),
    };
    // A connection that is gone has none.
    Some(Ok(c_int::try_from(count.unwrap_or(0)).unwrap_or(c_int::MAX)))
}
