//! Listeners, which are double: the program's own kernel socket is bound and listens, and so does one of the datapath.
//!
//! `bind` and `listen` are passed on, so the kernel says what is taken and what is not allowed (EADDRINUSE, EACCES,
//! SO_REUSEADDR, SO_REUSEPORT, port 0, IPV6_V6ONLY), its tools show the port under the program's name, and its clients
//! (loopback, other devices) are accepted from its socket. `accept` takes from both sides.
//!
//! On a shared-memory NIC or a TAP an address is not the kernel's own; the option for that (IP_FREEBIND) is set for the
//! call of `bind`. Two programs in one namespace may have the same address and port on NICs of their own: the second one
//! then has no socket in the kernel that is bound, which `getsockname` hides and `ss` shows. Within one process the address
//! is taken, as always. A wildcard listener listens on all of the NIC's addresses of its family.
//!
//! # Late
//!
//! `listen` takes a note. The runtime is built and the datapath's listener opened by the first call that *uses* the listener:
//! `accept`, or adding it to an epoll, `poll` and `select`. So a program that listens and then forks its workers opens
//! nothing, and each worker opens its own. On a NIC that the kernel has no part in, `listen` itself is a use if the process
//! has its runtime already, since nobody else would take who comes before the next one.
//!
//! Under AF_XDP new connections come to us from then on. Those that the kernel has made before stay the kernel's, and are
//! accepted from it. The program's socket stands for the reservation of the port on that device. What redirects looks at
//! ports and not at addresses: a listener on one of the device's addresses has the port on all of them, and another program
//! that binds another one there hears nothing.
//!
//! A listener that is one of several with SO_REUSEPORT opens late on every NIC: see [`groups`].

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};

use abey_datapath::{OpenError, Runtime, TcpListener};
use abey_linux::library::DatapathConfig;
use libc::c_int;

use super::accept::Turns;
use super::errno::fail;
use super::groups::{self, Group};
use super::kept::{Kept, number, set};
use super::socket::{Role, Socket};
use super::table::{self, Object};
use super::{RUNTIME, address, config, inside, is_own, is_tcp, members, runtime};
use crate::report::Topic;
use crate::{real, state};

/// What Linux takes for a backlog at most, unless told otherwise (net.core.somaxconn).
const MOST_BACKLOG: usize = 4096;

/// A socket that listens.
#[derive(Debug)]
pub(crate) struct Listening {
    at: SocketAddr,
    /// IPV6_V6ONLY.
    only_v6: bool,
    /// Connections that may wait: one more than the backlog, as in Linux, in each shard.
    backlog: usize,
    /// The kernel's socket listens.
    pub(crate) has_kernel_side: bool,
    /// The group that it shares a port with (SO_REUSEPORT).
    pub(crate) group: Option<Group>,
    opening: Once,
    /// `shutdown` was called: it listens no more.
    pub(crate) is_shut: AtomicBool,
    pub(crate) turns: Turns,
}

/// `listen(2)`: of the kernel's socket, and a note if it is to be ours as well.
pub(crate) fn listen(fd: c_int, backlog: c_int) -> Option<c_int> {
    let config = config()?;
    let known = table::with_socket(fd, |socket| {
        if socket.stream().is_some() {
            return Some(fail(libc::EINVAL));
        }
        let listens = socket.listening.get().is_some_and(|listening| !listening.is_shut.load(Ordering::Relaxed));
        if let Some(at) = socket.bound_apart
            && !listens
        {
            note(config, fd, at, backlog, Some(at));
            return Some(0);
        }
        // SAFETY: takes no pointers.
        listens.then(|| if socket.bound_apart.is_some() { 0 } else { unsafe { real::LISTEN.get()(fd, backlog) } })
    });
    if let Some(answer) = known.flatten() {
        return Some(answer);
    }
    if !is_tcp(fd) {
        return None;
    }
    // SAFETY: takes no pointers.
    let answer = unsafe { real::LISTEN.get()(fd, backlog) };
    let at = state::keep_errno(|| address::own(fd)).filter(|at| is_meant(config, fd, *at));
    let Some(at) = at else { return Some(answer) };
    if answer == 0 {
        note(config, fd, at, backlog, None);
    } else if crate::wait::errno() == libc::EADDRINUSE && is_foreign(config, at) {
        // With SO_REUSEADDR it could be bound all the same.
        note(config, fd, at, backlog, Some(at));
        return Some(0);
    }
    Some(answer)
}

/// Whether an address that the kernel finds taken is so by another program, on a NIC of its own.
fn is_foreign(config: &DatapathConfig, at: SocketAddr) -> bool {
    let at = SocketAddr::new(at.ip().to_canonical(), at.port());
    let listens = |object: &Object| {
        let Object::Socket(socket) = object else { return false };
        socket.listening.get().is_some_and(|one| one.at == at && !one.is_shut.load(Ordering::Relaxed))
    };
    !has_kernels_device(config) && is_own(config, at) && table::count(listens) == 0
}

/// Whether the NIC's addresses are the kernel's own.
fn has_kernels_device(config: &DatapathConfig) -> bool {
    config.nic.starts_with("af_xdp:")
}

/// Whether a socket that is bound to `at` receives what comes over the NIC.
fn is_meant(config: &DatapathConfig, fd: c_int, at: SocketAddr) -> bool {
    let any_of_family = |at: IpAddr| {
        let (v4, v6) = (at.is_ipv4() || !is_only_v6(fd), at.is_ipv6());
        config.addresses.iter().any(|(own, _)| own.is_ipv4() && v4 || own.is_ipv6() && v6)
    };
    let reached = if at.ip().is_unspecified() { any_of_family(at.ip()) } else { is_own(config, at) };
    reached && super::route::may_use_device(config, fd)
}

