//! What the kernel knows of an interface: its number, its addresses and its gateways.

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

/// How long to wait for addresses that the kernel still checks for duplicates.
const SETTLING: Duration = Duration::from_secs(3);

/// An interface as it is now.
#[derive(Debug)]
pub(crate) struct Interface {
    pub(crate) index: u32,
    pub(crate) is_up: bool,
    /// Addresses that are ready, with the lengths of their prefixes; those of links last.
    pub(crate) addresses: Vec<(IpAddr, u8)>,
    pub(crate) gateway_v4: Option<Ipv4Addr>,
    pub(crate) gateway_v6: Option<Ipv6Addr>,
}

impl Interface {
    /// Looks the interface up in the network namespace of the calling thread. `None` if there is none of that name.
    ///
    /// # Errors
    /// When the kernel refuses to tell.
    pub(crate) fn look_up(name: &str) -> Result<Option<Self>, BuildError> {
        let mut netlink = NetlinkSocket::new();
        let failed = |error: io::Error| BuildError::AskKernel { device: name.to_owned(), source: error };
        let Some((index, is_up)) = link(&mut netlink, name).map_err(failed)? else { return Ok(None) };
        let until = Instant::now() + SETTLING;
        let mut addresses = loop {
            let (addresses, tentative) = addresses(&mut netlink, index).map_err(failed)?;
            if !tentative || !is_up || Instant::now() >= until {
                break addresses;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        addresses.sort_by_key(|(address, _)| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()));
        let mut interface = Self { index, is_up, addresses, gateway_v4: None, gateway_v6: None };
        for family in [libc_family(true), libc_family(false)] {
            match gateway(&mut netlink, index, family).map_err(failed)? {
                Some(IpAddr::V4(gateway)) => interface.gateway_v4 = Some(gateway),
                Some(IpAddr::V6(gateway)) => interface.gateway_v6 = Some(gateway),
                None => {}
            }
        }
        Ok(Some(interface))
    }
}

/// The number of an address family (`AF_INET`, `AF_INET6`) in netlink's headers.
pub(super) fn libc_family(is_v4: bool) -> u8 {
    let family = if is_v4 { nix::libc::AF_INET } else { nix::libc::AF_INET6 };
    family as u8
}

fn other(error: impl Display) -> io::Error {
    io::Error::other(error.to_string())
}

/// Every answer to a question, read by `read`.
pub(super) fn ask<R: NetlinkRequest, T>(
    netlink: &mut NetlinkSocket,
    request: &R,
    mut read: impl FnMut(R::ReplyType<'_>) -> Option<T>,
) -> io::Result<Vec<T>> {
    let mut replies = netlink.request(request)?;
    let mut found = Vec::new();
    while let Some(reply) = replies.recv() {
        found.extend(read(reply.map_err(|error| match error.as_io_error().raw_os_error() {
            Some(number) => io::Error::from_raw_os_error(number),
            None => other(error),
        })?));
    }
    Ok(found)
}

/// The interface's number, and whether it is up.
fn link(netlink: &mut NetlinkSocket, name: &str) -> io::Result<Option<(u32, bool)>> {
    let mut request = rt_link::Request::new().op_getlink_do(&Ifinfomsg::default());
    request.encode().push_ifname_bytes(name.as_bytes());
    let answer = ask(netlink, &request, |(header, _)| {
        Some((header.ifi_index.cast_unsigned(), header.ifi_flags & IfinfoFlags::Up as u32 != 0))
    });
    match answer {
        Ok(found) => Ok(found.first().copied()),
        Err(error) if error.raw_os_error() == Some(nix::libc::ENODEV) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The interface's addresses that are ready, and whether there are some that are not yet.
fn addresses(netlink: &mut NetlinkSocket, index: u32) -> io::Result<(Vec<(IpAddr, u8)>, bool)> {
    let request = rt_addr::Request::new().op_getaddr_dump(&Ifaddrmsg::default());
    let mut tentative = false;
    let found = ask(netlink, &request, |(header, attributes)| {
        if header.ifa_index != index {
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
        // The local address; on a point-to-point link `address` is the peer's.
        let address = attributes.get_local().or_else(|_| attributes.get_address()).ok()?;
        Some((address, header.ifa_prefixlen))
    })?;
    Ok((found, tentative))
}

/// The gateway of the interface's best default route in the main table.
fn gateway(netlink: &mut NetlinkSocket, index: u32, family: u8) -> io::Result<Option<IpAddr>> {
    let request = rt_route::Request::new().op_getroute_dump(&Rtmsg { rtm_family: family, ..Rtmsg::default() });
    let found = ask(netlink, &request, |(header, attributes)| {
        let is_default = header.rtm_family == family && header.rtm_dst_len == 0;
        let is_main = header.rtm_table == nix::libc::RT_TABLE_MAIN;
        if !is_default || !is_main || attributes.get_oif() != Ok(index) {
            return None;
        }
        Some((attributes.get_priority().unwrap_or(0), attributes.get_gateway().ok()?))
    })?;
    Ok(found.into_iter().min_by_key(|(metric, _)| *metric).map(|(_, gateway)| gateway))
}
