//! Datagrams of a sequenced-packet socket, and descriptors that travel beside them (SCM_RIGHTS, `unix(7)`).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// Most descriptors beside one message (`SCM_MAX_FD` of Linux).
pub(crate) const MAX_DESCRIPTORS: usize = 253;
/// Longest message in bytes.
const LONGEST: usize = 4096;

/// Sends one message.
///
/// # Panics
/// When there are more descriptors than can travel.
pub(crate) fn send(socket: impl AsFd, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let pushed = control.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(pushed, "{} descriptors are more than can travel", descriptors.len());
    }
    sendmsg(socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// The next message and its descriptors; the other end is gone (`ECONNRESET`) if there will be none.
pub(crate) fn receive(socket: impl AsFd, flags: RecvFlags) -> Result<(Vec<u8>, Vec<OwnedFd>), Errno> {
    let mut message = vec![0; LONGEST];
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
