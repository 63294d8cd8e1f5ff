//! Whether a mode has reached the sockets of a program: judged from outside, by the sockets that each process holds and by the
//! system calls in which its threads wait for them.
//!
//! [`judge()`] is pure: facts in, verdict out. [`read()`] gathers the facts. `libabey.so` is not asked, because it is not in a
//! process that it cannot reach, and does not see system calls that are made without the C library.
//!
//! # What is judged
//!
//! A socket counts when a thread *waits* for it. So a master process that listens and leaves the rest to its workers is not
//! judged, nor is a child that inherited a listener and does something else. A server is judged while it waits for its first
//! client, and again when its threads wait for connections. Sockets on loopback addresses, connections that a process opened
//! itself, and UDP sockets on ports that the kernel chose are not judged.
//!
//! | needed | engaged when |
//! | --- | --- |
//! | the datapath | the process's datapath has the socket's port; the kernel's socket of a listener is then only for other devices |
//! | busy-poll parameters of epoll | the thread waits in `epoll_wait`, on an instance that has parameters; in io_uring, on a ring with NAPI busy polling |
//! | SO_BUSY_POLL | the socket has it |
//! | `libabey.so` in the process | it is mapped |
//!
//! # Limits
//!
//! A thread that never blocks is not judged, nor a process that the caller may not trace. Connections that the kernel accepted
//! before the process's datapath listened belong to the kernel, and are not reported.

mod judge;
mod read;
mod reason;
#[cfg(test)]
mod tests;

pub use judge::{judge, suspect};
pub use read::{is_sandboxed, library_of, read};
pub use reason::{NotEngaged, Reason};

use std::net::{IpAddr, SocketAddr};

use crate::library::LibraryConfig;
use crate::listeners::Listener;
use crate::process::{EpollParams, Protocol, WaitCall};

/// What has to be true of a program's sockets so that a mode is in effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Needs {
    /// The datapath handles the sockets on these addresses.
    Datapath {
        /// The addresses of the NIC.
        addresses: Vec<IpAddr>,
        /// The ifindex of the NIC, where it is a device of the kernel.
        device: Option<u32>,
    },
    /// Epoll instances have busy-poll parameters.
    Epoll,
    /// Sockets have SO_BUSY_POLL.
    SocketBusyPoll,
    /// The library is in the process.
    Library,
}

impl Needs {
    /// Returns what a configuration of the library needs in the kernel's world; `None` if it changes nothing.
    #[must_use]
    pub fn of_kernel(config: &LibraryConfig) -> Option<Self> {
        match config {
            config if config.is_passive() => None,
            LibraryConfig { epoll: Some(_), .. } => Some(Self::Epoll),
            LibraryConfig { socket_busy_poll: Some(_), .. } => Some(Self::SocketBusyPoll),
            _ => Some(Self::Library),
        }
    }

    /// Returns whether packets for a listener arrive where the mode applies.
    #[must_use]
    pub fn concern(&self, listener: &Listener) -> bool {
        const LOOPBACK: u32 = 1;
        let ip = listener.local.ip();
        match self {
            Self::Datapath { addresses, device } => {
                let any = |v6| addresses.iter().any(|own| own.is_ipv6() == v6);
                let reached = match ip {
                    IpAddr::V4(v4) if v4.is_unspecified() => any(false),
                    IpAddr::V6(v6) if v6.is_unspecified() => any(true) || any(false) && !listener.v6_only,
                    ip => addresses.contains(&ip),
                };
                reached && listener.device.is_none_or(|bound| *device == Some(bound))
            }
            _ => !ip.is_loopback() && listener.device != Some(LOOPBACK),
        }
    }
}

/// Whether `libabey.so` is in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Library {
    /// It is.
    Loaded,
    /// The program is statically linked.
    Static,
    /// The program gains privileges when it starts (`AT_SECURE`, getauxval(3)). The loader does not preload the library, which
    /// does nothing if it is loaded otherwise.
    Privileged,
    /// It is not, for another reason: its environment was cleared.
    Missing,
}

/// A socket that a thread waits for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServedSocket {
    /// Its protocol.
    pub protocol: Protocol,
    /// Its own address.
    pub local: SocketAddr,
    /// Whether it accepts new peers; otherwise it is an accepted connection.
    pub is_listener: bool,
    /// Whether it has SO_BUSY_POLL.
    pub busy_polls: bool,
}

/// One wait of a process: threads that wait alike are one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The call.
    pub call: WaitCall,
    /// The parameters of the epoll instance that it waits for.
    pub epoll: Option<EpollParams>,
    /// Whether the ring that it waits for polls NAPI instances (`io_uring_register_napi(3)`).
    pub ring_polls: bool,
    /// The sockets that the mode concerns and that it waits for.
    pub sockets: Vec<ServedSocket>,
}

/// The sockets of a process's datapath.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DatapathSockets {
    /// The process has no datapath.
    #[default]
    None,
    /// It has one, and these sockets in it accept new peers.
    Listening(Vec<(Protocol, SocketAddr)>),
    /// It has one that cannot be asked.
    Unknown,
}

impl DatapathSockets {
    /// Returns whether the datapath serves the port of a socket.
    #[must_use]
    pub fn serve(&self, protocol: Protocol, at: SocketAddr) -> bool {
        match self {
            Self::None => false,
            Self::Unknown => true,
            Self::Listening(all) => all.iter().any(|(known, own)| {
                let overlaps = own.ip() == at.ip() || own.ip().is_unspecified() || at.ip().is_unspecified();
                *known == protocol && own.port() == at.port() && overlaps
            }),
        }
    }
}

/// What is known of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessFacts {
    /// Its ID.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// Whether the library is in it.
    pub library: Library,
    /// The waits of its threads.
    pub waits: Vec<Wait>,
    /// Its datapath.
    pub datapath: DatapathSockets,
}
