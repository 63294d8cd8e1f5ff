//! What a shard is told about its host, its link and its limits; checked before anything is built from it.

use core::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use thiserror::Error;

/// The smallest MTU IPv6 allows (RFC 8200, section 5). Used for both versions: 576 is history.
pub const MINIMUM_MTU: usize = 1280;

/// The largest a packet may be: IPv4's total length has 16 bits.
pub const MAXIMUM_MTU: usize = 65_535;

/// Why a configuration was refused.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// The Ethernet address is a group address or all zero.
    #[error(
        "the Ethernet address {0:02x?} is not a station's: choose one whose first byte is even and that is not all zero"
    )]
    StationAddress([u8; 6]),
    /// No address was given.
    #[error("the host has no IP address: give at least one")]
    NoAddress,
    /// An address that cannot be a host's.
    #[error("{0} cannot be a host's own address: it is unspecified, multicast, broadcast or loopback")]
    HostAddress(IpAddr),
    /// A prefix longer than the address.
    #[error("the prefix length {1} of {0} is longer than the address")]
    Prefix(IpAddr, u8),
    /// A gateway that is not on the link.
    #[error("the gateway {0} is on no prefix of the host's addresses: it could never be reached")]
    Gateway(IpAddr),
    /// An MTU out of range.
    #[error("the MTU {0} is out of range: it must be {MINIMUM_MTU} to {MAXIMUM_MTU} bytes")]
    Mtu(usize),
    /// A limit out of range.
    #[error("{name} is {value}: it must be {minimum} to {maximum}")]
    Limit {
        /// The setting.
        name: &'static str,
        /// What it was.
        value: usize,
        /// The least it may be.
        minimum: usize,
        /// The most it may be.
        maximum: usize,
    },
}

/// Who finds out a neighbour's Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resolution {
    /// The stack: it asks by ARP and neighbour discovery, and answers. It also answers pings.
    #[default]
    Own,
    /// Somebody else, such as the kernel under AF_XDP, which owns the addresses: the stack neither asks nor answers; it
    /// tells whom it needs by `poll_neighbor_request` and is told by `insert_neighbor`.
    External,
}

/// Who computes transport checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// The NIC has verified the transport checksums of what it delivers; wrong ones never arrive.
    pub receive_verified: bool,
    /// The NIC fills in the transport checksums of what it sends: the stack leaves the pseudo header's sum in the field,
    /// and says where it is in [`crate::FrameInfo`].
    pub transmit_filled: bool,
}

/// How a connection's congestion window grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// CUBIC, RFC 9438.
    #[default]
    Cubic,
    /// Slow start and congestion avoidance of RFC 5681.
    Reno,
}

/// When an idle connection is probed (RFC 9293, section 3.8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence before the first probe.
    pub idle: Duration,
    /// Between probes.
    pub interval: Duration,
    /// Probes without an answer after which the connection is given up.
    pub probes: u8,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self { idle: Duration::from_secs(7200), interval: Duration::from_secs(75), probes: 9 }
    }
}

