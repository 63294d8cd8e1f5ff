//! What the broker does for a process that hands a connection over to the kernel (TCP_REPAIR takes CAP_NET_ADMIN).
//!
//! The process sends its own socket: what is done to it here is done to that socket. It can name only connections at ports that
//! are redirected to its queues, whose traffic it controls anyway.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use abey_nic::broker::SharedNic;
use abey_nic::repair::{self, RepairState};
use abey_nic::{PortHolders, Protocol, Redirected};

/// Maximum number of connections that a client hands over at the same time.
const MAX_HELD: usize = 256;

/// The ports that are redirected to a client.
type RedirectedPorts = BTreeSet<(Protocol, u16)>;

/// Refuses a TCP port that is not redirected to the client.
pub(super) fn check_port(ports: &RedirectedPorts, port: u16) -> io::Result<()> {
    check(ports, (Protocol::Tcp, port))
}

/// Refuses to redirect a port to which the client shows no bound socket, unless it is redirected to it already. To pass its
/// packets to the kernel takes none.
pub(super) fn check_holder(
    holders: Option<&PortHolders>,
    ports: &RedirectedPorts,
    port: (Protocol, u16),
    what: Redirected,
    sockets: &[OwnedFd],
) -> io::Result<()> {
    let Some(holders) = holders else { return Ok(()) };
    if what == Redirected::Nothing || ports.contains(&port) {
        return Ok(());
    }
    let [socket] = sockets else { return Err(io::ErrorKind::PermissionDenied.into()) };
    holders.check(socket.as_fd(), port.0, port.1)
}

fn check(ports: &RedirectedPorts, port: (Protocol, u16)) -> io::Result<()> {
    if ports.contains(&port) { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// The connections of a client that are being handed over, and are not passed to the kernel yet.
#[derive(Debug, Default)]
pub(super) struct HeldFlows(BTreeSet<(SocketAddr, SocketAddr)>);

impl HeldFlows {
    /// Sets whether a connection is passed to the kernel.
    pub(super) fn pass(
        &mut self,
        nic: &SharedNic,
        (local, remote): (SocketAddr, SocketAddr),
        on: bool,
    ) -> io::Result<()> {
        if !on && self.0.len() >= MAX_HELD {
            return Err(io::Error::from_raw_os_error(nix::libc::ENOBUFS));
        }
        nic.pass_flow(local, remote, on)?;
        if on {
            self.0.remove(&(local, remote));
        } else {
            self.0.insert((local, remote));
        }
        Ok(())
    }

    /// Passes all to the kernel: the client has ended.
    pub(super) fn pass_all(&mut self, nic: &SharedNic) {
        for (local, remote) in std::mem::take(&mut self.0) {
            let _ = nic.pass_flow(local, remote, true);
        }
    }
}

/// Makes the client's socket one of a connection, in repair mode. The connection is not passed to the kernel yet. After an
/// error all is as it was before.
pub(super) fn begin_repair(
    (nic, held): (&SharedNic, &mut HeldFlows),
    ports: &RedirectedPorts,
    state: &RepairState,
    sockets: &[OwnedFd],
) -> io::Result<()> {
    check_port(ports, state.local.port())?;
    let [socket] = sockets else { return Err(io::ErrorKind::InvalidInput.into()) };
    let flow = (state.local, state.remote);
    held.pass(nic, flow, false)?;
    repair::begin(socket.as_fd(), state).inspect_err(|_| {
        let _ = repair::undo(socket.as_fd(), state.reuse_address);
        let _ = held.pass(nic, flow, true);
    })
}

/// Ends the repair mode of the client's socket.
pub(super) fn end_repair(sockets: &[OwnedFd], reuse_address: bool, has_succeeded: bool) -> io::Result<()> {
    let [socket] = sockets else { return Err(io::ErrorKind::InvalidInput.into()) };
    let end = if has_succeeded { repair::end } else { repair::undo };
    end(socket.as_fd(), reuse_address)
}

/// Returns a frame from its hexadecimal digits, if it is a TCP segment or a UDP datagram to a port that is redirected to the client.
pub(super) fn frame(ports: &RedirectedPorts, digits: &str) -> io::Result<Vec<u8>> {
    let byte = |at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    let frame: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
    let frame = frame.ok_or(io::ErrorKind::InvalidData)?;
    check(ports, destination(&frame).ok_or(io::ErrorKind::PermissionDenied)?)?;
    Ok(frame)
}

/// Returns the destination port of a segment or datagram over IPv4 or IPv6 without options or extension headers.
fn destination(frame: &[u8]) -> Option<(Protocol, u16)> {
    let (protocol, transport) = match (frame.get(12..14)?, frame.get(14)?) {
        ([0x08, 0x00], 0x45) => (frame.get(23)?, 34),
        ([0x86, 0xdd], _) => (frame.get(20)?, 54),
        _ => return None,
    };
    let protocol = match protocol {
        6 => Protocol::Tcp,
        17 => Protocol::Udp,
        _ => return None,
    };
    Some((protocol, u16::from_be_bytes([*frame.get(transport + 2)?, *frame.get(transport + 3)?])))
}
