//! `listen(2)`: a listener on the NIC's address is a kernel socket that listens, and a datapath listener beside it.
//!
//! `listen` and `bind` call the kernel first. So the kernel decides which addresses are taken or not allowed (EADDRINUSE,
//! EACCES, SO_REUSEADDR, SO_REUSEPORT, port 0, IPV6_V6ONLY), its tools show the port under the program's name, and its
//! clients (loopback, other devices) connect to its socket. `accept` accepts from both.
//!
//! An address of a shared-memory or TAP NIC is not one of the kernel's addresses; `bind` sets IP_FREEBIND (`ip(7)`) for the
//! call. Two programs in one network namespace may have the same address and port on NICs of their own. The second one's
//! kernel socket is then not bound, which `getsockname` hides and `ss` shows. Within one process the address is taken, as
//! usual. A listener on a wildcard listens on all addresses of the NIC of its family.
//!
//! # Deferred opening
//!
//! `listen` only records the listener. The first call that *uses* it builds the runtime and opens the datapath's listener:
//! `accept`, adding it to an epoll instance, `poll` or `select`. So a program that listens and then forks its workers
//! opens nothing, and each worker opens its own. On a shared-memory or TAP NIC, `listen` in a process that already has a
//! runtime opens the listener at once, since the kernel cannot accept connections that arrive before the first use.
//!
//! Under AF_XDP, new connections come to the datapath from then on. Those that the kernel made before stay with the kernel.
//! The program's socket reserves the port on that device. The XDP program looks up ports only: a listener on one address
//! of the device has the port on all of them, and another program that binds another address there receives nothing.
//!
//! A listener of a SO_REUSEPORT group opens deferred on every NIC; see [`reuseport`].

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};
use std::time::Duration;

use abey_datapath::handover::HandedOver;
use abey_datapath::{Interest, OpenError, Runtime, TcpListener};
use abey_linux::library::DatapathConfig;
use libc::c_int;
use rustix::event::{EventfdFlags, eventfd};

use super::accept_credit::AcceptCredit;
use super::context::{datapath_config, is_af_xdp, is_kernel_addr, is_nic_addr, uninterposed};
use super::error_codes::fail;
use super::fd_table::{self, Entry};
use super::listen_state::{AcceptBalance, Group, ListenState};
use super::runtime::{RUNTIME, runtime};
use super::socket::{Role, Socket};
use super::socket_options::{SocketOptions, int, is_tcp, set};
use super::{member_table, process, reuseport, socket_address};
use crate::report::Topic;
use crate::{config, errno, real};

/// The largest backlog; Linux's default of net.core.somaxconn.
const MAX_BACKLOG: usize = 4096;

