//! Sockets and epoll instances of the parent in a forked child, which has copies of the descriptors and of the table, but no
//! datapath.
//!
//! The child's first call on such a descriptor asks the parent to hand it over, and waits for the answer. From then on the
//! descriptor is the kernel's in the child too. Nothing of the table's entries is dropped: they belong to threads and locks of
//! the parent. [`shared_listener`] has the rest of what a child does with a listener.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use abey_datapath::Runtime;
use abey_datapath::handover::{HandOverAddress, HandOverServer, HandedOver, Question};
use libc::c_int;

use super::context::uninterposed;
use super::fd_table::{self, Entry};
use super::handover::{self, Reason};
use super::socket::Role;
use super::socket_options::int;
use super::{accept_credit, listen, process, shared_listener};
use crate::errno;

/// How long a hand-over by the parent is waited for, and the time between two checks.
const REPAIR_LIMIT: Duration = Duration::from_secs(10);
const REPAIR_CHECK: Duration = Duration::from_micros(200);

/// Where children send their requests.
static PARENT: OnceLock<HandOverAddress> = OnceLock::new();

/// Answers children until the process ends.
static SERVER: Mutex<Option<HandOverServer>> = Mutex::new(None);

/// Ends the thread that answers children.
pub(super) fn stop_serving() {
    drop(SERVER.lock().unwrap_or_else(PoisonError::into_inner).take());
}

/// Starts the thread that answers children. Without it their calls fail as on a socket without a connection.
pub(super) fn serve(runtime: &Runtime) {
    if let Ok(server) = runtime.serve_hand_overs(Some(respond)) {
        let _ = PARENT.set(server.address().clone());
        *SERVER.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
    }
}

/// What a child asks its parent for, beside connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Kind {
    /// Passes a UDP socket to the kernel.
    UdpSocket,
    /// Leaves the new connections of a listener to the kernel. The answer is an eventfd that is readable while others wait.
    Listener,
    /// Hands over a connection that waits at a listener, into the descriptor of the request.
    Accept,
    /// Leaves a listener to the kernel, with the connections that wait.
    Leave,
    /// Hands over the members of an epoll instance.
    Epoll,
    /// Lets a program that the child executes accept what the parent does not.
    Share,
}

/// Asks the parent. A descriptor goes with every request.
pub(super) fn ask(kind: Kind, object: u64, descriptor: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let parent = PARENT.get().ok_or(io::ErrorKind::NotConnected)?;
    parent.ask(Question { kind: kind as u32, object }, descriptor)
}

/// Returns the name of an entry in this process, and in its forked children.
fn name(object: &Entry) -> u64 {
    std::ptr::from_ref(object) as u64
}

