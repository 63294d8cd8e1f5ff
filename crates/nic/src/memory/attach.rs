//! Creating a shared-memory NIC and attaching to one, also again when a peer has been replaced.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen};

use super::handshake::{self, HandshakeError};
use super::link::{Guard, Shared, event};
use super::mapping::Mapping;
use super::queue::MemoryQueue;
use super::session::{End, Session};
use super::shape::{MemoryEnd, MemoryShape};
use crate::accept::{Accepted, Acceptor, PAUSE};
use crate::credentials::PeerCredentials;
use crate::error::OpenError;
use crate::name::MemoryName;

/// Time that a peer may take for its half of the handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(2);
/// Interval at which an attacher without a peer tries to attach again.
const RETRY: Duration = Duration::from_millis(50);

/// Non-blocking: no call may wait for a peer that does nothing.
const SOCKET: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// An open shared-memory NIC.
pub(crate) struct MemoryNic {
    pub(crate) shape: MemoryShape,
    pub(crate) queues: Vec<MemoryQueue>,
}

/// Opens an end of the NIC `name`. A creator gets it at once, with the link down until a peer attaches; an attacher gets it
/// with the link up.
pub(crate) fn open(name: &MemoryName, end: MemoryEnd, shape: MemoryShape) -> Result<MemoryNic, OpenError> {
    if end == MemoryEnd::Create {
        if let Some(reason) = shape.problem() {
            return Err(OpenError::Options { reason });
        }
        return open_claimed(name, listener(name)?, shape);
    }
    let device = name.to_string();
    let owner = name.peer.unwrap_or_else(own_user);
    let address = address(&name.name, owner).map_err(system(&device, "name"))?;
    let (link, guard) = attach(&device, Creator { address, owner })?;
    Ok(MemoryNic { shape: link.shape, queues: MemoryQueue::all(&link, Some(&guard)) })
}

fn system<E: Into<io::Error>>(device: &str, action: &'static str) -> impl FnOnce(E) -> OpenError {
    let device = device.to_owned();
    move |error: E| OpenError::System { action, device, source: error.into() }
}

/// Returns the address of a NIC's socket. It is abstract, so that it disappears with its owner, and has the owner's number,
/// so that NICs of different users do not collide. Any user may take an abstract name: who listens is checked as well.
fn address(name: &str, owner: u32) -> rustix::io::Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(format!("abey-nic/{owner}/{name}").as_bytes())
}

/// Returns the effective user of the calling thread.
fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The address of a NIC's creator, and the user who must listen there.
struct Creator {
    address: SocketAddrUnix,
    owner: u32,
}

fn socket() -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SOCKET, None)
}

/// Creates the socket that peers of the calling user attach to: the privileged half of creating a NIC.
pub(crate) fn listener(name: &MemoryName) -> Result<OwnedFd, OpenError> {
    let device = name.to_string();
    let own = own_user();
    let address = address(&name.name, own).map_err(system(&device, "create"))?;
    let bound = || {
        let listener = socket()?;
        bind(&listener, &address)?;
        listen(&listener, 64)?;
        Ok(listener)
    };
    match bound() {
        Err(rustix::io::Errno::ADDRINUSE) => match holder(&address) {
            // Another user has taken the name before its owner could.
            Some(holder) if !holder.is_user(own) => Err(OpenError::Refused { device, reason: squatted(&holder) }),
            _ => Err(OpenError::InUse { device }),
        },
        other => other.map_err(system(&device, "create")),
    }
}

/// Returns who listens at an address.
fn holder(address: &SocketAddrUnix) -> Option<PeerCredentials> {
    let connection = socket().ok()?;
    connect(&connection, address).ok()?;
    PeerCredentials::of(&connection).ok()
}

/// Returns the reason why a name that a process of another user holds cannot be used.
fn squatted(holder: &PeerCredentials) -> String {
    let process = holder.pid().map_or_else(String::new, |pid| format!(" (pid {pid})"));
    format!(
        "a process of {}{process} listens under its name: end that process, or choose another name",
        handshake::user_text(&holder.user())
    )
}

