//! Connections that are offered to the kernel's listener: the listener accepts them as if the kernel had made the handshake.
//!
//! A connection that an application has not accepted yet belongs to its listener, and the kernel's listener is shared by all
//! processes that have it. TCP_REPAIR makes a connected socket, but cannot put it into a listener's queue. SYN cookies can: a
//! listener makes a connection of the segment that ends a handshake, whichever host has sent the SYN-ACK. Since Linux 6.9 a program
//! at the device's ingress may vouch for the cookie and supply what the handshake has agreed on (`bpf_sk_assign_tcp_reqsk`;
//! it needs CONFIG_SYN_COOKIES and the sysctl `net.ipv4.tcp_syncookies`).
//!
//! So an offer is an entry of a map that such a program ([`super::offer_program`]) reads, and the segment that
//! ended the handshake is given to the kernel once more ([`inject`](super::inject)). The listener then has the connection, and
//! wakes the processes that wait for it; further segments find its socket. What the peer has sent before follows. Nothing may
//! have been sent to the peer but the SYN-ACK and acknowledgements.
//!
//! The program is attached with the first offer, and costs other frames of the kernel a lookup.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use abey_bpf::{Btf, error_chain};
use aya::Ebpf;
use aya::maps::{HashMap, MapData};
use aya::programs::SchedClassifier;
use serde::{Deserialize, Serialize};

use super::filter::{FlowKey, flow_key};
use super::offer_program::{self, Offer};
use super::program::map_error;
use crate::sock_diag::SockDiag;

/// Command and attachment of `linux/bpf.h`.
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_TCX_INGRESS: u32 = 46;

/// The sysctl of SYN cookies; 0 for none.
const SYN_COOKIES: &str = "/proc/sys/net/ipv4/tcp_syncookies";

/// How often, and with what pause, the kernel's socket is looked for: receive packet steering handles the segment later.
const CHECKS: u32 = 20;
const CHECK_INTERVAL: Duration = Duration::from_micros(500);

/// What the handshake of a connection has agreed on.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Handshake {
    /// First sequence number of this end's data.
    pub send_first: u32,
    /// First sequence number of the peer's data.
    pub receive_first: u32,
    /// Maximum segment size that the peer accepts. The kernel takes 536 and more with IPv4, and 1,220 and more with IPv6.
    pub peer_mss: u16,
    /// Scales of the peer's window and of this end's, if the connection scales windows.
    pub scales: Option<(u8, u8)>,
    /// Whether both ends use SACK.
    pub sack: bool,
    /// This end's timestamp clock now in milliseconds, and the latest value of the peer's, if both ends use timestamps.
    pub timestamps: Option<(u32, u32)>,
    /// Whether both ends use ECN.
    pub ecn: bool,
}

impl Handshake {
    fn offer(&self, kernel_millis: u32) -> Offer {
        let (clock, recent) = self.timestamps.unwrap_or((kernel_millis, 0));
        let (peer_scale, own_scale) = self.scales.unwrap_or((0, 0));
        let flags = [self.ecn, self.scales.is_some(), self.sack, self.timestamps.is_some()].map(u8::from);
        let parts: [&[u8]; 8] = [
            &self.receive_first.to_be_bytes(),
            &self.send_first.to_be_bytes(),
            &clock.wrapping_sub(kernel_millis).to_ne_bytes(),
            // `struct bpf_tcp_req_attrs`; the program fills in the clock.
            &recent.to_ne_bytes(),
            &[0; 4],
            &self.peer_mss.to_ne_bytes(),
            &[own_scale, peer_scale],
            &flags,
        ];
        let mut offer = parts.concat();
        // Clock in milliseconds, and what is reserved.
        offer.extend([0; 4]);
        offer.try_into().expect("the size of an offer")
    }
}

/// The attached program and its map.
pub(super) struct Offers {
    map: HashMap<MapData, FlowKey, Offer>,
    /// Detaches the program when dropped.
    _link: OwnedFd,
    _loaded: Ebpf,
}

