//! A socket of ours: what it has become, and the options of the kernel's socket that stands for it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use abey_datapath::{Readiness, Source, TcpListener, TcpStream};
use libc::c_int;

use super::datagrams::Datagrams;
use super::inside;
use super::kept::{Kept, is_kept, number};
use super::listen::Listening;
use crate::{real, state};

/// A descriptor's socket.
#[derive(Debug)]
pub(crate) struct Socket {
    /// It was made for IPv6, and is told IPv4 addresses in that form.
    pub(crate) is_v6: bool,
    /// Where the program thinks that it is bound, although the kernel's socket is not: see [`mod@super::listen`].
    pub(crate) bound_apart: Option<SocketAddr>,
    /// It listens, be it in the kernel only so far.
    pub(crate) listening: OnceLock<Box<Listening>>,
    /// What it has become.
    pub(crate) role: OnceLock<Role>,
    /// A connection that this end made was told to be there: `connect` does so once for one that is made without waiting.
    pub(crate) is_connected: AtomicBool,
    /// O_NONBLOCK, as it was set last through this library.
    nonblocking: AtomicBool,
    /// How long calls that read and that write wait at most, in nanoseconds; 0: without end.
    limits: [AtomicU64; 2],
    /// The options that its connection has, or its connections begin with.
    kept: Mutex<Arc<Kept>>,
}

/// What a socket becomes.
#[derive(Debug)]
pub(crate) enum Role {
    /// Several listeners of a group (SO_REUSEPORT) may be one.
    Listener(Arc<TcpListener>),
    Stream(TcpStream),
    Datagrams(Datagrams),
}

impl Role {
    /// What is waited for, and added to epolls.
    pub(crate) fn source(&self) -> &dyn Source {
        match self {
            Self::Listener(listener) => &**listener,
            Self::Stream(stream) => stream,
            Self::Datagrams(datagrams) => &datagrams.socket,
        }
    }

    pub(crate) fn readiness(&self) -> Readiness {
        match self {
            Self::Listener(listener) => listener.readiness(),
            Self::Stream(stream) => stream.readiness(),
            Self::Datagrams(datagrams) => datagrams.socket.readiness(),
        }
    }
}

impl Socket {
    /// One that stands for the kernel's socket `fd`, which may not be bound where the program thinks.
    pub(crate) fn new(fd: c_int, bound_apart: Option<SocketAddr>) -> Self {
        let is_v6 = number(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) == Some(libc::AF_INET6);
        // SAFETY: takes no pointers.
        let flags = unsafe { real::FCNTL.get()(fd, libc::F_GETFL, 0) };
        Self::with(is_v6, bound_apart, flags >= 0 && flags & libc::O_NONBLOCK != 0)
    }

    fn with(is_v6: bool, bound_apart: Option<SocketAddr>, nonblocking: bool) -> Self {
        Self {
            is_v6,
            bound_apart,
            listening: OnceLock::new(),
            role: OnceLock::new(),
            is_connected: AtomicBool::new(false),
            nonblocking: AtomicBool::new(nonblocking),
            limits: Default::default(),
            kept: Mutex::default(),
        }
    }

    /// An accepted connection, with the options of its listener, for which the kernel's socket `fd` stands.
    pub(crate) fn accepted(listener: &Self, fd: c_int, stream: TcpStream, nonblocking: bool) -> Self {
        let socket = Self::with(listener.is_v6, None, nonblocking);
        let kept = listener.kept();
        kept.set_on(fd);
        socket.become_role(Role::Stream(stream), kept);
        socket
    }

    pub(crate) fn stream(&self) -> Option<&TcpStream> {
        match self.role.get() {
            Some(Role::Stream(stream)) => Some(stream),
            _ => None,
        }
    }

    pub(crate) fn datagrams(&self) -> Option<&Datagrams> {
        match self.role.get() {
            Some(Role::Datagrams(datagrams)) => Some(datagrams),
            _ => None,
        }
    }

    pub(crate) fn listener(&self) -> Option<&TcpListener> {
        match self.role.get() {
            Some(Role::Listener(listener)) => Some(listener),
            _ => None,
        }
    }

    /// Called by whatever is about to wait for this socket, or to add it to an epoll, under its number `fd`: a listener
    /// that opens late opens now, and its role may have appeared afterwards.
    pub(crate) fn prepare(&self, fd: c_int) {
        if self.role.get().is_none()
            && let Some(listening) = self.listening.get()
        {
            listening.open(self, fd);
        }
    }

    /// Whether the kernel's socket of the same number does something as well: one that listens there accepts the kernel's
    /// connections too. Who waits for such a socket watches both sides.
    pub(crate) fn has_kernel_side(&self) -> bool {
        self.listening.get().is_some_and(|listening| listening.has_kernel_side)
            || self.datagrams().is_some_and(Datagrams::has_kernel_side)
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    pub(crate) fn set_nonblocking(&self, on: bool) {
        self.nonblocking.store(on, Ordering::Relaxed);
    }

    /// The options as they were set last.
    pub(crate) fn kept(&self) -> Arc<Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The socket becomes `role`, with these options.
    pub(crate) fn become_role(&self, role: Role, kept: Arc<Kept>) {
        // What waits is `watch`, where signals end it.
        match &role {
            Role::Listener(listener) => listener.set_nonblocking(true),
            Role::Stream(stream) => stream.set_nonblocking(true),
            Role::Datagrams(datagrams) => datagrams.socket.set_nonblocking(true),
        }
        kept.apply(&Kept::default(), &role);
        self.keep(kept);
        // Of two threads that do this at the same time one wins, and the other's is closed.
        let _ = self.role.set(role);
    }

    /// The options that it had before.
    fn keep(&self, kept: Arc<Kept>) -> Arc<Kept> {
        for (limit, now) in self.limits.iter().zip([kept.read_timeout, kept.write_timeout]) {
            limit.store(now.map_or(0, |now| now.as_nanos() as u64), Ordering::Relaxed);
        }
        std::mem::replace(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner), kept)
    }

    /// How long a call waits at most that waits for `interest` (SO_RCVTIMEO, SO_SNDTIMEO).
    pub(crate) fn limit(&self, interest: Readiness) -> Option<Duration> {
        let [read, write] = &self.limits;
        let limit = if interest.contains(Readiness::WRITABLE) { write } else { read };
        let nanos = limit.load(Ordering::Relaxed);
        (nanos != 0).then(|| Duration::from_nanos(nanos))
    }

    /// Takes over an option that was set on the kernel's socket, if it is one of those that matter to ours.
    pub(crate) fn follow(&self, fd: c_int, level: c_int, option: c_int) {
        if let Some(datagrams) = self.datagrams() {
            state::keep_errno(|| datagrams.follow(fd, level, option));
        }
        let Some(role) = self.role.get().filter(|_| is_kept(level, option)) else { return };
        state::keep_errno(|| {
            let now = Arc::new(Kept::of(fd));
            now.apply(&self.keep(now.clone()), role);
        });
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Closing a connection may give ports back, which closes descriptors of the runtime's.
        let role = self.role.take();
        let listening = self.listening.take();
        inside(|| drop((role, listening)));
    }
}