fn is_only_v6(fd: c_int) -> bool {
    number(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) == Some(1)
}

fn note(config: &DatapathConfig, fd: c_int, at: SocketAddr, backlog: c_int, bound_apart: Option<SocketAddr>) {
    let socket = Socket::new(fd, bound_apart);
    let at = SocketAddr::new(at.ip().to_canonical(), at.port());
    let only_v6 = is_only_v6(fd);
    let listening = Listening {
        at,
        only_v6,
        backlog: usize::try_from(backlog).unwrap_or(MOST_BACKLOG).clamp(0, MOST_BACKLOG) + 1,
        has_kernel_side: bound_apart.is_none(),
        group: (number(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT) == Some(1)).then_some(Group { at, only_v6 }),
        opening: Once::new(),
        is_shut: AtomicBool::new(false),
        turns: Turns::default(),
    };
    // It is new, and nobody else has it.
    let _ = socket.listening.set(Box::new(listening));
    table::put(fd, Arc::new(Object::Socket(socket)));
    members::adopt(fd);
    table::with_socket(fd, |socket| {
        // Beside a NIC that the kernel has no part in nobody else would take who comes now.
        let is_alone = socket.listening.get().is_some_and(|one| one.group.is_none());
        if !has_kernels_device(config) && is_alone && RUNTIME.get().is_some() {
            socket.prepare(fd);
        }
    });
}

impl Listening {
    /// Opens the datapath's listener, at the first call. What cannot be is said once, and then it stays the kernel's.
    #[cold]
    pub(crate) fn open(&self, socket: &Socket, fd: c_int) {
        let Some(config) = config() else { return };
        self.opening.call_once(|| {
            state::keep_errno(|| {
                let Some(runtime) = runtime(config) else { return };
                match inside(|| self.opened(config, runtime)) {
                    Ok(listener) => {
                        socket.become_role(Role::Listener(listener), Arc::new(Kept::of(fd)));
                        members::adopt(fd);
                    }
                    Err(error) => {
                        state::failed(Topic::Datapath, &format_args!("{}: {error}; it stays the kernel's", self.at));
                    }
                }
            });
        });
    }

    fn opened(&self, config: &DatapathConfig, runtime: &Runtime) -> Result<Arc<TcpListener>, OpenError> {
        let addresses = if self.at.ip().is_unspecified() && self.only_v6 {
            let v6 = config.addresses.iter().filter(|(own, _)| own.is_ipv6());
            v6.map(|(own, _)| SocketAddr::new(*own, self.at.port())).collect()
        } else {
            vec![self.at]
        };
        let open = |shards: &[usize]| TcpListener::bind_beside(runtime, &addresses, shards, self.backlog);
        let all: Vec<_> = (0..runtime.shards()).collect();
        match &self.group {
            Some(group) => groups::join(group, all.len(), open),
            None => open(&all).map(Arc::new),
        }
    }

    /// `shutdown(2)`.
    pub(crate) fn shut(&self, listener: Option<&TcpListener>) {
        self.is_shut.store(true, Ordering::Release);
        if let Some(listener) = listener {
            inside(|| listener.stop());
        }
    }
}

/// The addresses that this process bound on the NIC, which the kernel does not have for its own.
static BOUND: Mutex<Vec<SocketAddr>> = Mutex::new(Vec::new());

/// `bind(2)` of a TCP socket to one of the NIC's addresses that the kernel need not have. `None`: the kernel's.
pub(crate) fn bind(fd: c_int, at: SocketAddr, pass_on: impl FnOnce() -> c_int) -> Option<c_int> {
    let config = config()?;
    if has_kernels_device(config) || !is_own(config, at) || !is_tcp(fd) {
        return None;
    }
    if table::with_socket(fd, |socket| socket.bound_apart.is_some()) == Some(true) {
        return Some(fail(libc::EINVAL));
    }
    let answer = with_free_bind(fd, pass_on);
    let at = SocketAddr::new(at.ip().to_canonical(), at.port());
    let mut bound = BOUND.lock().unwrap_or_else(PoisonError::into_inner);
    let is_apart = |object: &Object| matches!(object, Object::Socket(socket) if socket.bound_apart == Some(at));
    let in_group = || number(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT) == Some(1);
    if answer < 0
        && crate::wait::errno() == libc::EADDRINUSE
        && !bound.contains(&at)
        && (in_group() || table::count(is_apart) == 0)
    {
        // Another program's, on a NIC of its own.
        let socket = Socket::new(fd, Some(at));
        return table::put(fd, Arc::new(Object::Socket(socket))).then_some(0);
    }
    if answer == 0 && at.port() != 0 && !bound.contains(&at) {
        bound.push(at);
    }
    Some(answer)
}

/// Does something while the kernel's socket may be bound to an address that is not the kernel's.
pub(crate) fn with_free_bind(fd: c_int, bind: impl FnOnce() -> c_int) -> c_int {
    let is_v6 = number(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) == Some(libc::AF_INET6);
    let (level, option) =
        if is_v6 { (libc::IPPROTO_IPV6, libc::IPV6_FREEBIND) } else { (libc::IPPROTO_IP, libc::IP_FREEBIND) };
    let before = number(fd, level, option).unwrap_or(0);
    set(fd, level, option, &1);
    let answer = bind();
    set(fd, level, option, &before);
    answer
}
