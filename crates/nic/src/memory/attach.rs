//! Creates a shared-memory NIC under a name or attaches to one, and keeps doing so as peers come and go.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen};

use super::handshake::{self, HandshakeError};
use super::link::{Guard, Shared};
use super::mapping::Mapping;
use super::session::{End, Session};
use super::{MemoryEnd, MemoryQueue, MemoryShape};
use crate::open::OpenError;

/// How long a peer may take over its half of the handshake.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often an attacher whose peer has gone looks for a new one.
const RETRY: Duration = Duration::from_millis(50);

/// No call may wait for a peer that does nothing.
const SOCKET: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// An open shared-memory NIC.
pub(crate) struct MemoryNic {
    pub(crate) shape: MemoryShape,
    pub(crate) queues: Vec<MemoryQueue>,
}

/// Opens the end of the NIC `name` that was asked for. A creator returns at once, with the link down until a peer
/// attaches; an attacher returns with the link up.
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

/// The socket of a NIC: abstract, so that it vanishes with its owner; by user, so that users do not meet by accident.
fn address(name: &str) -> rustix::io::Result<SocketAddrUnix> {
    let user = rustix::process::geteuid().as_raw();
    SocketAddrUnix::new_abstract_name(format!("abey-nic/{user}/{name}").as_bytes())
}

fn socket() -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SOCKET, None)
}

/// The socket that peers of the NIC `name` attach to, of the user who calls: the privileged half of creating one.
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
    let stop = super::event().map_err(system(device, "attach to"))?;
    let connection = match reach(&address) {
        Ok(connection) => connection,
        Err(HandshakeError::Gone) => return Err(OpenError::Nobody { device: device.to_owned() }),
        Err(error) => return Err(refused(error)),
    };
    wait(&connection, &stop).map_err(refused)?;
    let (shape, memory, events) = handshake::read_offer(&connection).map_err(refused)?;
    let link = Shared::new(shape, device).map_err(system(device, "attach to"))?;
    meet(&link, &connection, &memory, events).map_err(refused)?;
    let guard = Guard::spawn(device, {
        let link = link.clone();
        move |stop| stay_attached(&link, connection, &address, stop)
    });
    Ok((link, guard.map_err(system(device, "attach to"))?))
}

/// Connects to the creator, if there is one.
fn reach(address: &SocketAddrUnix) -> Result<OwnedFd, HandshakeError> {
    let connection = socket()?;
    match connect(&connection, address) {
        Ok(()) => {}
        Err(rustix::io::Errno::CONNREFUSED) => return Err(HandshakeError::Gone),
        // Others wait to be let in, or nobody lets them in.
        Err(rustix::io::Errno::AGAIN) => return Err(HandshakeError::Busy),
        Err(error) => return Err(error.into()),
    }
    handshake::check_user(&connection)?;
    Ok(connection)
}

/// The attacher's half of the handshake.
fn meet(link: &Shared, connection: &OwnedFd, memory: &OwnedFd, events: Vec<OwnedFd>) -> Result<(), HandshakeError> {
    let mapping = Mapping::of_peer(memory, link.shape.bytes())?;
    let ours: Vec<_> = (0..link.shape.queues).map(|queue| link.event(queue)).collect();
    handshake::accept(connection, &ours)?;
    link.install(Session::new(&link.shape, &mapping, End::Attacher, events));
    Ok(())
}

/// The creator's half of the handshake.
fn welcome(link: &Shared, connection: &OwnedFd, stop: &OwnedFd) -> Result<(), HandshakeError> {
    handshake::check_user(connection)?;
    // Fresh memory for each peer: the last one may still have the old mapped.
    let (memfd, mapping) = Mapping::create(link.shape.bytes())?;
    let ours: Vec<_> = (0..link.shape.queues).map(|queue| link.event(queue)).collect();
    handshake::offer(connection, &link.shape, memfd.as_fd(), &ours)?;
    wait(connection, stop)?;
    let events = handshake::read_acceptance(connection, link.shape.queues)?;
    link.install(Session::new(&link.shape, &mapping, End::Creator, events));
    Ok(())
}

/// Waits until the peer has said something; it is gone when it took too long or we are to stop.
fn wait(connection: &OwnedFd, stop: &OwnedFd) -> Result<(), HandshakeError> {
    let [said, stopped] = ready([connection, stop], Some(PATIENCE))?;
    if said && !stopped { Ok(()) } else { Err(HandshakeError::Gone) }
}

/// Which of the descriptors have something to read or were hung up, within `timeout` if there is one.
fn ready<const N: usize>(descriptors: [&OwnedFd; N], timeout: Option<Duration>) -> io::Result<[bool; N]> {
    let mut polled = descriptors.map(|descriptor| PollFd::new(descriptor, PollFlags::IN));
    let timeout = timeout.map(|timeout| Timespec::try_from(timeout).expect("a short time"));
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(polled.map(|descriptor| !descriptor.revents().is_empty())),
        Err(error) => Err(error.into()),
    }
}

/// The creator's thread: one peer at a time. Peers that misbehave during the handshake are let go.
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
        // Nothing is said after the handshake: whatever can be read is the end, or a peer that breaks the rules.
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
            } else if welcome(link, &connection, stop).is_ok() {
                peer = Some(connection);
            }
        }
    }
}

/// The attacher's thread: when the creator goes, looks for one that takes its place with the same shape.
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
    // Our queue pairs were handed out with the old shape.
    if shape != link.shape {
        return Err(HandshakeError::Shape("another shape than before".to_owned()));
    }
    meet(link, &connection, &memory, events)?;
    Ok(connection)
}
