//! A UDP socket of the datapath, with the options that the program set on the kernel socket of the same descriptor.
//! [`datagram_io`](super::datagram_io) sends and receives.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abey_datapath::{Error, Shutdown, UdpSocket};
use abey_linux::library::DatapathConfig;
use libc::c_int;

use super::error_codes::{errno_of, fail};
use super::route;
use super::socket_options::int;

/// Number of receives of which the last one asks the kernel socket first.
const KERNEL_FIRST_EVERY: u32 = 16;

/// Options that the program may have set on the kernel socket before it became a datapath socket.
const INITIAL_OPTIONS: [(c_int, c_int); 4] = [
    (libc::SOL_SOCKET, libc::SO_BROADCAST),
    (libc::IPPROTO_IP, libc::IP_PKTINFO),
    (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
    (libc::IPPROTO_IP, libc::IP_TOS),
];

/// Fragments are sent in any case (`linux/in.h`).
const IP_PMTUDISC_OMIT: c_int = 5;

/// What the kernel socket of the same descriptor does beside the datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KernelSide {
    /// Nothing: the kernel does not have the address.
    None,
    /// It receives what the XDP program leaves to the kernel: datagrams in fragments.
    Receives,
    /// It receives from other devices, and sends to their networks.
    Full,
}

/// A UDP socket of the datapath.
#[derive(Debug)]
pub(crate) struct DatagramSocket {
    pub(crate) socket: UdpSocket,
    kernel_side: KernelSide,
    receives: AtomicU32,
    /// SO_BROADCAST.
    may_broadcast: AtomicBool,
    /// IP_PKTINFO or IPV6_RECVPKTINFO: received datagrams report the local address they were sent to.
    wants_pktinfo: AtomicBool,
}

impl DatagramSocket {
    /// Returns the datapath side of the kernel socket `fd`, with the options that the kernel socket has.
    pub(super) fn new(socket: UdpSocket, kernel_side: KernelSide, fd: c_int) -> Self {
        let datagram = Self {
            socket,
            kernel_side,
            receives: AtomicU32::new(0),
            may_broadcast: AtomicBool::new(false),
            wants_pktinfo: AtomicBool::new(false),
        };
        for (level, option) in INITIAL_OPTIONS {
            datagram.sync_option(fd, level, option);
        }
        datagram
    }

    /// Returns whether the program may send to broadcast addresses (SO_BROADCAST).
    pub(super) fn may_broadcast(&self) -> bool {
        self.may_broadcast.load(Ordering::Relaxed)
    }

    /// Returns whether received datagrams report the local address they were sent to.
    pub(super) fn wants_pktinfo(&self) -> bool {
        self.wants_pktinfo.load(Ordering::Relaxed)
    }

    /// Counts a receive, and returns whether it asks the kernel socket first.
    pub(super) fn count_receive(&self) -> bool {
        self.has_kernel_side()
            && self.receives.fetch_add(1, Ordering::Relaxed) % KERNEL_FIRST_EVERY == KERNEL_FIRST_EVERY - 1
    }

    pub(super) fn connect(&self, peer: Option<SocketAddr>) -> Result<(), Error> {
        self.socket.connect(peer)
    }

    pub(super) fn shutdown(&self, how: Shutdown) -> c_int {
        if self.socket.peer_addr().is_err() {
            return fail(libc::ENOTCONN);
        }
        self.socket.shutdown(how).map_or_else(|error| fail(errno_of(&error)), |()| 0)
    }

    /// Returns whether the datapath sends to `to`, rather than the kernel.
    pub(super) fn reaches(&self, config: &DatapathConfig, to: SocketAddr) -> bool {
        let to = SocketAddr::new(to.ip().to_canonical(), to.port());
        route::takes_datagrams(config, to, || self.socket.has_receiver(to))
    }

    /// Returns whether the kernel shall have the socket because of an option that the datapath does not have. That is
    /// possible on loopback, where the kernel reaches every receiver, as long as no datagram waits on the datapath's side.
    pub(super) fn leaves_for(&self, level: c_int, option: c_int) -> bool {
        let is_kernels = match level {
            libc::IPPROTO_IP => {
                matches!(option, libc::IP_RECVTTL | libc::IP_RECVTOS | libc::IP_RECVERR | libc::IP_RECVORIGDSTADDR)
            }
            libc::IPPROTO_IPV6 => {
                matches!(option, libc::IPV6_RECVHOPLIMIT | libc::IPV6_RECVTCLASS | libc::IPV6_RECVERR)
            }
            libc::SOL_SOCKET => {
                matches!(option, libc::SO_TIMESTAMP | libc::SO_TIMESTAMPNS | libc::SO_TIMESTAMPING | libc::SO_RXQ_OVFL)
            }
            _ => false,
        };
        let is_loopback = || self.socket.local_addr().is_ok_and(|at| at.ip().is_loopback());
        is_kernels && self.sends_by_kernel() && is_loopback() && matches!(self.socket.next_bytes(), Ok(None))
    }

    /// Returns whether the kernel socket receives as well.
    pub(crate) fn has_kernel_side(&self) -> bool {
        self.kernel_side != KernelSide::None
    }

    /// Returns whether the kernel sends to destinations that the datapath does not [reach](Self::reaches).
    pub(super) fn sends_by_kernel(&self) -> bool {
        self.kernel_side == KernelSide::Full
    }

    /// Applies an option that was set on the kernel socket.
    pub(crate) fn sync_option(&self, fd: c_int, level: c_int, option: c_int) {
        match (level, option) {
            (libc::SOL_SOCKET, libc::SO_BROADCAST) => {
                self.may_broadcast.store(int(fd, level, option) == Some(1), Ordering::Relaxed);
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) | (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO) => {
                // An IPv6 socket may have both options.
                let either = [(libc::IPPROTO_IP, libc::IP_PKTINFO), (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO)];
                let wants = either.into_iter().any(|(level, option)| int(fd, level, option) == Some(1));
                self.wants_pktinfo.store(wants, Ordering::Relaxed);
            }
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER) | (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER) => {
                // An IPv6 socket has both options, and either may refuse.
                let both = [(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER), (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER)];
                let fragments =
                    |value| matches!(value, libc::IP_PMTUDISC_DONT | libc::IP_PMTUDISC_WANT | IP_PMTUDISC_OMIT);
                let allows = both.into_iter().filter_map(|(level, option)| int(fd, level, option)).all(fragments);
                // Fails only if the runtime has stopped.
                let _ = self.socket.set_fragmentation(allows);
            }
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                let class = |level, option| int(fd, level, option).and_then(|value| u8::try_from(value).ok());
                let v4 = class(libc::IPPROTO_IP, libc::IP_TOS).unwrap_or(0);
                let v6 = class(libc::IPPROTO_IPV6, libc::IPV6_TCLASS).unwrap_or(0);
                let _ = self.socket.set_traffic_classes(v4, v6);
            }
            (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE) => {
                let bytes = int(fd, libc::SOL_SOCKET, libc::SO_RCVBUF).and_then(|bytes| usize::try_from(bytes).ok());
                // Fails only if the runtime has stopped.
                let _ = bytes.map(|bytes| self.socket.set_receive_buffer(bytes));
            }
            _ => {}
        }
    }
}
