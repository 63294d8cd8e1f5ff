//! The kernel's route to a destination.

use std::io;
use std::net::IpAddr;

use netlink_bindings::rt_route::{self, Rtmsg};
use netlink_socket2::NetlinkSocket;

use super::interface::{address_family, request};

/// The kernel's route to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Route {
    /// The index of the interface.
    pub device: u32,
    /// The router; `None` if the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// The source address of packets that have none yet.
    pub source: Option<IpAddr>,
    /// The destination is a local address of the machine.
    pub is_local: bool,
}

impl Route {
    /// Looks up the route to `to` in the network namespace of the calling thread.
    ///
    /// # Errors
    /// There is no route, or the netlink request failed.
    pub fn look_up(to: IpAddr) -> io::Result<Self> {
        let header = Rtmsg {
            rtm_family: address_family(to.is_ipv4()),
            rtm_dst_len: if to.is_ipv4() { 32 } else { 128 },
            ..Rtmsg::default()
        };
        let mut message = rt_route::Request::new().op_getroute_do(&header);
        message.encode().push_dst(to);
        let found = request(&mut NetlinkSocket::new(), &message, |(header, attributes)| {
            Some(Self {
                device: attributes.get_oif().ok()?,
                gateway: attributes.get_gateway().ok(),
                source: attributes.get_prefsrc().ok(),
                is_local: header.rtm_type == nix::libc::RTN_LOCAL,
            })
        })?;
        found.first().copied().ok_or_else(|| io::Error::from_raw_os_error(nix::libc::ENETUNREACH))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_address_is_local() {
        let route = Route::look_up([127, 0, 0, 1].into()).expect("a route");
        assert!(route.is_local && route.gateway.is_none(), "{route:?}");
        assert_eq!(route.source, Some([127, 0, 0, 1].into()));
    }
}
