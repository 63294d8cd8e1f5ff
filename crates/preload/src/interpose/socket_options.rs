//! Socket options that the kernel socket stores and the datapath applies.
//!
//! They are read from the kernel socket when it becomes a datapath socket, and after each `setsockopt`. An accepted
//! connection inherits its listener's options, as in Linux: in the datapath when the SYN arrives, and on its own kernel
//! socket, which reports them, when it is accepted.

use std::sync::OnceLock;
use std::time::Duration;

use abey_datapath::{CongestionControl, Keepalive, TcpOptions};
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
    /// The options of the datapath's TCP. Of SO_LINGER only a time of zero, which resets: `close` waits, not the connection.
    pub(crate) tcp: TcpOptions,
    /// SO_LINGER.
    pub(crate) linger: Option<Duration>,
    pub(crate) read_timeout: Option<Duration>,
    pub(crate) write_timeout: Option<Duration>,
}

/// Options at level SOL_SOCKET that the datapath applies.
const MIRRORED_OF_SOCKET: [c_int; 8] = [
    libc::SO_RCVTIMEO,
    libc::SO_SNDTIMEO,
    libc::SO_LINGER,
    libc::SO_KEEPALIVE,
    libc::SO_RCVBUF,
    libc::SO_SNDBUF,
    libc::SO_RCVBUFFORCE,
    libc::SO_SNDBUFFORCE,
];

/// Options at level IPPROTO_TCP that the datapath applies.
const MIRRORED_OF_TCP: [c_int; 12] = [
    libc::TCP_NODELAY,
    libc::TCP_CORK,
    libc::TCP_KEEPIDLE,
    libc::TCP_KEEPINTVL,
    libc::TCP_KEEPCNT,
    libc::TCP_USER_TIMEOUT,
    libc::TCP_MAXSEG,
    libc::TCP_NOTSENT_LOWAT,
    libc::TCP_CONGESTION,
    libc::TCP_SYNCNT,
    libc::TCP_DEFER_ACCEPT,
    libc::TCP_QUICKACK,
];

/// TCP_MAXSEG of a socket on which it was not set. A program that sets just this value changes nothing.
const UNSET_MAXSEG: c_int = 536;

/// Returns whether the datapath applies this option to a TCP socket.
pub(crate) fn is_mirrored(level: c_int, option: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => MIRRORED_OF_SOCKET.contains(&option),
        libc::IPPROTO_TCP => MIRRORED_OF_TCP.contains(&option),
        libc::IPPROTO_IP => option == libc::IP_TOS,
        libc::IPPROTO_IPV6 => option == libc::IPV6_TCLASS,
        _ => false,
    }
}

impl SocketOptions {
    /// Reads the options of the kernel socket `fd`.
    pub(crate) fn from_kernel_socket(fd: c_int) -> Self {
        let limit = |option| {
            let time = get::<timeval>(fd, libc::SOL_SOCKET, option).as_ref().and_then(duration_from_timeval);
            time.filter(|time| !time.is_zero())
        };
        let linger = get::<linger>(fd, libc::SOL_SOCKET, libc::SO_LINGER).filter(|linger| linger.l_onoff != 0);
        let linger = linger.map(|linger| Duration::from_secs(linger.l_linger.max(0) as u64));
        Self {
            tcp: TcpOptions { linger: linger.filter(Duration::is_zero), ..tcp_options(fd) },
            linger,
            read_timeout: limit(libc::SO_RCVTIMEO),
            write_timeout: limit(libc::SO_SNDTIMEO),
        }
    }

    /// Sets the options on `fd`, the new kernel socket of an accepted connection, which then reports them.
    pub(crate) fn set_on_kernel_socket(&self, fd: c_int) {
        let fresh = fresh();
        if self == fresh {
            return;
        }
        self.set_tcp_options(fd, &fresh.tcp);
        if let Some(time) = self.linger {
            set(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger { l_onoff: 1, l_linger: time.as_secs() as c_int });
        }
        let limits = [(libc::SO_RCVTIMEO, self.read_timeout), (libc::SO_SNDTIMEO, self.write_timeout)];
        for (option, limit) in limits.into_iter().filter_map(|(option, limit)| Some((option, limit?))) {
            set(fd, libc::SOL_SOCKET, option, &timeout::to_timeval(limit));
        }
    }