impl Offers {
    /// Attaches the program to the device of this index in the calling thread's network namespace.
    pub(super) fn attach(index: u32) -> io::Result<Self> {
        // Without SYN cookies the listener drops the segment.
        if std::fs::read_to_string(SYN_COOKIES).is_ok_and(|text| text.trim() == "0") {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let other = |error: &dyn std::error::Error| io::Error::other(error.to_string());
        let btf = Btf::of_kernel().map_err(|error| other(&error))?;
        let function = btf.function(offer_program::ASSIGN).map_err(|error| other(&error))?;
        let mut loaded = abey_bpf::load(&offer_program::object(function)).map_err(|error| other(&error))?;
        let map = loaded.take_map(offer_program::OFFERS).expect("the object has the map");
        let map = HashMap::try_from(map).map_err(|error| other(&error))?;
        let program = loaded.program_mut(offer_program::PROGRAM).expect("the object has the program");
        let program: &mut SchedClassifier = program.try_into().expect("it is such a program");
        program.load().map_err(|error| io::Error::other(error_chain(&error)))?;
        let link = link(program.fd().map_err(|error| other(&error))?.as_fd(), index)?;
        Ok(Self { map, _link: link, _loaded: loaded })
    }

    /// Adds an offer.
    pub(super) fn insert(&mut self, local: SocketAddr, remote: SocketAddr, handshake: &Handshake) -> io::Result<()> {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let millis = now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000;
        self.map.insert(flow_key(local, remote), handshake.offer(millis as u32), 0).map_err(map_error)
    }

    /// Withdraws an offer. No effect if it was taken.
    pub(super) fn remove(&mut self, local: SocketAddr, remote: SocketAddr) {
        let _ = self.map.remove(&flow_key(local, remote));
    }
}

/// Waits until the kernel has a socket of the connection.
///
/// # Errors
/// ENOTCONN if it has none; those of `sock_diag(7)`.
pub(super) fn await_socket(local: SocketAddr, remote: SocketAddr) -> io::Result<()> {
    let mut kernel = SockDiag::open()?;
    for _ in 0..CHECKS {
        if kernel.has_connection(local, remote)? {
            return Ok(());
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
    Err(io::Error::from_raw_os_error(libc::ENOTCONN))
}

/// The part of `union bpf_attr` for BPF_LINK_CREATE, in `linux/bpf.h`.
#[repr(C)]
#[derive(Default)]
struct LinkCreate {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
    relative: u64,
    expected_revision: u64,
}

fn link(program: BorrowedFd<'_>, index: u32) -> io::Result<OwnedFd> {
    let create = LinkCreate {
        prog_fd: program.as_raw_fd().cast_unsigned(),
        target_ifindex: index,
        attach_type: BPF_TCX_INGRESS,
        ..LinkCreate::default()
    };
    // SAFETY: the kernel reads the attributes, which live through the call.
    let made = unsafe { libc::syscall(libc::SYS_bpf, BPF_LINK_CREATE, &raw const create, size_of::<LinkCreate>()) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(made as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offer_has_the_layout_of_the_kernel() {
        let Ok(btf) = Btf::of_kernel() else {
            eprintln!("skipped: the kernel has no BTF");
            return;
        };
        if btf.function(offer_program::ASSIGN).is_err() {
            eprintln!("skipped: the kernel takes no offers (it needs Linux 6.9)");
            return;
        }
        let handshake = Handshake {
            send_first: 0x0102_0304,
            receive_first: 0x0506_0708,
            peer_mss: 1460,
            scales: Some((7, 9)),
            sack: true,
            timestamps: Some((1000, 77)),
            ecn: false,
        };
        let offer = handshake.offer(900);
        assert_eq!(offer[..8], [5, 6, 7, 8, 1, 2, 3, 4]);
        assert_eq!(offer[8..12], 100_u32.to_ne_bytes());
        let at = |member| 12 + btf.offset("bpf_tcp_req_attrs", member).expect("a member") as usize;
        assert_eq!(offer[at("rcv_tsval")..][..4], 77_u32.to_ne_bytes());
        assert_eq!(offer[at("mss")..][..2], 1460_u16.to_ne_bytes());
        assert_eq!(at("rcv_tsecr"), 16);
        let bytes = ["rcv_wscale", "snd_wscale", "ecn_ok", "wscale_ok", "sack_ok", "tstamp_ok", "usec_ts_ok"];
        assert_eq!(bytes.map(|member| offer[at(member)]), [9, 7, 0, 1, 1, 1, 0]);
    }
}
