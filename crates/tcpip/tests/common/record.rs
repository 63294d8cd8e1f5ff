//! Record of the TCP segments and neighbour discovery packets on a wire: when each was sent, and when it arrived.

use smoltcp::wire::{EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket};

/// Connection of host 0 to host 1: IP version and host 0's port.
pub type Connection = (bool, u16);

/// Returns the connection under which the neighbour discovery for `connection` is recorded.
pub fn neighbor(connection: Connection) -> Connection {
    (connection.0, 0)
}

/// Segment that was sent, or a packet of neighbour discovery with zeros in the fields of TCP.
#[derive(Clone, Debug, Default)]
pub struct Transmission {
    pub connection: Connection,
    pub at: u64,
    pub seq: u32,
    /// Sequence numbers that it occupies.
    pub len: u32,
    pub syn: bool,
    pub rst: bool,
    pub ack: Option<u32>,
    /// Window field.
    pub window: u16,
    /// Times at which an intact copy was processed by the receiver.
    pub arrivals: Vec<u64>,
}

/// Packets of one direction, in the order in which they were sent.
#[derive(Clone, Debug, Default)]
pub struct Record(pub Vec<Transmission>);

impl Record {
    /// Records a frame. Returns its index for [`Record::arrived`], or `usize::MAX` if the frame is not recorded.
    pub fn sent(&mut self, now: u64, frame: &[u8]) -> usize {
        let Some(transmission) = parse(now, frame) else { return usize::MAX };
        self.0.push(transmission);
        self.0.len() - 1
    }

    /// Records the arrival of a copy of frame `index`.
    pub fn arrived(&mut self, now: u64, index: usize) {
        if let Some(transmission) = self.0.get_mut(index) {
            transmission.arrivals.push(now);
        }
    }
}

fn parse(at: u64, frame: &[u8]) -> Option<Transmission> {
    let ethernet = EthernetFrame::new_checked(frame).ok()?;
    let (v6, bytes) = match ethernet.ethertype() {
        EthernetProtocol::Ipv4 => {
            let packet = Ipv4Packet::new_checked(ethernet.payload()).ok()?;
            (false, (packet.next_header() == IpProtocol::Tcp).then(|| packet.payload())?)
        }
        EthernetProtocol::Arp => return Some(Transmission { at, ..Transmission::default() }),
        EthernetProtocol::Ipv6 => {
            let packet = Ipv6Packet::new_checked(ethernet.payload()).ok()?;
            if packet.next_header() == IpProtocol::Icmpv6 {
                return Some(Transmission { connection: (true, 0), at, ..Transmission::default() });
            }
            (true, (packet.next_header() == IpProtocol::Tcp).then(|| packet.payload())?)
        }
        _ => return None,
    };
    let tcp = TcpPacket::new_checked(bytes).ok()?;
    let port = tcp.src_port().max(tcp.dst_port());
    Some(Transmission {
        connection: (v6, port),
        at,
        seq: tcp.seq_number().0.cast_unsigned(),
        len: tcp.payload().len() as u32 + u32::from(tcp.syn()) + u32::from(tcp.fin()),
        syn: tcp.syn(),
        rst: tcp.rst(),
        ack: tcp.ack().then(|| tcp.ack_number().0.cast_unsigned()),
        window: tcp.window_len(),
        arrivals: Vec::new(),
    })
}

impl Transmission {
    /// Returns the sequence number after the segment.
    pub fn end(&self) -> u32 {
        self.seq.wrapping_add(self.len)
    }
}
