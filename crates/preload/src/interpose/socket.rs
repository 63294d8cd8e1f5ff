//! A datapath socket: its role, and the options that it shares with the kernel socket of the same descriptor.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use abey_datapath::handover::HandedOver;
use abey_datapath::{Readiness, Source, TcpListener, TcpStream};
use libc::c_int;

use super::context::uninterposed;
use super::datagram::DatagramSocket;
use super::direct_epoll;
use super::lifeline;
use super::listen_state::ListenState;
use super::socket_options::{SocketOptions, int, is_mirrored};
use super::unknown_options;
use crate::{errno, real};

/// The datapath's side of a socket.
#[derive(Debug)]
pub(crate) struct Socket {
    /// The socket's family is AF_INET6, and addresses are reported in IPv6 form.
    pub(crate) is_v6: bool,
    /// The address that the program has bound, if the kernel socket is not bound to it; see [`mod@super::listen`].
    pub(crate) datapath_only_addr: Option<SocketAddr>,
    /// Set when the socket listens, possibly only in the kernel so far.
    pub(crate) listening: OnceLock<Box<ListenState>>,
    /// Set when the socket becomes a listener, a connection or a UDP socket of the datapath.
    pub(crate) role: OnceLock<Role>,
    /// The socket was handed over, as a call has found.
    is_moved: AtomicBool,
    /// Number of forks before the connection began.
    pub(super) forks: u64,
    /// `connect` has reported success. A non-blocking socket's attempt is reported by a later call.
    pub(crate) is_connected: AtomicBool,
    /// O_NONBLOCK, as last set through this library.
    nonblocking: AtomicBool,
    /// A call has waited, or was about to.
    has_waited: AtomicBool,
    /// SO_RCVTIMEO and SO_SNDTIMEO in nanoseconds; 0 for no timeout.
    timeouts: [AtomicU64; 2],
    /// The options of the connection, or, of a listener, those of its future connections.
    options: Mutex<Arc<SocketOptions>>,
}

/// What a socket is in the datapath.
#[derive(Debug)]
pub(crate) enum Role {
    /// Several members of a SO_REUSEPORT group may share a listener.
    Listener(Arc<TcpListener>),
    Stream(TcpStream),
    Datagram(DatagramSocket),
}

impl Role {
    /// Returns the source that is waited for and added to epolls.
    pub(crate) fn source(&self) -> &dyn Source {
        match self {
            Self::Listener(listener) => &**listener,
            Self::Stream(stream) => stream,
            Self::Datagram(datagram) => &datagram.socket,
        }
    }

    pub(crate) fn readiness(&self) -> Readiness {
        match self {
            Self::Listener(listener) => listener.readiness(),
            Self::Stream(stream) => stream.readiness(),
            Self::Datagram(datagram) => datagram.socket.readiness(),
        }
    }
}

impl Socket {
    /// Returns the datapath's side of the kernel socket `fd`, without a role.
    pub(crate) fn new(fd: c_int, datapath_only_addr: Option<SocketAddr>) -> Self {
        let is_v6 = int(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) == Some(libc::AF_INET6);
        unknown_options::becomes_datapath_socket(fd);
        // SAFETY: the call takes no pointers.
        let flags = unsafe { real::FCNTL.get()(fd, libc::F_GETFL, 0) };
        Self::with(is_v6, datapath_only_addr, flags >= 0 && flags & libc::O_NONBLOCK != 0)
    }

    fn with(is_v6: bool, datapath_only_addr: Option<SocketAddr>, nonblocking: bool) -> Self {
        Self {
            is_v6,
            datapath_only_addr,
            listening: OnceLock::new(),
            role: OnceLock::new(),
            is_moved: AtomicBool::new(false),
            forks: lifeline::forks(),
            is_connected: AtomicBool::new(false),
            nonblocking: AtomicBool::new(nonblocking),
            has_waited: AtomicBool::new(false),
            timeouts: Default::default(),
            options: Mutex::default(),
        }
    }

    /// Returns the socket of an accepted connection, which has the options of its listener. They are set on the new kernel
    /// socket `fd` too.
    pub(crate) fn accepted(listener: &Self, fd: c_int, stream: TcpStream, nonblocking: bool) -> Self {
        let socket = Self::with(listener.is_v6, None, nonblocking);
        let options = listener.options();
        options.set_on_kernel_socket(fd);
        socket.become_role(Role::Stream(stream), options);
        socket
    }

    pub(crate) fn stream(&self) -> Option<&TcpStream> {
        match self.role.get() {
            Some(Role::Stream(stream)) => Some(stream),
            _ => None,
        }
    }

    /// Returns whether a call has found that the socket was handed over.
    #[inline]
    pub(super) fn is_moved(&self) -> bool {
        self.is_moved.load(Ordering::Acquire)
    }

    /// Records that the socket was handed over: the next call on its descriptor goes to the kernel.
    pub(super) fn set_moved(&self) {
        self.is_moved.store(true, Ordering::Release);
    }