/// Everything that can be set, with the values a server on a fast network wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The link address.
    pub station: [u8; 6],
    /// Own addresses with the lengths of their prefixes.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Where IPv4 packets go whose destination is on no prefix.
    pub gateway_v4: Option<Ipv4Addr>,
    /// Where IPv6 packets go whose destination is on no prefix.
    pub gateway_v6: Option<Ipv6Addr>,
    /// Largest IP packet, in bytes.
    pub mtu: usize,
    /// Who resolves neighbours.
    pub resolution: Resolution,
    /// Who computes checksums.
    pub offloads: Offloads,
    /// Congestion control of new connections.
    pub congestion_control: CongestionControl,
    /// Whether to offer and accept SACK (RFC 2018). Without it losses are found by NewReno, one a round trip.
    pub sack: bool,
    /// Whether to offer and accept timestamps (RFC 7323). Without them there is no PAWS, and cookies lose the options.
    pub timestamps: bool,
    /// Receive buffer, and so window, a connection starts with, in bytes. It grows to `receive_buffer_limit` when the
    /// application keeps up.
    pub receive_buffer: usize,
    /// Receive buffer at most, in bytes.
    pub receive_buffer_limit: usize,
    /// Send buffer, in bytes.
    pub send_buffer: usize,
    /// Received but unread bytes a UDP socket holds at most, and bytes it holds for sending.
    pub datagram_buffer: usize,
    /// How long an acknowledgement waits for company (RFC 9293, section 3.8.6.3).
    pub delayed_ack: Duration,
    /// Least retransmission timeout. RFC 6298 says one second; 200 ms is what hosts have used for decades.
    pub minimum_rto: Duration,
    /// How long a closed connection is remembered (twice the maximum segment lifetime).
    pub time_wait: Duration,
    /// How long a connection the application has closed waits for the peer's FIN.
    pub fin_wait_2: Duration,
    /// Retransmissions before a connection is given up.
    pub retries: u8,
    /// Retransmissions, and probes of a closed window, before a connection is given up that its application has closed.
    pub orphan_retries: u8,
    /// Retransmissions of a SYN, or of its answer, before the attempt is given up.
    pub syn_retries: u8,
    /// Connections at most, listeners and UDP sockets included.
    pub sockets: usize,
    /// Remembered closed connections at most.
    pub time_waits: usize,
    /// Connections that finish without their application at most.
    pub orphans: usize,
    /// Neighbours remembered at most.
    pub neighbors: usize,
    /// ICMP messages and resets sent a second at most.
    pub icmp_rate: u32,
    /// Challenge acknowledgements sent a second at most (RFC 5961, section 7).
    pub challenge_rate: u32,
    /// First local port used for connections that do not name one; the last is 60999.
    pub ephemeral_from: u16,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            station: [0; 6],
            addresses: Vec::new(),
            gateway_v4: None,
            gateway_v6: None,
            mtu: 1500,
            resolution: Resolution::Own,
            offloads: Offloads::default(),
            congestion_control: CongestionControl::Cubic,
            sack: true,
            timestamps: true,
            receive_buffer: 128 << 10,
            receive_buffer_limit: 4 << 20,
            send_buffer: 1 << 20,
            datagram_buffer: 208 << 10,
            delayed_ack: Duration::from_millis(40),
            minimum_rto: Duration::from_millis(200),
            time_wait: Duration::from_secs(60),
            fin_wait_2: Duration::from_secs(60),
            retries: 15,
            orphan_retries: 8,
            syn_retries: 6,
            sockets: 1 << 20,
            time_waits: 1 << 16,
            orphans: 1 << 16,
            neighbors: 1024,
            icmp_rate: 1000,
            challenge_rate: 1000,
            ephemeral_from: 32_768,
        }
    }
}

/// The last ephemeral port.
pub(crate) const EPHEMERAL_LAST: u16 = 60_999;

/// Checked settings.
#[derive(Clone, Debug)]
pub struct Config(Settings);

impl Config {
    /// Checks `settings`.
    ///
    /// # Errors
    ///
    /// What cannot work, with what to do about it.
    pub fn new(settings: Settings) -> Result<Self, ConfigError> {
        if settings.station[0] & 1 != 0 || settings.station == [0; 6] {
            return Err(ConfigError::StationAddress(settings.station));
        }
        if settings.addresses.is_empty() {
            return Err(ConfigError::NoAddress);
        }
        for &(address, prefix) in &settings.addresses {
            check_host_address(address, prefix)?;
        }
        let gateways = [settings.gateway_v4.map(IpAddr::V4), settings.gateway_v6.map(IpAddr::V6)];
        for gateway in gateways.into_iter().flatten() {
            if !is_link_local(gateway) && !on_link(&settings.addresses, gateway) {
                return Err(ConfigError::Gateway(gateway));
            }
        }
        if !(MINIMUM_MTU..=MAXIMUM_MTU).contains(&settings.mtu) {
            return Err(ConfigError::Mtu(settings.mtu));
        }
        check_limits(&settings)?;
        Ok(Self(settings))
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.0
    }

    /// Whether `address` is one of the host's own.
    pub(crate) fn is_own(&self, address: IpAddr) -> bool {
        self.0.addresses.iter().any(|&(own, _)| own == address)
    }

    /// Whether `address` is the broadcast address of one of the host's networks, or of all.
    pub(crate) fn is_broadcast(&self, address: IpAddr) -> bool {
        let IpAddr::V4(address) = address else { return false };
        address.is_broadcast()
            || self.0.addresses.iter().any(|&(own, prefix)| match own {
                IpAddr::V4(own) if prefix < 31 => {
                    let host = u32::MAX >> prefix;
                    u32::from(own) | host == u32::from(address)
                }
                _ => false,
            })
    }

    /// The address to send from to `destination`: one on the same prefix, else the first of the same version.
    pub(crate) fn source_for(&self, destination: IpAddr) -> Option<IpAddr> {
        let same = |&&(own, _): &&(IpAddr, u8)| own.is_ipv4() == destination.is_ipv4();
        let own = &self.0.addresses;
        own.iter()
            .filter(same)
            .find(|&&(own, prefix)| shares_prefix(own, destination, prefix))
            .or_else(|| own.iter().find(|entry| same(entry) && is_link_local(entry.0) == is_link_local(destination)))
            .or_else(|| own.iter().find(same))
            .map(|&(own, _)| own)
    }

