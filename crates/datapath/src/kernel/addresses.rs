//! The addresses for which the XDP program redirects packets: those of the stack that the host has at present.
//!
//! The stack's addresses are fixed. One that leaves the host (it moved to another one, whose packets this host may forward) is
//! not served until it comes back; its packets are the kernel's meanwhile, as are those to addresses that the stack has not.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use abey_nic::Ports;
use netlink_socket2::NetlinkSocket;
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket};

use super::interface;

/// The usable addresses of all devices of a network namespace.
pub struct HostAddresses(NetlinkSocket);

impl std::fmt::Debug for HostAddresses {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("HostAddresses").finish_non_exhaustive()
    }
}

impl HostAddresses {
    /// Opens the addresses of the calling thread's network namespace.
    ///
    /// # Errors
    /// Those of netlink.
    pub fn open() -> io::Result<Self> {
        let mut this = Self(NetlinkSocket::new());
        // The first request opens the socket, so it must be made in this namespace.
        this.list()?;
        Ok(this)
    }

    /// Returns the addresses at present.
    ///
    /// # Errors
    /// Those of netlink.
    pub fn list(&mut self) -> io::Result<BTreeSet<IpAddr>> {
        let (addresses, _) = interface::addresses(&mut self.0, None)?;
        Ok(addresses.into_iter().map(|(address, _)| address).collect())
    }
}

/// The addresses of a stack, and which of them are served.
#[derive(Debug)]
pub(super) struct ServedAddresses {
    host: HostAddresses,
    /// A netlink socket that becomes readable when an address of the host has changed.
    changes: OwnedFd,
    ports: Ports,
    of_stack: BTreeSet<IpAddr>,
    served: BTreeSet<IpAddr>,
}

impl ServedAddresses {
    /// Serves a stack's addresses in the network namespace of the calling thread.
    pub(super) fn open(ports: Ports, of_stack: BTreeSet<IpAddr>) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let changes = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
        let groups = [libc::RTNLGRP_IPV4_IFADDR, libc::RTNLGRP_IPV6_IFADDR];
        let groups = groups.iter().fold(0, |all, group| all | 1 << (group - 1));
        bind(changes.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
        let host = HostAddresses::open()?;
        let mut this = Self { host, changes, ports, of_stack, served: BTreeSet::new() };
        this.sync()?;
        Ok(this)
    }

    /// Reads what has changed, and serves the addresses that the host has now.
    pub(super) fn apply_changes(&mut self) {
        // What has changed is read anew, and so is what was lost (ENOBUFS).
        let mut buffer = [0; 4096];
        let mut receive = || recv(self.changes.as_raw_fd(), &mut buffer, MsgFlags::empty());
        while let Ok(_) | Err(Errno::EINTR | Errno::ENOBUFS) = receive() {}
        // If this fails, the addresses stay as they are until the next change.
        let _ = self.sync();
    }

    fn sync(&mut self) -> io::Result<()> {
        let present = self.host.list()?;
        for &address in &self.of_stack {
            let is_present = present.contains(&address);
            if is_present == self.served.contains(&address) {
                continue;
            }
            self.ports.serve(address, is_present)?;
            if is_present {
                self.served.insert(address);
            } else {
                self.served.remove(&address);
            }
        }
        Ok(())
    }
}

impl AsFd for ServedAddresses {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }
}