    /// Returns whether the socket was handed over, and records that.
    #[cold]
    pub(super) fn check_moved(&self) -> bool {
        let is_moved = self.handed_over().is_some();
        if is_moved {
            self.set_moved();
        }
        is_moved
    }

    /// Returns where the socket was handed over to, if it was.
    pub(super) fn handed_over(&self) -> Option<HandedOver> {
        match self.role.get()? {
            Role::Stream(stream) => stream.handed_over(),
            Role::Datagram(datagram) => datagram.socket.is_handed_over().then_some(HandedOver::Kernel),
            Role::Listener(_) => None,
        }
    }

    pub(crate) fn datagram(&self) -> Option<&DatagramSocket> {
        match self.role.get() {
            Some(Role::Datagram(datagram)) => Some(datagram),
            _ => None,
        }
    }

    pub(crate) fn listener(&self) -> Option<&TcpListener> {
        match self.role.get() {
            Some(Role::Listener(listener)) => Some(listener),
            _ => None,
        }
    }

    /// Returns whether the kernel socket of the same descriptor is in use as well, such as one that listens. A wait for such
    /// a socket is a wait for both sides.
    pub(crate) fn has_kernel_side(&self) -> bool {
        self.listening.get().is_some_and(|listening| listening.has_kernel_side)
            || self.datagram().is_some_and(DatagramSocket::has_kernel_side)
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// Returns whether a call may wait. The first time the kernel's flag counts, since the program may have set it without the
    /// C library.
    pub(crate) fn may_wait(&self, fd: c_int) -> bool {
        if fd >= 0 && !self.is_nonblocking() && !self.has_waited.swap(true, Ordering::Relaxed) {
            // SAFETY: the call takes no pointers.
            let flags = errno::preserve_errno(|| unsafe { real::FCNTL.get()(fd, libc::F_GETFL, 0) });
            if flags >= 0 && flags & libc::O_NONBLOCK != 0 {
                self.set_nonblocking(true);
            }
        }
        !self.is_nonblocking()
    }

    pub(crate) fn set_nonblocking(&self, on: bool) {
        self.nonblocking.store(on, Ordering::Relaxed);
    }

    /// Returns the options.
    pub(crate) fn options(&self) -> Arc<SocketOptions> {
        self.options.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether `close` waits (SO_LINGER).
    pub(super) fn lingers(&self) -> bool {
        self.options().linger.is_some_and(|time| !time.is_zero())
    }

    /// Gives the socket its role and options.
    pub(crate) fn become_role(&self, role: Role, options: Arc<SocketOptions>) {
        // All waits are in `socket_wait`, where a signal can end them.
        match &role {
            Role::Listener(listener) => listener.set_nonblocking(true),
            Role::Stream(stream) => stream.set_nonblocking(true),
            Role::Datagram(datagram) => datagram.socket.set_nonblocking(true),
        }
        self.replace_options(options);
        // If two threads do this at the same time, the first one's role stays, and the other's is closed.
        let _ = self.role.set(role);
        direct_epoll::socket_made();
    }

    fn replace_options(&self, options: Arc<SocketOptions>) {
        for (limit, now) in self.timeouts.iter().zip([options.read_timeout, options.write_timeout]) {
            limit.store(now.map_or(0, |now| now.as_nanos() as u64), Ordering::Relaxed);
        }
        *self.options.lock().unwrap_or_else(PoisonError::into_inner) = options;
    }

    /// Returns the timeout of a call that waits for `interest` (SO_RCVTIMEO, SO_SNDTIMEO).
    pub(crate) fn timeout(&self, interest: Readiness) -> Option<Duration> {
        let [read, write] = &self.timeouts;
        let limit = if interest.contains(Readiness::WRITABLE) { write } else { read };
        let nanos = limit.load(Ordering::Relaxed);
        (nanos != 0).then(|| Duration::from_nanos(nanos))
    }

    /// Applies an option that was set on the kernel socket, if the datapath has it.
    pub(crate) fn sync_option(&self, fd: c_int, level: c_int, option: c_int) {
        if let Some(datagram) = self.datagram() {
            errno::preserve_errno(|| datagram.sync_option(fd, level, option));
        }
        let Some(role) = self.role.get().filter(|_| is_mirrored(level, option)) else { return };
        errno::preserve_errno(|| {
            if let (Role::Stream(stream), libc::IPPROTO_TCP, libc::TCP_QUICKACK) = (role, level, option) {
                // Fails only if the connection is closed.
                let _ = stream.set_quick_ack(int(fd, level, option) == Some(1));
                return;
            }
            let now = Arc::new(SocketOptions::from_kernel_socket(fd));
            let _ = match role {
                Role::Stream(stream) => stream.set_options(&now.tcp),
                Role::Listener(listener) => listener.set_options(&now.tcp),
                Role::Datagram(_) => Ok(()),
            };
            self.replace_options(now);
        });
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Closing a connection may return its port, which closes a descriptor of the runtime's.
        let role = self.role.take();
        let listening = self.listening.take();
        uninterposed(|| drop((role, listening)));
    }
}