    /// Sets those options that differ from `fresh`, the options of a new socket.
    fn set_tcp_options(&self, fd: c_int, fresh: &TcpOptions) {
        let own = &self.tcp;
        let set_number = |level, option, value: c_int| set(fd, level, option, &value);
        if let Some(keepalive) = own.keepalive {
            set_number(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
            set_number(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, keepalive.idle.as_secs() as c_int);
            set_number(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, keepalive.interval.as_secs() as c_int);
            set_number(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, c_int::from(keepalive.probes));
        }
        let seconds = |span: Duration| span.as_secs() as c_int;
        let numbers = [
            (libc::SOL_SOCKET, libc::SO_RCVBUF, own.receive_buffer.map(|size| size as c_int)),
            (libc::SOL_SOCKET, libc::SO_SNDBUF, own.send_buffer.map(|size| size as c_int)),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY, own.nodelay.then_some(1)),
            (libc::IPPROTO_TCP, libc::TCP_CORK, own.cork.then_some(1)),
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, own.user_timeout.map(|span| span.as_millis() as c_int)),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG, own.maximum_segment.map(c_int::from)),
            (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, own.unsent_low_water.map(u32::cast_signed)),
            (
                libc::IPPROTO_TCP,
                libc::TCP_SYNCNT,
                own.syn_retries.filter(|_| own.syn_retries != fresh.syn_retries).map(c_int::from),
            ),
            (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, own.defer_accept.map(seconds)),
            (libc::IPPROTO_IP, libc::IP_TOS, Some(own.type_of_service.into()).filter(|value| *value != 0)),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, Some(own.traffic_class.into()).filter(|value| *value != 0)),
        ];
        for (level, option, value) in numbers {
            if let Some(value) = value {
                set_number(level, option, value);
            }
        }
        match own.congestion_control.filter(|_| own.congestion_control != fresh.congestion_control) {
            Some(CongestionControl::Cubic) => set(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, b"cubic"),
            Some(CongestionControl::Reno) => set(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, b"reno"),
            None => false,
        };
    }
}

/// Returns the options of a new kernel socket; some follow the machine's settings.
fn fresh() -> &'static SocketOptions {
    static FRESH: OnceLock<SocketOptions> = OnceLock::new();
    FRESH.get_or_init(|| {
        errno::preserve_errno(|| {
            // SAFETY: the call takes no pointers.
            let fd = unsafe { real::SOCKET.get()(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
            if fd < 0 {
                return SocketOptions::default();
            }
            let options = SocketOptions::from_kernel_socket(fd);
            // SAFETY: the call takes no pointers; no other thread has the descriptor.
            unsafe { real::CLOSE.get()(fd) };
            options
        })
    })
}

/// Reads the options of the datapath's TCP.
fn tcp_options(fd: c_int) -> TcpOptions {
    let locked = int(fd, libc::SOL_SOCKET, SO_BUF_LOCK).unwrap_or(0);
    let size = |lock, option| {
        let size = int(fd, libc::SOL_SOCKET, option).filter(|_| locked & lock != 0)?;
        // The kernel doubles the value that was set (`socket(7)`).
        usize::try_from(size / 2).ok()
    };
    let tcp = |option| int(fd, libc::IPPROTO_TCP, option).filter(|value| *value > 0).map(c_int::cast_unsigned);
    let byte = |level, option| int(fd, level, option).and_then(|value| u8::try_from(value).ok());
    TcpOptions {
        nodelay: tcp(libc::TCP_NODELAY).is_some(),
        cork: tcp(libc::TCP_CORK).is_some(),
        keepalive: (int(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE) == Some(1)).then(|| keepalive(fd)),
        linger: None,
        user_timeout: tcp(libc::TCP_USER_TIMEOUT).map(|millis| Duration::from_millis(millis.into())),
        maximum_segment: int(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG)
            .filter(|size| *size != UNSET_MAXSEG)
            .and_then(|size| u16::try_from(size).ok())
            .filter(|size| *size > 0),
        // All bits set, as a number below zero, is no limit.
        unsent_low_water: tcp(libc::TCP_NOTSENT_LOWAT),
        type_of_service: byte(libc::IPPROTO_IP, libc::IP_TOS).unwrap_or(0),
        traffic_class: byte(libc::IPPROTO_IPV6, libc::IPV6_TCLASS).unwrap_or(0),
        congestion_control: congestion_control(fd),
        syn_retries: byte(libc::IPPROTO_TCP, libc::TCP_SYNCNT),
        defer_accept: tcp(libc::TCP_DEFER_ACCEPT).map(|seconds| Duration::from_secs(seconds.into())),
        receive_buffer: size(RECEIVE_LOCKED, libc::SO_RCVBUF),
        send_buffer: size(SEND_LOCKED, libc::SO_SNDBUF),
    }
}

/// Reads TCP_CONGESTION. Returns `None` for an algorithm that the datapath does not have.
pub(crate) fn congestion_control(fd: c_int) -> Option<CongestionControl> {
    match get::<[u8; 16]>(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION)? {
        name if name.starts_with(b"cubic\0") => Some(CongestionControl::Cubic),
        name if name.starts_with(b"reno\0") => Some(CongestionControl::Reno),
        _ => None,
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