/// Creates the NIC `name` behind a [`listener`].
///
/// Peers run as the user who called [`listener`] (a broker may have, for this process of another user), or as the one whom
/// the name gives.
pub(crate) fn open_claimed(name: &MemoryName, listener: OwnedFd, shape: MemoryShape) -> Result<MemoryNic, OpenError> {
    if let Some(reason) = shape.problem() {
        return Err(OpenError::Options { reason });
    }
    let device = name.to_string();
    let owner = PeerCredentials::of(&listener).map_err(system(&device, "create"))?.user();
    let peers = name.peer.or(owner).ok_or_else(|| OpenError::Refused {
        device: device.clone(),
        reason: "the user who created it is not known in this user namespace".to_owned(),
    })?;
    let mut acceptor = Acceptor::new(listener);
    let link = Shared::new(shape, &device).map_err(system(&device, "create"))?;
    let guard = Guard::spawn(&device, {
        let link = link.clone();
        move |stop| serve(&link, &mut acceptor, peers, stop)
    });
    let guard = guard.map_err(system(&device, "create"))?;
    Ok(MemoryNic { shape, queues: MemoryQueue::all(&link, Some(&guard)) })
}

fn attach(device: &str, creator: Creator) -> Result<(Arc<Shared>, Arc<Guard>), OpenError> {
    let refused = |error: HandshakeError| match error {
        HandshakeError::System(source) => OpenError::System { action: "attach to", device: device.to_owned(), source },
        other => OpenError::Refused { device: device.to_owned(), reason: other.to_string() },
    };
    let stop = event().map_err(system(device, "attach to"))?;
    let connection = match reach(&creator) {
        Ok(connection) => connection,
        Err(HandshakeError::Gone) => return Err(OpenError::NotCreated { device: device.to_owned() }),
        Err(error) => return Err(refused(error)),
    };
    wait(&connection, &stop).map_err(refused)?;
    let (shape, memory, events) = handshake::read_offer(&connection).map_err(refused)?;
    let link = Shared::new(shape, device).map_err(system(device, "attach to"))?;
    accept_offer(&link, &connection, &memory, events).map_err(refused)?;
    let guard = Guard::spawn(device, {
        let link = link.clone();
        move |stop| stay_attached(&link, connection, &creator, stop)
    });
    Ok((link, guard.map_err(system(device, "attach to"))?))
}

/// Connects to the creator.
fn reach(Creator { address, owner }: &Creator) -> Result<OwnedFd, HandshakeError> {
    let connection = socket()?;
    let end = Instant::now() + HANDSHAKE_LIMIT;
    loop {
        match connect(&connection, address) {
            Ok(()) => break,
            Err(rustix::io::Errno::CONNREFUSED) => return Err(HandshakeError::Gone),
            // The backlog is full, which a creator that runs empties at once.
            Err(rustix::io::Errno::AGAIN) if Instant::now() < end => std::thread::sleep(RETRY / 10),
            Err(rustix::io::Errno::AGAIN) => return Err(HandshakeError::Busy),
            Err(error) => return Err(error.into()),
        }
    }
    handshake::check_user(&connection, *owner)?;
    Ok(connection)
}

/// The attacher's half of the handshake.
fn accept_offer(
    link: &Shared,
    connection: &OwnedFd,
    memory: &OwnedFd,
    events: Vec<OwnedFd>,
) -> Result<(), HandshakeError> {
    let mapping = Mapping::of_peer(memory, link.shape.bytes())?;
    let own_events: Vec<_> = (0..link.shape.queues).map(|queue| link.event(queue)).collect();
    handshake::accept(connection, &own_events)?;
    link.install(Session::new(&link.shape, &mapping, End::Attacher, events));
    Ok(())
}

/// The creator's half of the handshake.
fn make_offer(link: &Shared, connection: &OwnedFd, stop: &OwnedFd) -> Result<(), HandshakeError> {
    // New memory for each peer: the last one may still have the old one mapped.
    let (memfd, mapping) = Mapping::create(link.shape.bytes())?;
    let own_events: Vec<_> = (0..link.shape.queues).map(|queue| link.event(queue)).collect();
    handshake::offer(connection, &link.shape, memfd.as_fd(), &own_events)?;
    wait(connection, stop)?;
    let events = handshake::read_acceptance(connection, link.shape.queues)?;
    link.install(Session::new(&link.shape, &mapping, End::Creator, events));
    Ok(())
}

