//! The kernel's properties of an interface: its index, its addresses and its gateways.

use std::fmt::Display;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use netlink_bindings::rt_addr::{self, IfaFlags, Ifaddrmsg};
use netlink_bindings::rt_link::{self, IfinfoFlags, Ifinfomsg};
use netlink_bindings::rt_route::{self, Rtmsg};
use netlink_bindings::traits::NetlinkRequest;
use netlink_socket2::NetlinkSocket;

use crate::error::BuildError;

/// How long to wait for the kernel's detection of duplicate addresses.
const DAD_TIMEOUT: Duration = Duration::from_secs(3);

/// The properties of an interface at one moment.
#[derive(Debug)]
pub(crate) struct Interface {
    pub(crate) index: u32,
    pub(crate) is_up: bool,
    /// The usable addresses with the lengths of their prefixes, link-local addresses last.
    pub(crate) addresses: Vec<(IpAddr, u8)>,
    pub(crate) gateway_v4: Option<Ipv4Addr>,
    pub(crate) gateway_v6: Option<Ipv6Addr>,
}

impl Interface {
    /// Looks up an interface in the network namespace of the calling thread. Returns `None` if there is none of this name.
    ///
    /// # Errors
    /// A netlink request failed.
    pub(crate) fn look_up(name: &str) -> Result<Option<Self>, BuildError> {
        let mut netlink = NetlinkSocket::new();
        let failed = |error: io::Error| BuildError::Netlink { device: name.to_owned(), source: error };
        let Some((index, is_up)) = link(&mut netlink, name).map_err(failed)? else { return Ok(None) };
        let until = Instant::now() + DAD_TIMEOUT;
        let mut addresses = loop {
            let (addresses, tentative) = addresses(&mut netlink, Some(index)).map_err(failed)?;
            if !tentative || !is_up || Instant::now() >= until {
                break addresses;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        addresses.sort_by_key(|(address, _)| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()));
        let mut interface = Self { index, is_up, addresses, gateway_v4: None, gateway_v6: None };
        for family in [address_family(true), address_family(false)] {
            match gateway(&mut netlink, index, family).map_err(failed)? {
                Some(IpAddr::V4(gateway)) => interface.gateway_v4 = Some(gateway),
                Some(IpAddr::V6(gateway)) => interface.gateway_v6 = Some(gateway),
                None => {}
            }
        }
        Ok(Some(interface))
    }
}

/// Returns an address family (`AF_INET`, `AF_INET6`) as netlink's headers have it.
pub(super) fn address_family(is_v4: bool) -> u8 {
    let family = if is_v4 { nix::libc::AF_INET } else { nix::libc::AF_INET6 };
    family as u8
}

fn other(error: impl Display) -> io::Error {
    io::Error::other(error.to_string())
}

/// Sends a request, and converts its replies by `read`.
pub(super) fn request<R: NetlinkRequest, T>(
    netlink: &mut NetlinkSocket,
    message: &R,
    mut read: impl FnMut(R::ReplyType<'_>) -> Option<T>,
) -> io::Result<Vec<T>> {
    let mut replies = netlink.request(message)?;
    let mut found = Vec::new();
    while let Some(reply) = replies.recv() {
        found.extend(read(reply.map_err(|error| match error.as_io_error().raw_os_error() {
            Some(number) => io::Error::from_raw_os_error(number),
            None => other(error),
        })?));
    }
    Ok(found)
}

/// Returns the interface's index and whether it is up.
fn link(netlink: &mut NetlinkSocket, name: &str) -> io::Result<Option<(u32, bool)>> {
    let mut message = rt_link::Request::new().op_getlink_do(&Ifinfomsg::default());
    message.encode().push_ifname_bytes(name.as_bytes());
    let answer = request(netlink, &message, |(header, _)| {
        Some((header.ifi_index.cast_unsigned(), header.ifi_flags & IfinfoFlags::Up as u32 != 0))
    });
    match answer {
        Ok(found) => Ok(found.first().copied()),
        Err(error) if error.raw_os_error() == Some(nix::libc::ENODEV) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the usable addresses of an interface, or of all, and whether others are still tentative.
pub(super) fn addresses(netlink: &mut NetlinkSocket, index: Option<u32>) -> io::Result<(Vec<(IpAddr, u8)>, bool)> {
    let message = rt_addr::Request::new().op_getaddr_dump(&Ifaddrmsg::default());
    let mut tentative = false;
    let found = request(netlink, &message, |(header, attributes)| {
        if index.is_some_and(|index| header.ifa_index != index) {
            return None;
        }
        let flags = attributes.get_flags().unwrap_or(u32::from(header.ifa_flags));
        if flags & IfaFlags::Dadfailed as u32 != 0 {
            return None;
        }
        if flags & IfaFlags::Tentative as u32 != 0 && flags & IfaFlags::Optimistic as u32 == 0 {
            tentative = true;
            return None;
        }
        // On a point-to-point link `address` is the peer's address.
        let address = attributes.get_local().or_else(|_| attributes.get_address()).ok()?;
        Some((address, header.ifa_prefixlen))
    })?;
    Ok((found, tentative))
}

/// Returns the gateway of the interface's best default route in the main table.
fn gateway(netlink: &mut NetlinkSocket, index: u32, family: u8) -> io::Result<Option<IpAddr>> {
    let message = rt_route::Request::new().op_getroute_dump(&Rtmsg { rtm_family: family, ..Rtmsg::default() });
    let found = request(netlink, &message, |(header, attributes)| {
        let is_default = header.rtm_family == family && header.rtm_dst_len == 0;
        let is_main = header.rtm_table == nix::libc::RT_TABLE_MAIN;
        if !is_default || !is_main || attributes.get_oif() != Ok(index) {
            return None;
        }
        Some((attributes.get_priority().unwrap_or(0), attributes.get_gateway().ok()?))
    })?;
    Ok(found.into_iter().min_by_key(|(metric, _)| *metric).map(|(_, gateway)| gateway))
}
