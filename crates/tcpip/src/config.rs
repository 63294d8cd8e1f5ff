//! Configuration of a stack: host, link and limits, checked before anything is built from it.

use core::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use thiserror::Error;

/// Smallest MTU that IPv6 allows (RFC 8200, section 5). It applies to IPv4 too.
pub const MINIMUM_MTU: usize = 1280;

/// Largest IP packet: the total length field of IPv4 has 16 bits.
pub const MAXIMUM_MTU: usize = 65_535;

/// Reason why a configuration was refused.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// The Ethernet address is a group address or all zeros.
    #[error("the Ethernet address {0:02x?} is a group address or all zeros: choose one with an even first byte")]
    MacAddress([u8; 6]),
    /// No address was given.
    #[error("the host has no IP address: configure at least one")]
    NoAddress,
    /// The address cannot belong to a host.
    #[error("{0} cannot be a host's own address: it is unspecified, multicast, broadcast, or loopback without hairpin")]
    HostAddress(IpAddr),
    /// The prefix is longer than the address.
    #[error("the prefix length {1} of {0} is longer than the address")]
    Prefix(IpAddr, u8),
    /// The gateway is not on the link.
    #[error("the gateway {0} is unreachable: it is on no prefix of the host's addresses")]
    Gateway(IpAddr),
    /// The MTU is out of range.
    #[error("the MTU {0} is out of range: it must be {MINIMUM_MTU} to {MAXIMUM_MTU} bytes")]
    Mtu(usize),
    /// A limit is out of range.
    #[error("{name} is {value}: it must be {minimum} to {maximum}")]
    Limit {
        /// Name of the setting.
        name: &'static str,
        /// Value that was given.
        value: usize,
        /// Smallest allowed value.
        minimum: usize,
        /// Largest allowed value.
        maximum: usize,
    },
}

/// Source of neighbours' Ethernet addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resolution {
    /// The stack resolves addresses by ARP and neighbour discovery and answers such requests. It also answers pings.
    #[default]
    Internal,
    /// The caller resolves addresses, for example with the kernel's neighbour table under AF_XDP, where the kernel
    /// owns the host's addresses. The stack neither sends nor answers requests. It names the addresses it needs in
    /// `poll_neighbor_request`, and the caller answers with `answer_neighbor` or `insert_neighbor`.
    External,
}

/// Transport checksums that the NIC computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// The NIC verifies the transport checksums of received frames and never delivers a wrong one.
    pub receive_verified: bool,
    /// The NIC fills in the transport checksums of sent frames. The stack writes the sum of the pseudo header into
    /// the field and reports its position in [`crate::FrameInfo`].
    pub transmit_filled: bool,
}

/// Growth of a connection's congestion window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// CUBIC (RFC 9438).
    #[default]
    Cubic,
    /// Slow start and congestion avoidance of RFC 5681.
    Reno,
}

/// Use of explicit congestion notification (RFC 3168), as the kernel's `net.ipv4.tcp_ecn`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EcnMode {
    /// Never.
    Off,
    /// Connections whose peer asks for it.
    #[default]
    Passive,
    /// Also asks for it in connections that this host opens.
    Active,
}

/// Keep-alive probes of an idle connection (RFC 9293, section 3.8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Idle time before the first probe.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Unanswered probes before the connection is aborted.
    pub probes: u8,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self { idle: Duration::from_secs(7200), interval: Duration::from_secs(75), probes: 9 }
    }
}

