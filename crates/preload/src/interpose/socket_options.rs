//! Socket options that the kernel socket stores and the datapath applies.
//!
//! They are read from the kernel socket when it becomes a datapath socket, and after each `setsockopt`. An accepted
//! connection inherits its listener's options, as in Linux; the listener stores them, so that they are not read again for
//! each connection.

use std::time::Duration;

use abey_datapath::{Keepalive, TcpStream};
use libc::{c_int, c_void, linger, socklen_t, timeval};

use crate::timeout::{self, duration_from_timeval};
use crate::{errno, real};

/// Which buffer sizes the program has set (SO_BUF_LOCK, since Linux 5.14; libc does not define it).
const SO_BUF_LOCK: c_int = 72;
const SEND_LOCKED: c_int = 1;
const RECEIVE_LOCKED: c_int = 2;

/// The options; the default is that of a new socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SocketOptions {
    nodelay: bool,
    keepalive: Option<Keepalive>,
    linger: Option<Duration>,
    pub(crate) read_timeout: Option<Duration>,
    pub(crate) write_timeout: Option<Duration>,
    /// Sizes in bytes, without the kernel's allowance for overhead.
    receive_buffer: Option<usize>,
    send_buffer: Option<usize>,
}

/// Returns whether the datapath applies this option.
pub(crate) fn is_mirrored(level: c_int, option: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => matches!(
            option,
            libc::SO_RCVTIMEO
                | libc::SO_SNDTIMEO
                | libc::SO_LINGER
                | libc::SO_KEEPALIVE
                | libc::SO_RCVBUF
                | libc::SO_SNDBUF
                | libc::SO_RCVBUFFORCE
                | libc::SO_SNDBUFFORCE
        ),
        libc::IPPROTO_TCP => {
            matches!(option, libc::TCP_NODELAY | libc::TCP_KEEPIDLE | libc::TCP_KEEPINTVL | libc::TCP_KEEPCNT)
        }
        _ => false,
    }
}

impl SocketOptions {
    /// Reads the options of the kernel socket `fd`.
    pub(crate) fn from_kernel_socket(fd: c_int) -> Self {
        let locked = int(fd, libc::SOL_SOCKET, SO_BUF_LOCK).unwrap_or(0);
        let size = |lock, option| {
            let size = int(fd, libc::SOL_SOCKET, option).filter(|_| locked & lock != 0)?;
            // The kernel doubles the value that was set (`socket(7)`).
            usize::try_from(size / 2).ok()
        };
        let limit = |option| {
            let time = get::<timeval>(fd, libc::SOL_SOCKET, option).as_ref().and_then(duration_from_timeval);
            time.filter(|time| !time.is_zero())
        };
        let linger = get::<linger>(fd, libc::SOL_SOCKET, libc::SO_LINGER).filter(|linger| linger.l_onoff != 0);
        Self {
            nodelay: int(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY) == Some(1),
            keepalive: (int(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE) == Some(1)).then(|| keepalive(fd)),
            linger: linger.map(|linger| Duration::from_secs(linger.l_linger.max(0) as u64)),
            read_timeout: limit(libc::SO_RCVTIMEO),
            write_timeout: limit(libc::SO_SNDTIMEO),
            receive_buffer: size(RECEIVE_LOCKED, libc::SO_RCVBUF),
            send_buffer: size(SEND_LOCKED, libc::SO_SNDBUF),
        }
    }

    /// Applies the options that differ from `before` to a connection.
    pub(crate) fn apply(&self, before: &Self, stream: &TcpStream) {
        // Fails only if the connection is closed.
        let _ = self.try_apply(before, stream);
    }