    /// The neighbour to which a packet for `destination` goes.
    pub(crate) fn next_hop(&self, destination: IpAddr) -> Option<IpAddr> {
        if is_link_local(destination) || on_link(&self.0.addresses, destination) {
            return Some(destination);
        }
        match destination {
            IpAddr::V4(_) => self.0.gateway_v4.map(IpAddr::V4),
            IpAddr::V6(_) => self.0.gateway_v6.map(IpAddr::V6),
        }
    }
}

fn check_host_address(address: IpAddr, prefix: u8) -> Result<(), ConfigError> {
    let bits = if address.is_ipv4() { 32 } else { 128 };
    if prefix > bits {
        return Err(ConfigError::Prefix(address, prefix));
    }
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    if address.is_unspecified() || address.is_multicast() || address.is_loopback() || broadcast {
        return Err(ConfigError::HostAddress(address));
    }
    Ok(())
}

fn check_limits(settings: &Settings) -> Result<(), ConfigError> {
    let limits = [
        ("receive_buffer", settings.receive_buffer, 2048, 1 << 28),
        ("receive_buffer_limit", settings.receive_buffer_limit, settings.receive_buffer, 1 << 28),
        ("send_buffer", settings.send_buffer, 2048, 1 << 28),
        ("datagram_buffer", settings.datagram_buffer, 2048, 1 << 28),
        ("sockets", settings.sockets, 1, 1 << 24),
        ("time_waits", settings.time_waits, 1, 1 << 24),
        ("orphans", settings.orphans, 1, 1 << 24),
        ("neighbors", settings.neighbors, 4, 1 << 16),
        ("ephemeral_from", settings.ephemeral_from.into(), 1024, usize::from(EPHEMERAL_LAST)),
        ("retries", settings.retries.into(), 1, 30),
        ("orphan_retries", settings.orphan_retries.into(), 1, 30),
        ("syn_retries", settings.syn_retries.into(), 1, 30),
    ];
    for (name, value, minimum, maximum) in limits {
        if !(minimum..=maximum).contains(&value) {
            return Err(ConfigError::Limit { name, value, minimum, maximum });
        }
    }
    Ok(())
}

fn on_link(addresses: &[(IpAddr, u8)], address: IpAddr) -> bool {
    addresses.iter().any(|&(own, prefix)| shares_prefix(own, address, prefix))
}

fn shares_prefix(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    let differing = match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u32::from(a) ^ u32::from(b)).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(b)) => (u128::from(a) ^ u128::from(b)).leading_zeros(),
        _ => return false,
    };
    differing >= prefix.into()
}

/// fe80::/10.
pub(crate) fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            station: [2, 0, 0, 0, 0, 1],
            addresses: vec![("10.1.2.3".parse().unwrap(), 24), ("fd00::3".parse().unwrap(), 64)],
            gateway_v4: Some(Ipv4Addr::new(10, 1, 2, 1)),
            ..Settings::default()
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn refuses_what_cannot_work() {
        type Change = fn(&mut Settings);
        let cases: [(Change, &str); 8] = [
            (|s| s.station = [1, 0, 0, 0, 0, 0], "not a station's"),
            (|s| s.addresses.clear(), "no IP address"),
            (|s| s.addresses[0].0 = IpAddr::V4(Ipv4Addr::BROADCAST), "host's own"),
            (|s| s.addresses[0].1 = 33, "prefix length 33"),
            (|s| s.gateway_v4 = Some(Ipv4Addr::new(10, 9, 9, 9)), "never be reached"),
            (|s| s.mtu = 576, "MTU 576"),
            (|s| s.receive_buffer_limit = 4096, "receive_buffer_limit is 4096"),
            (|s| s.retries = 0, "retries is 0"),
        ];
        for (change, expected) in cases {
            let mut settings = settings();
            change(&mut settings);
            let error = Config::new(settings).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn routes_by_prefix_then_by_gateway() {
        let config = Config::new(settings()).unwrap();
        assert_eq!(config.next_hop(ip("10.1.2.9")), Some(ip("10.1.2.9")));
        assert_eq!(config.next_hop(ip("8.8.8.8")), Some(ip("10.1.2.1")));
        assert_eq!(config.next_hop(ip("2001:db8::1")), None);
        assert_eq!(config.next_hop(ip("fe80::1")), Some(ip("fe80::1")));
        assert_eq!(config.source_for(ip("8.8.8.8")), Some(ip("10.1.2.3")));
        assert_eq!(config.source_for(ip("fd00::9")), Some(ip("fd00::3")));
        assert!(config.is_broadcast(ip("10.1.2.255")) && !config.is_broadcast(ip("10.1.2.3")));
    }
}