/// All settings. The defaults suit a server on a fast network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Ethernet address.
    pub mac: [u8; 6],
    /// The host's own addresses, each with its prefix length.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Next hop of IPv4 packets to destinations that are on no prefix.
    pub gateway_v4: Option<Ipv4Addr>,
    /// Next hop of IPv6 packets to destinations that are on no prefix.
    pub gateway_v6: Option<Ipv6Addr>,
    /// Largest IP packet, in bytes.
    pub mtu: usize,
    /// Whether sockets can reach the host's own addresses: the caller passes every frame from the stack whose
    /// destination is `mac` back to [`crate::Stack::handle_looped`]. The host may then have loopback addresses, and with
    /// one of them its whole prefix, as in the kernel's local routing table.
    pub hairpin: bool,
    /// Source of neighbours' Ethernet addresses.
    pub resolution: Resolution,
    /// Checksums that the NIC computes.
    pub offloads: Offloads,
    /// Congestion control of new connections.
    pub congestion_control: CongestionControl,
    /// Use of explicit congestion notification.
    pub ecn: EcnMode,
    /// Whether to offer and accept SACK (RFC 2018). Without it NewReno finds one loss a round trip.
    pub sack: bool,
    /// Whether to offer and accept timestamps (RFC 7323). Without them there is no PAWS, and SYN cookies lose the
    /// options.
    pub timestamps: bool,
    /// Initial receive buffer of a connection, and so its window, in bytes. It grows up to `receive_buffer_limit`
    /// while the application keeps up.
    pub receive_buffer: usize,
    /// Largest receive buffer, in bytes.
    pub receive_buffer_limit: usize,
    /// Send buffer of a connection, in bytes.
    pub send_buffer: usize,
    /// Limit of a UDP socket's received and unread bytes, and of its bytes to be sent.
    pub datagram_buffer: usize,
    /// Longest delay of an acknowledgement (RFC 9293, section 3.8.6.3).
    pub delayed_ack: Duration,
    /// Minimum retransmission timeout. RFC 6298 requires one second; 200 ms is what operating systems use.
    pub minimum_rto: Duration,
    /// Duration of TIME-WAIT (RFC 9293 requires twice the maximum segment lifetime).
    pub time_wait: Duration,
    /// How long a connection that the application closed waits in FIN-WAIT-2 for the peer's FIN.
    pub fin_wait_2: Duration,
    /// Retransmissions before a connection is aborted.
    pub retries: u8,
    /// Retransmissions, and probes of a closed window, before an orphaned connection (closed by the application) is
    /// aborted.
    pub orphan_retries: u8,
    /// Retransmissions of a SYN or SYN-ACK before the attempt fails.
    pub syn_retries: u8,
    /// Limit of sockets: connections, listeners and UDP sockets together.
    pub sockets: usize,
    /// Limit of connections in TIME-WAIT.
    pub time_waits: usize,
    /// Limit of orphaned connections: those that the application has closed and that still finish.
    pub orphans: usize,
    /// Limit of entries in the neighbour cache.
    pub neighbors: usize,
    /// Mean limit of ICMP messages sent per second, a quarter of them to one address. The limit of each second is
    /// random, between half of it and one and a half times.
    pub icmp_rate: u32,
    /// Mean limit of resets sent per second to segments that belong to no connection, in the same way. Programs expect
    /// that each connection to a closed port is refused at once.
    pub reset_rate: u32,
    /// Mean limit of challenge ACKs that a connection sends in five seconds (RFC 5961, section 7). The limit of each
    /// five seconds is random, between half of it and one and a half times.
    pub challenge_rate: u32,
    /// First ephemeral port, for connections and UDP sockets that name no local port. The last one is 60999.
    pub ephemeral_from: u16,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mac: [0; 6],
            addresses: Vec::new(),
            gateway_v4: None,
            gateway_v6: None,
            mtu: 1500,
            hairpin: false,
            resolution: Resolution::Internal,
            offloads: Offloads::default(),
            congestion_control: CongestionControl::Cubic,
            ecn: EcnMode::Passive,
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
            reset_rate: 20_000,
            challenge_rate: 10,
            ephemeral_from: 32_768,
        }
    }
}

/// Last ephemeral port.
pub(crate) const EPHEMERAL_LAST: u16 = 60_999;

/// Settings that were checked.
#[derive(Clone, Debug)]
pub struct Config(Settings);