/// Listens on the kernel socket, and records the listener if the datapath shall listen as well.
pub(crate) fn listen(fd: c_int, backlog: c_int) -> Option<c_int> {
    let config = datapath_config()?;
    let known = fd_table::with_socket(fd, |socket| {
        if socket.stream().is_some() {
            return Some(fail(libc::EINVAL));
        }
        let listens = socket.listening.get().is_some_and(|listening| !listening.is_shut_down.load(Ordering::Relaxed));
        if let Some(at) = socket.datapath_only_addr
            && !listens
        {
            record_listener(config, fd, at, backlog, Some(at));
            return Some(0);
        }
        listens.then(|| match socket.datapath_only_addr {
            Some(_) => 0,
            // SAFETY: the call takes no pointers.
            None => unsafe { real::LISTEN.get()(fd, backlog) },
        })
    });
    if let Some(answer) = known.flatten() {
        return Some(answer);
    }
    if !is_tcp(fd) {
        return None;
    }
    let is_shared = int(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Some(1);
    // SAFETY: the call takes no pointers.
    let answer = unsafe { real::LISTEN.get()(fd, backlog) };
    let at = errno::preserve_errno(|| socket_address::bound_addr(fd)).filter(|at| is_on_nic(config, fd, *at));
    let Some(at) = at else { return Some(answer) };
    if answer == 0 {
        record_listener(config, fd, at, backlog, None);
        if is_shared {
            fd_table::with_socket(fd, |socket| {
                if let Some(listening) = socket.listening.get() {
                    listening.is_shared.store(true, Ordering::Relaxed);
                }
            });
        }
    } else if crate::errno::errno() == libc::EADDRINUSE && is_taken_by_other_program(config, at) {
        // SO_REUSEADDR allows two sockets to be bound to the address, but not to listen.
        record_listener(config, fd, at, backlog, Some(at));
        return Some(0);
    }
    Some(answer)
}

/// Returns whether an address that the kernel reports as taken is used by another program, on a NIC of its own.
fn is_taken_by_other_program(config: &DatapathConfig, at: SocketAddr) -> bool {
    let at = SocketAddr::new(at.ip().to_canonical(), at.port());
    let listens = |object: &Entry| {
        let Entry::Socket(socket) = object else { return false };
        socket.listening.get().is_some_and(|one| one.at == at && !one.is_shut_down.load(Ordering::Relaxed))
    };
    !is_kernel_addr(config, at) && is_nic_addr(config, at) && fd_table::count(listens) == 0
}

/// Returns whether a socket that is bound to `at` receives packets of the NIC.
fn is_on_nic(config: &DatapathConfig, fd: c_int, at: SocketAddr) -> bool {
    let any_of_family = |at: IpAddr| {
        let (v4, v6) = (at.is_ipv4() || !is_v6_only(fd), at.is_ipv6());
        config.addresses.iter().any(|(own, _)| own.is_ipv4() && v4 || own.is_ipv6() && v6)
    };
    let reached = if at.ip().is_unspecified() { any_of_family(at.ip()) } else { is_nic_addr(config, at) };
    reached && super::route::may_use_device(config, fd)
}

fn is_v6_only(fd: c_int) -> bool {
    int(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) == Some(1)
}

fn record_listener(
    config: &DatapathConfig,
    fd: c_int,
    at: SocketAddr,
    backlog: c_int,
    datapath_only_addr: Option<SocketAddr>,
) {
    let socket = Socket::new(fd, datapath_only_addr);
    let at = SocketAddr::new(at.ip().to_canonical(), at.port());
    let v6_only = is_v6_only(fd);
    let listening = ListenState {
        at,
        v6_only,
        backlog: usize::try_from(backlog).unwrap_or(MAX_BACKLOG).clamp(0, MAX_BACKLOG) + 1,
        has_kernel_side: datapath_only_addr.is_none(),
        group: (int(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT) == Some(1)).then_some(Group { addr: at, v6_only }),
        opening: Once::new(),
        is_shut_down: AtomicBool::new(false),
        balance: AcceptBalance::default(),
        process: std::process::id(),
        credit: AcceptCredit::default(),
        is_shared: AtomicBool::new(false),
        waiting: OnceLock::new(),
    };
    // The socket is new, and no other thread has it.
    let _ = socket.listening.set(Box::new(listening));
    fd_table::insert(fd, Arc::new(Entry::Socket(socket)));
    fd_table::with_socket(fd, |socket| {
        // A socket that is a member of an epoll set already will be waited for.
        if member_table::is_candidate(fd) {
            open_deferred(socket, fd);
        }
        // The kernel cannot accept connections that arrive on such a NIC.
        let is_ungrouped = socket.listening.get().is_some_and(|one| one.group.is_none());
        if !is_af_xdp(config) && is_ungrouped && RUNTIME.get().is_some() {
            open_deferred(socket, fd);
        }
    });
}

/// Opens the datapath's listener of a socket whose opening was deferred. Must be called before a wait for this socket, and
/// before it is added to an epoll set; the socket may get its role here.
pub(super) fn open_deferred(socket: &Socket, fd: c_int) {
    if socket.role.get().is_none()
        && let Some(listening) = socket.listening.get()
    {
        open(listening, socket, fd);
    }
}

/// Opens the datapath's listener of this process that receives connections to `to`. Returns whether there is one. The kernel
/// has the connections of a process to a listener that it shares, since the other processes shall accept some of them.
pub(super) fn open_at(to: SocketAddr) -> bool {
    let receives = |entry: &Entry| {
        let Entry::Socket(socket) = entry else { return false };
        let is_for_all = |one: &ListenState| one.receives(to) && !one.is_shared.load(Ordering::Relaxed);
        socket.listening.get().is_some_and(|listening| is_for_all(listening))
    };
    let Some((fd, _)) = fd_table::find(receives).into_iter().next() else { return false };
    let is_open = fd_table::with_socket(fd, |socket| {
        open_deferred(socket, fd);
        matches!(socket.role.get(), Some(Role::Listener(_)))
    });
    is_open == Some(true)
}

/// Opens the datapath's listener at the first call. A failure is reported once, and the listener stays the kernel's.
#[cold]
fn open(listening: &ListenState, socket: &Socket, fd: c_int) {
    let Some(config) = datapath_config() else { return };
    listening.opening.call_once(|| {
        errno::preserve_errno(|| {
            let Some(runtime) = runtime(config) else { return };
            match uninterposed(|| open_listener(fd, listening, config, runtime)) {
                Ok(listener) => {
                    if listening.has_kernel_side {
                        uninterposed(|| set_credit(listening, &listener));
                    }
                    let options = SocketOptions::from_kernel_socket(fd);
                    // Fails only if the runtime has stopped.
                    let _ = listener.set_options(&options.tcp);
                    socket.become_role(Role::Listener(listener), Arc::new(options));
                    member_table::migrate(fd);
                }
                Err(error) => {
                    config::failed(
                        Topic::Datapath,
                        &format_args!(
                            "cannot listen on {}: {error}; only the kernel accepts connections there",
                            listening.at
                        ),
                    );
                }
            }
        });
    });
}

/// Limits what this process takes from a listener that other processes may have, too.
fn set_credit(listening: &ListenState, listener: &TcpListener) {
    if listening.process != std::process::id() || listening.is_shared.load(Ordering::Relaxed) {
        listening.credit.limit(listener);
    } else if process::has_forked() {
        listening.credit.share(listener);
    }
}

fn open_listener(
    fd: c_int,
    listening: &ListenState,
    config: &DatapathConfig,
    runtime: &Runtime,
) -> Result<Arc<TcpListener>, OpenError> {
    let at = listening.at;
    let addresses = if at.ip().is_unspecified() && listening.v6_only {
        let v6 = config.addresses.iter().filter(|(own, _)| own.is_ipv6());
        v6.map(|(own, _)| SocketAddr::new(*own, at.port())).collect()
    } else {
        vec![at]
    };
    // SAFETY: the caller's descriptor, which it keeps open during its call.
    let holder = unsafe { BorrowedFd::borrow_raw(fd) };
    let open = |shards: &[usize]| TcpListener::bind_reserved(runtime, &addresses, shards, listening.backlog, holder);
    let all: Vec<_> = (0..runtime.shards()).collect();
    match &listening.group {
        Some(group) => reuseport::join(group, all.len(), open),
        None => open(&all).map(Arc::new),
    }
}

/// Addresses of a shared-memory or TAP NIC that this process has bound.
static BOUND_ADDRS: Mutex<Vec<SocketAddr>> = Mutex::new(Vec::new());

/// Binds a TCP socket to an address of a shared-memory or TAP NIC. Returns `None` if the kernel shall bind it.
pub(crate) fn bind(fd: c_int, at: SocketAddr, pass_on: impl FnOnce() -> c_int) -> Option<c_int> {
    let config = datapath_config()?;
    if is_kernel_addr(config, at) || !is_nic_addr(config, at) || !is_tcp(fd) {
        return None;
    }
    if fd_table::with_socket(fd, |socket| socket.datapath_only_addr.is_some()) == Some(true) {
        return Some(fail(libc::EINVAL));
    }
    let answer = with_free_bind(fd, pass_on);
    let at = SocketAddr::new(at.ip().to_canonical(), at.port());
    let mut bound = BOUND_ADDRS.lock().unwrap_or_else(PoisonError::into_inner);
    let is_datapath_only =
        |object: &Entry| matches!(object, Entry::Socket(socket) if socket.datapath_only_addr == Some(at));
    let in_group = || int(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT) == Some(1);
    if answer < 0
        && crate::errno::errno() == libc::EADDRINUSE
        && !bound.contains(&at)
        && (in_group() || fd_table::count(is_datapath_only) == 0)
    {
        // Another program uses the address on a NIC of its own.
        let socket = Socket::new(fd, Some(at));
        return fd_table::insert(fd, Arc::new(Entry::Socket(socket))).then_some(0);
    }
    if answer == 0 && at.port() != 0 && !bound.contains(&at) {
        bound.push(at);
    }
    Some(answer)
}

/// Runs `bind` while the kernel socket may be bound to an address that the kernel does not have.
pub(crate) fn with_free_bind(fd: c_int, bind: impl FnOnce() -> c_int) -> c_int {
    let is_v6 = int(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) == Some(libc::AF_INET6);
    let (level, option) =
        if is_v6 { (libc::IPPROTO_IPV6, libc::IPV6_FREEBIND) } else { (libc::IPPROTO_IP, libc::IP_FREEBIND) };
    let before = int(fd, level, option).unwrap_or(0);
    set(fd, level, option, &1);
    let answer = bind();
    set(fd, level, option, &before);
    answer
}

/// Leaves new connections to the kernel's listener, which other processes have as well. Returns an eventfd that is readable while
/// connections wait in the datapath; `None` if the datapath does not listen.
///
/// # Errors
/// A system call failed.
pub(super) fn share(socket: &Socket) -> io::Result<Option<OwnedFd>> {
    let (Some(listening), Some(runtime)) = (socket.listening.get(), RUNTIME.get().and_then(Option::as_ref)) else {
        return Ok(None);
    };
    listening.is_shared.store(true, Ordering::Relaxed);
    let Some(listener) = socket.listener() else { return Ok(None) };
    listening.credit.end(listener);
    if listening.waiting.get().is_none() {
        let (epoll, event) = (runtime.epoll(), eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        epoll.add(listener, 0, Interest::IN).map_err(io::Error::other)?;
        epoll.set_ready_fd(Some(event.try_clone()?));
        epoll.sync_ready_fd();
        // If two threads do this at the same time, the first one's stays.
        let _ = listening.waiting.set((epoll, event));
    }
    listening.waiting.get().map(|(_, event)| event.try_clone()).transpose()
}

/// Leaves new connections to the kernel's listener, and those that wait in the datapath; what the kernel does not take is
/// reset.
pub(super) fn leave(socket: &Socket) {
    let (Some(listening), Some(listener)) = (socket.listening.get(), socket.listener()) else { return };
    listening.is_shared.store(true, Ordering::Relaxed);
    listening.credit.end(listener);
    listener.leave_unaccepted(false);
    while let Ok((stream, _)) = listener.try_accept() {
        // It fails if the connection was reset already.
        let _ = stream.set_linger(Some(Duration::ZERO));
    }
}

/// Accepts a connection that waits in the datapath, and hands it over into `into`, a new socket. Returns what stands for it
/// instead, if the kernel cannot take it.
///
/// # Errors
/// None waits, or it cannot be handed over: then it is closed.
pub(super) fn accept_into(socket: &Socket, into: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let listener = socket.listener().ok_or(io::ErrorKind::WouldBlock)?;
    let accepted = listener.try_accept();
    if let Some((epoll, _)) = socket.listening.get().and_then(|listening| listening.waiting.get()) {
        epoll.sync_ready_fd();
    }
    let (stream, _) = accepted?;
    socket.options().set_on_kernel_socket(into.as_raw_fd());
    match stream.hand_over(into).map_err(io::Error::other)? {
        HandedOver::Kernel => Ok(None),
        HandedOver::Pump(end) => Ok(Some(end)),
    }
}

/// Leaves new connections to the kernel's listener. Those that wait in the datapath can still be accepted.
pub(super) fn end(socket: &Socket) {
    let Some(listening) = socket.listening.get() else { return };
    match socket.listener() {
        Some(listener) => listening.credit.end(listener),
        // Opening runs once.
        None => listening.opening.call_once(|| {}),
    }
}
