//! Interposed `setsockopt(2)`, `getsockopt(2)`, `fcntl(2)` and `ioctl(2)`.
//!
//! The kernel socket stores every option, and reports it. The options that the datapath has are applied to the datapath
//! socket too ([`socket_options`](super::socket_options)). An option that it does not have stays in the kernel socket, or makes
//! the socket the kernel's ([`option_policy`], [`unknown_options`]).
//!
//! SO_ERROR, SO_INCOMING_NAPI_ID, TCP_INFO, TCP_MAXSEG, FIONREAD, TIOCOUTQ and SIOCOUTQNSD report the datapath socket's
//! values.

use libc::{c_int, c_ulong, c_void, socklen_t};

use super::context::is_uninterposed;
use super::error_codes::{errno_of_socket_error, fail};
use super::handover::{Reason, hand_over};
use super::socket::{Role, Socket};
use super::{fd_table, option_policy, tcp_info, unknown_options};
use crate::real;

/// `setsockopt(2)`.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    from: *const c_void,
    length: socklen_t,
) -> c_int {
    if is_uninterposed() {
        // A hand-over sets options of the program's socket, under the lock of its shard.
        // SAFETY: the caller's guarantees are passed on.
        return unsafe { real::SETSOCKOPT.get()(fd, level, option, from, length) };
    }
    if option_policy::comes_before(level, option) {
        hand_over(fd, Reason::Option(option_policy::name(level, option)));
    }
    // SAFETY: the caller's guarantees are passed on.
    let mut answer = unsafe { real::SETSOCKOPT.get()(fd, level, option, from, length) };
    let is_stream = || fd_table::with_socket(fd, |socket| socket.stream().is_some()) == Some(true);
    if answer != 0
        && crate::errno::errno() == libc::ENOTCONN
        && is_stream()
        && hand_over(fd, Reason::Option(option_policy::name(level, option)))
    {
        // The option needs a connection (TCP_ULP for kTLS), which the kernel now has.
        // SAFETY: as above.
        answer = unsafe { real::SETSOCKOPT.get()(fd, level, option, from, length) };
    }
    if answer == 0 {
        let is_kernels = fd_table::with_socket(fd, |socket| {
            socket.sync_option(fd, level, option);
            socket.datagram().is_some_and(|datagram| datagram.leaves_for(level, option))
        });
        if is_kernels == Some(true) {
            fd_table::remove(fd);
        }
        unknown_options::check(fd, level, option, is_kernels == Some(false));
    }
    answer
}

/// `getsockopt(2)`.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    to: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's guarantees are passed on.
    let answer = unsafe { real::GETSOCKOPT.get()(fd, level, option, to, length) };
    if answer == 0 && (level, option) == (libc::IPPROTO_TCP, libc::TCP_INFO) {
        // SAFETY: the kernel has written the answer and its length, and nothing else has the buffer.
        let answer = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), length.read() as usize) };
        fd_table::with_socket(fd, |socket| tcp_info::write(socket, answer));
    }
    if answer == 0
        && let Some(Some(value)) = fd_table::with_socket(fd, |socket| datapath_option(socket, level, option))
        // SAFETY: the kernel has written the answer and its length.
        && unsafe { length.read() } as usize == size_of::<c_int>()
    {
        // SAFETY: as above; the buffer has room for an int, which need not be aligned.
        unsafe { to.cast::<c_int>().write_unaligned(value) };
    }
    answer
}

/// Returns the value of an option that the kernel socket cannot know.
fn datapath_option(socket: &Socket, level: c_int, option: c_int) -> Option<c_int> {
    if (level, option) == (libc::IPPROTO_TCP, libc::TCP_MAXSEG) {
        let info = socket.stream()?.info().ok()?;
        return c_int::try_from(info.segment_size).ok();
    }
    if level != libc::SOL_SOCKET {
        return None;
    }
    match option {
        libc::SO_ERROR => {
            let error = match socket.datagram() {
                Some(datagram) => datagram.socket.take_error(),
                None => socket.stream().map_or(Ok(None), |stream| stream.take_error()),
            };
            let error = error.ok().flatten();
            Some(error.map_or(0, errno_of_socket_error))
        }
        // A listener without a kernel socket that listens.
        libc::SO_ACCEPTCONN => socket.datapath_only_addr.map(|_| c_int::from(socket.listening.get().is_some())),
        libc::SO_INCOMING_NAPI_ID => socket.stream().map(|stream| stream.incoming_napi_id() as c_int),
        _ => None,
    }
}