impl Config {
    /// Checks `settings`.
    ///
    /// # Errors
    ///
    /// The first invalid setting.
    pub fn new(settings: Settings) -> Result<Self, ConfigError> {
        if settings.mac[0] & 1 != 0 || settings.mac == [0; 6] {
            return Err(ConfigError::MacAddress(settings.mac));
        }
        if settings.addresses.is_empty() {
            return Err(ConfigError::NoAddress);
        }
        for &(address, prefix) in &settings.addresses {
            check_host_address(address, prefix, settings.hairpin)?;
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

    /// Returns the settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.0
    }

    /// Returns whether `address` is one of the host's own.
    pub(crate) fn is_local(&self, address: IpAddr) -> bool {
        self.0.addresses.iter().any(|&(own, prefix)| own == address || is_loopback_of(own, prefix, address))
    }

    /// Returns whether packets to `address` are looped back.
    pub(crate) fn is_hairpin(&self, address: IpAddr) -> bool {
        self.0.hairpin && self.is_local(address)
    }

    /// Returns whether `address` is the limited broadcast address or that of one of the host's networks.
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

    /// Returns the source address of packets to `destination`: the same if it is the host's own, else one on the same
    /// prefix, else the first of the same version. Loopback addresses are the source of packets to loopback only.
    pub(crate) fn source_for(&self, destination: IpAddr) -> Option<IpAddr> {
        let same = |&&(own, _): &&(IpAddr, u8)| {
            own.is_ipv4() == destination.is_ipv4() && own.is_loopback() == destination.is_loopback()
        };
        let own = &self.0.addresses;
        own.iter()
            .find(|&&(own, _)| own == destination)
            .or_else(|| own.iter().filter(same).find(|&&(own, prefix)| shares_prefix(own, destination, prefix)))
            .or_else(|| own.iter().find(|entry| same(entry) && is_link_local(entry.0) == is_link_local(destination)))
            .or_else(|| own.iter().find(same))
            .map(|&(own, _)| own)
    }

    /// Returns the address of the neighbour to which a packet for `destination` is sent.
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

fn check_host_address(address: IpAddr, prefix: u8, hairpin: bool) -> Result<(), ConfigError> {
    let bits = if address.is_ipv4() { 32 } else { 128 };
    if prefix > bits {
        return Err(ConfigError::Prefix(address, prefix));
    }
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    if address.is_unspecified() || address.is_multicast() || address.is_loopback() && !hairpin || broadcast {
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

/// Returns whether `address` is on the prefix of the loopback address `own`.
fn is_loopback_of(own: IpAddr, prefix: u8, address: IpAddr) -> bool {
    own.is_loopback() && shares_prefix(own, address, prefix)
}

/// Returns whether `address` is in fe80::/10.
pub(crate) fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            mac: [2, 0, 0, 0, 0, 1],
            addresses: vec![("10.1.2.3".parse().unwrap(), 24), ("fd00::3".parse().unwrap(), 64)],
            gateway_v4: Some(Ipv4Addr::new(10, 1, 2, 1)),
            ..Settings::default()
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn invalid_settings_are_refused() {
        type Change = fn(&mut Settings);
        let cases: [(Change, &str); 8] = [
            (|s| s.mac = [1, 0, 0, 0, 0, 0], "is a group address"),
            (|s| s.addresses.clear(), "no IP address"),
            (|s| s.addresses[0].0 = IpAddr::V4(Ipv4Addr::BROADCAST), "host's own"),
            (|s| s.addresses[0].1 = 33, "prefix length 33"),
            (|s| s.gateway_v4 = Some(Ipv4Addr::new(10, 9, 9, 9)), "10.9.9.9 is unreachable"),
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
    fn with_hairpin_a_loopback_address_is_the_hosts_with_its_prefix() {
        let mut settings = settings();
        settings.addresses.insert(0, (ip("127.0.0.1"), 8));
        assert_eq!(Config::new(settings.clone()).unwrap_err(), ConfigError::HostAddress(ip("127.0.0.1")));
        settings.hairpin = true;
        let config = Config::new(settings).unwrap();
        assert!(config.is_local(ip("127.9.9.9")) && !config.is_local(ip("10.1.2.4")));
        assert_eq!(config.source_for(ip("127.9.9.9")), Some(ip("127.0.0.1")));
        assert_eq!(config.source_for(ip("8.8.8.8")), Some(ip("10.1.2.3")));
        assert_eq!(config.source_for(ip("10.1.2.3")), Some(ip("10.1.2.3")));
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
