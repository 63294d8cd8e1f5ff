//! Which packets of a port are redirected to AF_XDP sockets.

use serde::{Deserialize, Serialize};

/// A transport protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// TCP over IPv4 and IPv6.
    Tcp,
    /// UDP over IPv4 and IPv6.
    Udp,
}

/// The packets of a port that are redirected to AF_XDP sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Redirected {
    /// None: the kernel gets them.
    Nothing,
    /// TCP: those of connections that began here, but no new connections. UDP: all.
    Flows,
    /// All but those of connections that the kernel has.
    Everything,
}

impl Redirected {
    /// Returns whether new connections to the port are redirected, and whether existing ones are.
    pub(crate) fn open_and_flows(self) -> [bool; 2] {
        [self == Self::Everything, self != Self::Nothing]
    }
}