    fn try_apply(&self, before: &Self, stream: &TcpStream) -> Result<(), abey_datapath::Error> {
        if self.nodelay != before.nodelay {
            stream.set_nodelay(self.nodelay)?;
        }
        if self.keepalive != before.keepalive {
            stream.set_keepalive(self.keepalive)?;
        }
        if self.linger != before.linger {
            stream.set_linger(self.linger)?;
        }
        if let Some(bytes) = self.receive_buffer.filter(|_| self.receive_buffer != before.receive_buffer) {
            stream.set_receive_buffer(bytes)?;
        }
        if let Some(bytes) = self.send_buffer.filter(|_| self.send_buffer != before.send_buffer) {
            stream.set_send_buffer(bytes)?;
        }
        Ok(())
    }

    /// Sets the options on `fd`, the new kernel socket of an accepted connection, which then reports them.
    pub(crate) fn set_on_kernel_socket(&self, fd: c_int) {
        if *self == Self::default() {
            return;
        }
        let set_number = |level, option, value: c_int| set(fd, level, option, &value);
        if self.nodelay {
            set_number(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
        }
        if let Some(keepalive) = self.keepalive {
            set_number(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
            set_number(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, keepalive.idle.as_secs() as c_int);
            set_number(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, keepalive.interval.as_secs() as c_int);
            set_number(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, c_int::from(keepalive.probes));
        }
        if let Some(time) = self.linger {
            set(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger { l_onoff: 1, l_linger: time.as_secs() as c_int });
        }
        let limits = [(libc::SO_RCVTIMEO, self.read_timeout), (libc::SO_SNDTIMEO, self.write_timeout)];
        for (option, limit) in limits.into_iter().filter_map(|(option, limit)| Some((option, limit?))) {
            set(fd, libc::SOL_SOCKET, option, &timeout::to_timeval(limit));
        }
        let sizes = [(libc::SO_RCVBUF, self.receive_buffer), (libc::SO_SNDBUF, self.send_buffer)];
        for (option, size) in sizes.into_iter().filter_map(|(option, size)| Some((option, size?))) {
            set_number(libc::SOL_SOCKET, option, size as c_int);
        }
    }
}

fn keepalive(fd: c_int) -> Keepalive {
    let ask = |option| int(fd, libc::IPPROTO_TCP, option).and_then(|value| u64::try_from(value).ok());
    let usual = Keepalive::default();
    Keepalive {
        idle: ask(libc::TCP_KEEPIDLE).map_or(usual.idle, Duration::from_secs),
        interval: ask(libc::TCP_KEEPINTVL).map_or(usual.interval, Duration::from_secs),
        probes: ask(libc::TCP_KEEPCNT).and_then(|value| u8::try_from(value).ok()).unwrap_or(usual.probes),
    }
}

/// Reads an integer option of the kernel socket.
pub(crate) fn int(fd: c_int, level: c_int, option: c_int) -> Option<c_int> {
    get(fd, level, option)
}

/// Reads an option of the kernel socket; `T` is its C type.
pub(crate) fn get<T: Copy>(fd: c_int, level: c_int, option: c_int) -> Option<T> {
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    let mut length = size_of::<T>() as socklen_t;
    errno::preserve_errno(|| {
        // SAFETY: the value has room for `length` bytes, and every bit pattern is valid for these plain C structures.
        unsafe {
            let to: *mut c_void = value.as_mut_ptr().cast();
            (real::GETSOCKOPT.get()(fd, level, option, to, &raw mut length) == 0).then(|| value.assume_init())
        }
    })
}

/// Sets an option of the kernel socket; `T` is its C type. Returns whether the call succeeded.
pub(crate) fn set<T: Copy>(fd: c_int, level: c_int, option: c_int, value: &T) -> bool {
    let length = size_of::<T>() as socklen_t;
    // SAFETY: `value` has `length` bytes and lives through the call.
    errno::preserve_errno(|| unsafe {
        real::SETSOCKOPT.get()(fd, level, option, std::ptr::from_ref(value).cast(), length) == 0
    })
}

/// Returns whether the kernel socket `fd` is a TCP socket.
pub(crate) fn is_tcp(fd: c_int) -> bool {
    int(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
}