/// Answers a child, in the thread of the runtime. An entry that this process has no more is the kernel's already.
fn respond(question: Question, descriptor: Option<OwnedFd>) -> io::Result<Option<OwnedFd>> {
    uninterposed(|| {
        let is_kind = |kind: Kind| question.kind == kind as u32;
        let mut found = fd_table::find(|object| name(object) == question.object);
        let Some((fd, object)) = found.pop() else { return Ok(None) };
        match &*object {
            Entry::Socket(_) if is_kind(Kind::UdpSocket) => match handover::hand_over(fd, Reason::Child) {
                true => Ok(None),
                false => Err(io::ErrorKind::Unsupported.into()),
            },
            Entry::Socket(socket) if is_kind(Kind::Listener) => listen::share(socket),
            Entry::Socket(socket) if is_kind(Kind::Leave) => {
                listen::leave(socket);
                Ok(None)
            }
            Entry::Socket(_) if is_kind(Kind::Share) => {
                accept_credit::share_all(|at| at == fd);
                Ok(None)
            }
            Entry::Socket(socket) if is_kind(Kind::Accept) => {
                listen::accept_into(socket, descriptor.as_ref().ok_or(io::ErrorKind::InvalidData)?.as_fd())
            }
            Entry::Epoll(set) if is_kind(Kind::Epoll) => {
                set.share();
                Ok(None)
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    })
}

/// Makes an inherited descriptor the kernel's, before a call of the child.
#[inline]
pub(super) fn prepare_use(fd: c_int) {
    if process::is_child()
        && let Some(object) = fd_table::take(fd)
    {
        errno::preserve_errno(|| uninterposed(|| take_over(fd, &object)));
        put_back(fd, object);
    }
}

/// Forgets an entry that was taken, except in a child of `vfork`, which has taken it from its parent.
fn put_back(fd: c_int, object: Arc<Entry>) {
    if process::is_vforked() {
        fd_table::put(fd, object);
    } else {
        std::mem::forget(object);
    }
}

/// Forgets an inherited descriptor, which the child closes.
#[inline]
pub(super) fn forget(fd: c_int) {
    if process::is_child() {
        shared_listener::forget(fd);
        if let Some(object) = fd_table::take(fd) {
            put_back(fd, object);
        }
    }
}

/// Makes the inherited connections that `is` selects the kernel's, and the other sockets that are standard streams: a program
/// that is executed gets those on purpose. Most programs do not close their listeners before they execute another one, so the
/// parent keeps other listeners, and shares what it does not accept.
pub(super) fn prepare_all(is: impl Fn(c_int) -> bool) {
    if process::is_child() {
        for (fd, object) in fd_table::find(|object| matches!(object, Entry::Socket(_))) {
            let Entry::Socket(socket) = &*object else { continue };
            let is_stream = socket.stream().is_some();
            let listener = socket.listener().map(|_| name(&object));
            std::mem::forget(object);
            // Even if it is close-on-exec: the program may get a duplicate (Dovecot), which is not in the table.
            if let Some(listener) = listener.filter(|_| fd > libc::STDERR_FILENO) {
                // SAFETY: open, since the child removes what it closes from the table.
                let descriptor = unsafe { BorrowedFd::borrow_raw(fd) };
                // A parent that has ended has no listener.
                let _ = errno::preserve_errno(|| uninterposed(|| ask(Kind::Share, listener, descriptor)));
            }
            if is(fd) && (is_stream || fd <= libc::STDERR_FILENO) {
                prepare_use(fd);
            }
        }
        (0..=libc::STDERR_FILENO).filter(|fd| is(*fd)).for_each(shared_listener::leave);
    }
}

#[cold]
fn take_over(fd: c_int, object: &Arc<Entry>) {
    // SAFETY: open for the rest of the program's call, which names it.
    let descriptor = unsafe { BorrowedFd::borrow_raw(fd) };
    let socket = match &**object {
        Entry::Socket(socket) => socket,
        Entry::Epoll(_) => {
            // Without the parent, only the kernel's members are left.
            let _ = ask(Kind::Epoll, name(object), descriptor);
            return;
        }
    };
    let stream = match socket.role.get() {
        Some(Role::Stream(stream)) => stream,
        Some(Role::Datagram(_)) => {
            match ask(Kind::UdpSocket, name(object), descriptor) {
                Ok(_) => Reason::Child.report(),
                Err(_) => process::report_orphaned_socket(),
            }
            return;
        }
        Some(Role::Listener(_)) | None => {
            if socket.listening.get().is_some() {
                shared_listener::record(fd, name(object));
            }
            return;
        }
    };
    if is_with_kernel(fd) {
        return Reason::Child.report();
    }
    let Some(parent) = PARENT.get() else { return };
    let request = parent.request(stream.key(), descriptor);
    if let Ok(HandedOver::Pump(end)) = &request {
        handover::replace(fd, end);
    }
    if request.is_ok() {
        Reason::Child.report();
    }
}

/// Returns whether the connection was handed over before. Waits for a hand-over that is happening.
fn is_with_kernel(fd: c_int) -> bool {
    let end = Instant::now() + REPAIR_LIMIT;
    while has_peer(fd) {
        if int(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR) != Some(1) || Instant::now() >= end {
            return true;
        }
        std::thread::sleep(REPAIR_CHECK);
    }
    false
}

/// Returns whether the kernel socket is connected, or in repair mode.
fn has_peer(fd: c_int) -> bool {
    let mut peer = std::mem::MaybeUninit::<libc::sockaddr_storage>::uninit();
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: the buffer has room for any address.
    unsafe { crate::real::GETPEERNAME.get()(fd, peer.as_mut_ptr().cast(), &raw mut length) == 0 }
}