/// `fcntl(2)`. The third argument is an int, a pointer or absent, depending on the command; both architectures pass all of
/// them alike.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same semantics as the C library's function, and compatible with its calls.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => super::close::before_dup(fd, c_int::MAX),
        libc::F_SETFL if argument & libc::O_ASYNC as c_ulong != 0 => {
            hand_over(fd, Reason::Call("O_ASYNC"));
        }
        _ => {}
    }
    // SAFETY: the caller's guarantees are passed on.
    let answer = unsafe { real::FCNTL.get()(fd, command, argument) };
    if answer < 0 {
        return answer;
    }
    match command {
        libc::F_SETFL => {
            let on = argument & libc::O_NONBLOCK as c_ulong != 0;
            fd_table::with_socket(fd, |socket| socket.set_nonblocking(on));
        }
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => super::close::duplicated(fd, answer),
        _ => {}
    }
    answer
}

/// `fcntl(2)`, as programs with large-file support call it.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same semantics as the C library's function, and compatible with its calls.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    // SAFETY: the caller's guarantees are passed on.
    unsafe { fcntl(fd, command, argument) }
}

/// `ioctl(2)`.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same semantics as the C library's function, and compatible with its calls.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int {
    // SAFETY: the caller's guarantees are passed on.
    if let Some(answer) = unsafe { super::epoll_calls::ioctl(fd, request, argument) } {
        return answer;
    }
    if request == SIOCATMARK {
        hand_over(fd, Reason::Call("SIOCATMARK"));
    }
    if matches!(request, libc::FIONREAD | libc::TIOCOUTQ | SIOCOUTQNSD)
        && let Some(count) = fd_table::with_socket(fd, |socket| queued_bytes(socket, request)).flatten()
    {
        let to = argument as *mut c_int;
        return match count {
            Ok(_) if to.is_null() => fail(libc::EFAULT),
            Ok(count) => {
                // SAFETY: the request's argument is a pointer to an int.
                unsafe { to.write(count) };
                0
            }
            Err(number) => fail(number),
        };
    }
    // SAFETY: the caller's guarantees are passed on.
    let answer = unsafe { real::IOCTL.get()(fd, request, argument) };
    if answer == 0 && request == libc::FIONBIO {
        // SAFETY: the request's argument is a pointer to an int, which the kernel has just read.
        let on = unsafe { (argument as *const c_int).read() } != 0;
        fd_table::with_socket(fd, |socket| socket.set_nonblocking(on));
    }
    answer
}

/// Returns whether urgent data comes next (`sockatmark(3)`).
const SIOCATMARK: c_ulong = 0x8905;

/// Returns the number of bytes that were never sent (`linux/sockios.h`).
const SIOCOUTQNSD: c_ulong = 0x894b;

/// Returns the number of bytes that can be read, or that are unsent or unacknowledged. Returns `None` if the kernel socket
/// shall answer.
fn queued_bytes(socket: &Socket, request: c_ulong) -> Option<Result<c_int, c_int>> {
    let count = match (socket.role.get()?, request) {
        (Role::Stream(stream), libc::FIONREAD) => stream.readable_bytes(),
        (Role::Stream(stream), libc::TIOCOUTQ) => stream.unacknowledged_bytes(),
        (Role::Stream(stream), _) => stream.unsent_bytes(),
        (Role::Datagram(datagram), libc::FIONREAD) => datagram.socket.next_bytes().map(Option::unwrap_or_default),
        (Role::Datagram(_), libc::TIOCOUTQ) => Ok(0),
        (Role::Datagram(_), _) => return Some(Err(libc::ENOTTY)),
        (Role::Listener(_), _) => return Some(Err(libc::EINVAL)),
    };
    // A closed connection has none.
    Some(Ok(c_int::try_from(count.unwrap_or(0)).unwrap_or(c_int::MAX)))
}
