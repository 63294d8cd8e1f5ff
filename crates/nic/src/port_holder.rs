//! Whether a socket entitles a process to the packets of a port.
//!
//! A process that may bind a port of a protocol in the network namespace of a device could receive its packets from the
//! kernel as well: the kernel has checked privileges, and that no other process has the port. So a bound socket is the proof
//! that a broker asks for before it redirects the port to the process's queues.

use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::socket::{getsockopt, sockopt as nix_sockopt};
use rustix::net::sockopt::{socket_domain, socket_protocol};
use rustix::net::{AddressFamily, SocketFlags, SocketType, getsockname, ipproto, socket_with};

use crate::redirect::Protocol;
use crate::sockopt::netns_cookie;

/// What a socket is checked against: a device and its network namespace.
#[derive(Debug)]
pub struct PortHolders {
    device: String,
    /// `None` before Linux 5.14, where the namespace is not checked.
    netns: Option<u64>,
}

impl PortHolders {
    /// Creates the check for a device of the calling thread's network namespace.
    ///
    /// # Errors
    /// When the system refuses a socket.
    pub fn new(device: &str) -> io::Result<Self> {
        let own = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(Self { device: device.to_owned(), netns: netns_cookie(&own).ok() })
    }

    /// Checks that a socket is bound to a port for packets that arrive on the device.
    ///
    /// # Errors
    /// `PermissionDenied` if it is not; those of `getsockopt(2)` if it is no socket.
    pub fn check(&self, socket: BorrowedFd<'_>, protocol: Protocol, port: u16) -> io::Result<()> {
        let kind = match protocol {
            Protocol::Tcp => ipproto::TCP,
            Protocol::Udp => ipproto::UDP,
        };
        let is_ip = matches!(socket_domain(socket)?, AddressFamily::INET | AddressFamily::INET6);
        let is_here = self.netns.is_none_or(|own| netns_cookie(socket).is_ok_and(|of| of == own));
        if !is_ip || !is_here || socket_protocol(socket)? != Some(kind) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let at = SocketAddr::try_from(getsockname(socket)?)?;
        let is_bound = port != 0 && at.port() == port;
        if is_bound && self.receives_at(at.ip().to_canonical(), socket) {
            return Ok(());
        }
        Err(io::ErrorKind::PermissionDenied.into())
    }

    /// Returns whether a socket at an address may receive from the device: it is bound to no other device, and the address
    /// is not one that another device has alone.
    fn receives_at(&self, address: IpAddr, socket: BorrowedFd<'_>) -> bool {
        let device = getsockopt(&socket.as_fd(), nix_sockopt::BindToDevice).unwrap_or_else(|_| OsString::new());
        if !device.is_empty() && device != self.device.as_str() {
            return false;
        }
        if address.is_unspecified() {
            return true;
        }
        let Ok(all) = nix::ifaddrs::getifaddrs() else { return false };
        let owners: Vec<String> =
            all.filter(|one| address_of(one) == Some(address)).map(|one| one.interface_name).collect();
        owners.is_empty() && !address.is_loopback() || owners.contains(&self.device)
    }
}

fn address_of(interface: &nix::ifaddrs::InterfaceAddress) -> Option<IpAddr> {
    let address = interface.address.as_ref()?;
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}
