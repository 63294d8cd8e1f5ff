//! Datagrams of a sequenced-packet Unix socket, with descriptors (SCM_RIGHTS, `unix(7)`).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// Maximum number of descriptors in one message (`SCM_MAX_FD` of Linux).
pub const MAX_DESCRIPTORS: usize = 253;
/// Maximum length of a message in bytes; what is longer is cut off by the receiver.
pub const MAX_BYTES: usize = 4096;

/// Sends one message.
///
/// # Errors
/// Those of `sendmsg(2)`.
///
/// # Panics
/// When there are more than [`MAX_DESCRIPTORS`] descriptors.
pub fn send(socket: impl AsFd, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let pushed = control.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(pushed, "{} descriptors in one message", descriptors.len());
    }
    sendmsg(socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// Returns the next message and its descriptors.
///
/// # Errors
/// `ECONNRESET` if the other end has closed the connection; those of `recvmsg(2)`.
pub fn receive(socket: impl AsFd, flags: RecvFlags) -> Result<(Vec<u8>, Vec<OwnedFd>), Errno> {
    let mut message = vec![0; MAX_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut message)];
    let received = recvmsg(socket, &mut parts, &mut control, flags | RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            descriptors.extend(rights);
        }
    }
    message.truncate(received.bytes);
    if message.is_empty() { Err(Errno::CONNRESET) } else { Ok((message, descriptors)) }
}