/// Waits for a message of the peer. The peer counts as gone when it takes too long, or when this end is to stop.
fn wait(connection: &OwnedFd, stop: &OwnedFd) -> Result<(), HandshakeError> {
    let [readable, stopped] = ready([connection, stop], Some(HANDSHAKE_LIMIT))?;
    if readable && !stopped { Ok(()) } else { Err(HandshakeError::Gone) }
}

/// Waits for descriptors, up to `timeout` if there is one, and returns which are readable or hung up.
fn ready<const N: usize>(descriptors: [&OwnedFd; N], timeout: Option<Duration>) -> io::Result<[bool; N]> {
    ready_of(descriptors.map(AsFd::as_fd), timeout)
}

fn ready_of<const N: usize>(descriptors: [BorrowedFd<'_>; N], timeout: Option<Duration>) -> io::Result<[bool; N]> {
    let mut polled = descriptors.map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
    let timeout = timeout.map(|timeout| Timespec::try_from(timeout).expect("a short time"));
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(polled.map(|descriptor| !descriptor.revents().is_empty())),
        Err(error) => Err(error.into()),
    }
}

/// Runs the creator's thread, for one peer of user `peers` at a time. A peer of another user, and one that violates the
/// handshake, is disconnected.
fn serve(link: &Shared, acceptor: &mut Acceptor, peers: u32, stop: &OwnedFd) {
    let mut peer: Option<OwnedFd> = None;
    let mut is_paused = false;
    loop {
        // A descriptor in the place of one that is not polled is polled twice.
        let connection = peer.as_ref().unwrap_or(stop);
        let (listener, timeout) = if is_paused { (stop.as_fd(), Some(PAUSE)) } else { (acceptor.as_fd(), None) };
        let Ok([hung_up, knock, stopped]) = ready_of([connection.as_fd(), listener, stop.as_fd()], timeout) else {
            return link.set_down();
        };
        // There are no messages after the handshake: a readable socket was closed, or the peer violates the protocol.
        if hung_up && peer.take().is_some() {
            link.set_down();
        }
        if stopped {
            return;
        }
        is_paused = false;
        if !knock {
            continue;
        }
        match acceptor.accept() {
            Ok(Accepted::Connection(connection)) if handshake::check_user(&connection, peers).is_err() => {}
            Ok(Accepted::Connection(connection)) if peer.is_some() => {
                let _ = handshake::refuse(&connection);
            }
            Ok(Accepted::Connection(connection)) => {
                peer = make_offer(link, &connection, stop).is_ok().then_some(connection);
            }
            Ok(Accepted::Nothing) => {}
            Ok(Accepted::Exhausted) | Err(_) => is_paused = true,
        }
    }
}

/// Runs the attacher's thread: when the creator has ended, attaches to its successor, if that has the same shape.
///
/// Says once if a process of another user listens in the creator's place.
fn stay_attached(link: &Shared, connection: OwnedFd, creator: &Creator, stop: &OwnedFd) {
    let mut peer = Some(connection);
    let mut has_warned = false;
    loop {
        if let Some(connection) = &peer {
            match ready([connection, stop], None) {
                Ok([_, true]) | Err(_) => return,
                Ok([true, _]) => {
                    link.set_down();
                    peer = None;
                }
                Ok(_) => {}
            }
            continue;
        }
        match ready([stop], Some(RETRY)) {
            Ok([false]) => match attach_again(link, creator, stop) {
                Ok(connection) => (peer, has_warned) = (Some(connection), false),
                Err(error @ HandshakeError::User { .. }) if !has_warned => {
                    has_warned = true;
                    eprintln!("abey: {} stays down: {error}", link.device);
                }
                Err(_) => {}
            },
            _ => return,
        }
    }
}

fn attach_again(link: &Shared, creator: &Creator, stop: &OwnedFd) -> Result<OwnedFd, HandshakeError> {
    let connection = reach(creator)?;
    wait(&connection, stop)?;
    let (shape, memory, events) = handshake::read_offer(&connection)?;
    // The queue pairs in use have the old shape.
    if shape != link.shape {
        return Err(HandshakeError::Shape("another shape than before".to_owned()));
    }
    accept_offer(link, &connection, &memory, events)?;
    Ok(connection)
}
