//! The handshake of two ends: an offer with the memory, and its acceptance.
//!
//! Messages are datagrams of a sequenced-packet socket, with descriptors (SCM_RIGHTS, `unix(7)`). Every message is checked
//! before it is used.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::shape::MemoryShape;
use crate::credentials::PeerCredentials;
use crate::message;
use crate::rss::KEY_BYTES;

/// First bytes of every message; the digit is the version of protocol and ring.
const MAGIC: &[u8; 8] = b"abeynic1";
const OFFER_BYTES: usize = MAGIC.len() + 4 * 4 + KEY_BYTES;

/// Reason why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("it already has a peer; stop that one first")]
    Busy,
    #[error("it is not a shared-memory NIC of this version of Abey")]
    Foreign,
    #[error("it offers {0}")]
    Shape(String),
    #[error(
        "the process at the other end runs as {}, and this end accepts user {wanted} only (write memory:NAME,user=USER for another one)",
        user_text(.user)
    )]
    User { user: Option<u32>, wanted: u32 },
    #[error("it went away during the handshake")]
    Gone,
    #[error("the system refused: {0}")]
    System(#[from] io::Error),
}

impl From<rustix::io::Errno> for HandshakeError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::System(error.into())
    }
}

/// Returns a user as part of a sentence.
pub(super) fn user_text(user: &Option<u32>) -> String {
    user.map_or_else(|| "a user of another user namespace".to_owned(), |user| format!("user {user}"))
}

/// Checks that the process at the other end of a socket runs as user `wanted`. Root is no exception: the memory of a NIC of
/// root is for root, and root takes none from others.
pub(super) fn check_user(socket: &OwnedFd, wanted: u32) -> Result<(), HandshakeError> {
    let peer = PeerCredentials::of(socket)?;
    if peer.is_user(wanted) { Ok(()) } else { Err(HandshakeError::User { user: peer.user(), wanted }) }
}

/// Sends the creator's first message: the shape, the memory, and the eventfds of its queues.
pub(super) fn offer(
    socket: &OwnedFd,
    shape: &MemoryShape,
    memory: BorrowedFd<'_>,
    events: &[BorrowedFd<'_>],
) -> Result<(), HandshakeError> {
    let mut message = Vec::with_capacity(OFFER_BYTES);
    message.extend_from_slice(MAGIC);
    for number in [shape.queues as u32, shape.slots, shape.mtu as u32, u32::from(shape.checksum_offload)] {
        message.extend_from_slice(&number.to_le_bytes());
    }
    message.extend_from_slice(&shape.key);
    let descriptors: Vec<_> = std::iter::once(memory).chain(events.iter().copied()).collect();
    send(socket, &message, &descriptors)
}

/// Sends the creator's first message to a second peer: another one is attached.
pub(super) fn refuse(socket: &OwnedFd) -> Result<(), HandshakeError> {
    send(socket, MAGIC, &[])
}

/// Sends the attacher's reply: the eventfds of its queues.
pub(super) fn accept(socket: &OwnedFd, events: &[BorrowedFd<'_>]) -> Result<(), HandshakeError> {
    send(socket, MAGIC, events)
}

/// Receives an offer: shape, memory and eventfds.
pub(super) fn read_offer(socket: &OwnedFd) -> Result<(MemoryShape, OwnedFd, Vec<OwnedFd>), HandshakeError> {
    let (message, descriptors) = receive(socket)?;
    if message == MAGIC {
        return Err(HandshakeError::Busy);
    }
    if message.len() != OFFER_BYTES {
        return Err(HandshakeError::Foreign);
    }
    let number = |at: usize| {
        let at = MAGIC.len() + 4 * at;
        u32::from_le_bytes(message[at..at + 4].try_into().expect("4 bytes"))
    };
    let shape = MemoryShape {
        queues: number(0) as usize,
        slots: number(1),
        mtu: number(2) as usize,
        checksum_offload: number(3) != 0,
        key: message[OFFER_BYTES - KEY_BYTES..].try_into().expect("the rest is the key"),
    };
    if let Some(problem) = shape.problem() {
        return Err(HandshakeError::Shape(problem));
    }
    let mut descriptors = descriptors.into_iter();
    let memory = descriptors.next().ok_or(HandshakeError::Foreign)?;
    Ok((shape, memory, checked_events(descriptors.collect(), shape.queues)?))
}

/// Receives an acceptance: the eventfds.
pub(super) fn read_acceptance(socket: &OwnedFd, queues: usize) -> Result<Vec<OwnedFd>, HandshakeError> {
    let (message, descriptors) = receive(socket)?;
    if message != MAGIC {
        return Err(HandshakeError::Foreign);
    }
    checked_events(descriptors, queues)
}

/// Checks that the descriptors are eventfds, as this end will write to them.
fn checked_events(events: Vec<OwnedFd>, queues: usize) -> Result<Vec<OwnedFd>, HandshakeError> {
    let is_event = |event: &OwnedFd| {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", event.as_raw_fd()));
        link.is_ok_and(|target| target.as_os_str() == "anon_inode:[eventfd]")
    };
    if events.len() != queues || !events.iter().all(is_event) {
        return Err(HandshakeError::Foreign);
    }
    for event in &events {
        rustix::fs::fcntl_setfl(event, rustix::fs::fcntl_getfl(event)? | rustix::fs::OFlags::NONBLOCK)?;
    }
    Ok(events)
}

fn send(socket: &OwnedFd, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), HandshakeError> {
    message::send(socket, message, descriptors).map_err(from_errno)
}

/// Receives a message of this protocol and its descriptors. Does not block.
fn receive(socket: &OwnedFd) -> Result<(Vec<u8>, Vec<OwnedFd>), HandshakeError> {
    let (message, descriptors) = message::receive(socket, RecvFlags::DONTWAIT).map_err(from_errno)?;
    if message.starts_with(MAGIC) { Ok((message, descriptors)) } else { Err(HandshakeError::Foreign) }
}

fn from_errno(error: rustix::io::Errno) -> HandshakeError {
    match error {
        Errno::PIPE | Errno::CONNRESET | Errno::AGAIN => HandshakeError::Gone,
        error => error.into(),
    }
}
