//! Creating a shared-memory NIC and attaching to one, also again when a peer has been replaced.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen};

use super::handshake::{self, HandshakeError};
use super::link::{Guard, Shared, event};
use super::mapping::Mapping;
use super::queue::MemoryQueue;
use super::session::{End, Session};
use super::shape::{MemoryEnd, MemoryShape};
use crate::error::OpenError;

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
pub(crate) fn open(name: &str, end: MemoryEnd, shape: MemoryShape) -> Result<MemoryNic, OpenError> {
    if end == MemoryEnd::Create {
        if let Some(reason) = shape.problem() {
            return Err(OpenError::Options { reason });
        }
        return open_claimed(name, listener(name)?, shape);
    }
    let device = format!("memory:{name}");
    let (link, guard) = attach(&device, address(name).map_err(system(&device, "name"))?)?;
    Ok(MemoryNic { shape: link.shape, queues: MemoryQueue::all(&link, Some(&guard)) })
}

fn system<E: Into<io::Error>>(device: &str, action: &'static str) -> impl FnOnce(E) -> OpenError {
    let device = device.to_owned();
    move |error: E| OpenError::System { action, device, source: error.into() }
}

/// Returns the address of a NIC's socket. It is abstract, so that it disappears with its owner, and has the user's number,
/// so that NICs of different users do not collide.
fn address(name: &str) -> rustix::io::Result<SocketAddrUnix> {
    let user = rustix::process::geteuid().as_raw();
    SocketAddrUnix::new_abstract_name(format!("abey-nic/{user}/{name}").as_bytes())
}

fn socket() -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SOCKET, None)
}

/// Creates the socket that peers of the calling user attach to: the privileged half of creating a NIC.
pub(crate) fn listener(name: &str) -> Result<OwnedFd, OpenError> {
    let device = format!("memory:{name}");
    let listener = address(name).and_then(|address| {
        let listener = socket()?;
        bind(&listener, &address)?;
        listen(&listener, 4)?;
        Ok(listener)
    });
    match listener {
        Err(rustix::io::Errno::ADDRINUSE) => Err(OpenError::InUse { device }),
        other => other.map_err(system(&device, "create")),
    }
}

/// Creates the NIC `name` behind a [`listener`].
pub(crate) fn open_claimed(name: &str, listener: OwnedFd, shape: MemoryShape) -> Result<MemoryNic, OpenError> {
    if let Some(reason) = shape.problem() {
        return Err(OpenError::Options { reason });
    }
    let device = format!("memory:{name}");
    let link = Shared::new(shape, &device).map_err(system(&device, "create"))?;
    let guard = Guard::spawn(&device, {
        let link = link.clone();
        move |stop| serve(&link, &listener, stop)
    });
    let guard = guard.map_err(system(&device, "create"))?;
    Ok(MemoryNic { shape, queues: MemoryQueue::all(&link, Some(&guard)) })
}

fn attach(device: &str, address: SocketAddrUnix) -> Result<(Arc<Shared>, Arc<Guard>), OpenError> {
    let refused = |error: HandshakeError| match error {
        HandshakeError::System(source) => OpenError::System { action: "attach to", device: device.to_owned(), source },
        other => OpenError::Refused { device: device.to_owned(), reason: other.to_string() },
    };
    let stop = event().map_err(system(device, "attach to"))?;
    let connection = match reach(&address) {
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
        move |stop| stay_attached(&link, connection, &address, stop)
    });
    Ok((link, guard.map_err(system(device, "attach to"))?))
}

/// Connects to the creator.
fn reach(address: &SocketAddrUnix) -> Result<OwnedFd, HandshakeError> {
    let connection = socket()?;
    match connect(&connection, address) {
        Ok(()) => {}
        Err(rustix::io::Errno::CONNREFUSED) => return Err(HandshakeError::Gone),
        // The backlog is full: other peers wait, or the creator does not accept.
        Err(rustix::io::Errno::AGAIN) => return Err(HandshakeError::Busy),
        Err(error) => return Err(error.into()),
    }
    handshake::check_user(&connection)?;
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
    handshake::check_user(connection)?;
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
    let mut polled = descriptors.map(|descriptor| PollFd::new(descriptor, PollFlags::IN));
    let timeout = timeout.map(|timeout| Timespec::try_from(timeout).expect("a short time"));
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(polled.map(|descriptor| !descriptor.revents().is_empty())),
        Err(error) => Err(error.into()),
    }
}

/// Runs the creator's thread, for one peer at a time. A peer that violates the handshake is disconnected.
fn serve(link: &Shared, listener: &OwnedFd, stop: &OwnedFd) {
    let mut peer: Option<OwnedFd> = None;
    loop {
        let (hung_up, knock, stopped) = match &peer {
            Some(connection) => match ready([connection, listener, stop], None) {
                Ok([hung_up, knock, stopped]) => (hung_up, knock, stopped),
                Err(_) => (true, false, true),
            },
            None => match ready([listener, stop], None) {
                Ok([knock, stopped]) => (false, knock, stopped),
                Err(_) => (false, false, true),
            },
        };
        // There are no messages after the handshake: a readable socket was closed, or the peer violates the protocol.
        if hung_up {
            link.set_down();
            peer = None;
        }
        if stopped {
            return;
        }
        if knock {
            let Ok(connection) = accept_with(listener, SOCKET) else { continue };
            if peer.is_some() {
                let _ = handshake::refuse(&connection);
            } else if make_offer(link, &connection, stop).is_ok() {
                peer = Some(connection);
            }
        }
    }
}

/// Runs the attacher's thread: when the creator has ended, attaches to its successor, if that has the same shape.
fn stay_attached(link: &Shared, connection: OwnedFd, address: &SocketAddrUnix, stop: &OwnedFd) {
    let mut peer = Some(connection);
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
            Ok([false]) => peer = attach_again(link, address, stop).ok(),
            _ => return,
        }
    }
}

fn attach_again(link: &Shared, address: &SocketAddrUnix, stop: &OwnedFd) -> Result<OwnedFd, HandshakeError> {
    let connection = reach(address)?;
    wait(&connection, stop)?;
    let (shape, memory, events) = handshake::read_offer(&connection)?;
    // The queue pairs in use have the old shape.
    if shape != link.shape {
        return Err(HandshakeError::Shape("another shape than before".to_owned()));
    }
    accept_offer(link, &connection, &memory, events)?;
    Ok(connection)
}
