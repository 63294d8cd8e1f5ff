//! Addresses and ports of a frame: the parts of Ethernet, IPv4 and IPv6 that are needed to steer frames and to detect
//! partial checksums. Every length is checked; a malformed frame has no flow.

/// The flow of a frame, as far as its headers contain it. Addresses and ports are in network order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flow<'a> {
    /// Source and destination address as in the header: 8 bytes for IPv4, 32 for IPv6.
    pub(crate) addresses: &'a [u8],
    /// IP protocol number of the transport, after IPv6 extension headers.
    pub(crate) protocol: u8,
    /// The transport header and payload, bounded by the IP length; `None` for a fragment.
    pub(crate) transport: Option<&'a [u8]>,
}

/// Protocol numbers (IANA).
pub(crate) const ICMP: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMPV6: u8 = 58;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// Maximum number of IPv6 extension headers that are parsed.
const EXTENSIONS: usize = 4;

impl<'a> Flow<'a> {
    /// Returns source and destination port of TCP and UDP: 4 bytes.
    pub(crate) fn ports(&self) -> Option<&'a [u8]> {
        matches!(self.protocol, TCP | UDP).then_some(self.transport?)?.get(..4)
    }

    pub(crate) fn of(frame: &'a [u8]) -> Option<Self> {
        let packet = frame.get(crate::frame::ETHERNET_HEADER..)?;
        match u16::from_be_bytes([frame[12], frame[13]]) {
            IPV4 => Self::of_ipv4(packet),
            IPV6 => Self::of_ipv6(packet),
            _ => None,
        }
    }

    fn of_ipv4(packet: &'a [u8]) -> Option<Self> {
        let header = packet.get(..20)?;
        let length = usize::from(header[0] & 0xf) * 4;
        if header[0] >> 4 != 4 || length < 20 {
            return None;
        }
        let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
        // More fragments, or an offset: only the first fragment has ports, so none may use them.
        let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
        let transport = packet.get(length..total).filter(|_| !fragment);
        Some(Self { addresses: &header[12..20], protocol: header[9], transport })
    }

    fn of_ipv6(packet: &'a [u8]) -> Option<Self> {
        let header = packet.get(..40)?;
        if header[0] >> 4 != 6 {
            return None;
        }
        let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let flow = |protocol, transport| Some(Self { addresses: &header[8..40], protocol, transport });
        let Some(mut rest) = packet.get(40..40 + length) else { return flow(header[6], None) };
        let mut next = header[6];
        for _ in 0..EXTENSIONS {
            match next {
                // Hop-by-hop, routing and destination options: next header, length in 8 bytes beyond the first 8.
                0 | 43 | 60 => {
                    let [following, units, ..] = *rest else { return flow(next, None) };
                    let Some(after) = rest.get(8 + usize::from(units) * 8..) else { return flow(next, None) };
                    (next, rest) = (following, after);
                }
                44 => return flow(rest.first().copied().unwrap_or(next), None),
                _ => return flow(next, Some(rest)),
            }
        }
        flow(next, None)
    }
}
