//! Output of frames: control frames first, then sockets in round-robin order.
//!
//! Sockets with output are in a queue. Each sends a few segments and moves to the back, so that one with a large
//! window does not delay the others. A socket leaves the queue when it has nothing to send now; each event that may
//! change that adds it again.

use smoltcp::wire::IpProtocol;

use super::{
    Entry, Socket, Stack,
    link::{IpHeader, Link},
};
use crate::{
    counters::Counters,
    event::Readiness,
    event::SocketId,
    fragment,
    neighbor::NeighborId,
    packet::{ETHERNET_HEADER_LEN, FrameInfo, frame_len},
    tcp::{
        connection::{Connection, Context},
        segment,
    },
    time::Instant,
    udp::{self, UdpSocket},
};

/// Maximum number of segments that a socket sends per turn.
const SEGMENTS_PER_TURN: usize = 16;

/// Destination of frames: a transmit ring or a list.
pub trait FrameSink {
    /// Returns memory for one frame, at least [`Stack::frame_capacity`] bytes long, or `None` if the sink is full.
    /// The same memory may be returned again until it is committed.
    fn slot(&mut self) -> Option<&mut [u8]>;

    /// Sends the first `len` bytes of the slot as a frame.
    fn commit(&mut self, len: usize, info: FrameInfo);
}

/// Sink that stores frames in memory, for tests and simulations.
#[derive(Clone, Debug, Default)]
pub struct Frames {
    /// Frames in the order in which they were sent.
    pub frames: Vec<Vec<u8>>,
    slot: Vec<u8>,
}

impl FrameSink for Frames {
    fn slot(&mut self) -> Option<&mut [u8]> {
        self.slot.resize(crate::MAXIMUM_MTU + ETHERNET_HEADER_LEN, 0);
        Some(&mut self.slot)
    }

    fn commit(&mut self, len: usize, _info: FrameInfo) {
        self.frames.push(self.slot[..len].to_vec());
    }
}

/// Sink for one frame.
struct SingleFrame<'a> {
    memory: &'a mut [u8],
    frame: Option<(usize, FrameInfo)>,
}

impl FrameSink for SingleFrame<'_> {
    fn slot(&mut self) -> Option<&mut [u8]> {
        self.frame.is_none().then_some(&mut *self.memory)
    }

    fn commit(&mut self, len: usize, info: FrameInfo) {
        self.frame = Some((len, info));
    }
}

/// Result of writing a socket's next frame.
struct Written {
    /// Length of the frame, unless it waits for its neighbour.
    len: Option<usize>,
    /// Whether the socket may have another frame.
    more: bool,
}

/// Result of one socket's turn.
enum Turn {
    /// The socket has no more output now.
    Done,
    /// The socket may have more output.
    More,
    /// The sink is full.
    Full,
}

impl Stack {
    /// Returns the length of the longest frame that this stack sends, in bytes.
    #[must_use]
    pub fn frame_capacity(&self) -> usize {
        ETHERNET_HEADER_LEN + self.config().settings().mtu
    }

    /// Returns whether [`Stack::poll_transmit`] may return a frame. Cheap.
    #[must_use]
    pub fn has_output(&self) -> bool {
        !self.send_queue.is_empty() || self.link.has_control()
    }

    /// Writes the next frame into `frame`, which must be [`Stack::frame_capacity`] long. Returns its length and what
    /// the NIC must do to it.
    pub fn poll_transmit(&mut self, now: Instant, frame: &mut [u8]) -> Option<(usize, FrameInfo)> {
        let mut sink = SingleFrame { memory: frame, frame: None };
        self.poll_transmit_burst(now, &mut sink, 1);
        sink.frame
    }

    /// Writes up to `budget` frames into `sink`. Returns their number.
    pub fn poll_transmit_burst(&mut self, now: Instant, sink: &mut impl FrameSink, budget: usize) -> usize {
        let mut sent = 0;
        if self.link.has_control() {
            self.send_control(sink, budget, &mut sent);
        }
        while sent < budget {
            let Some(id) = self.send_queue.pop_front() else { break };
            let turn = self.take_turn(now, id, sink, budget, &mut sent);
            let Some(entry) = self.sockets.get_mut(id) else { continue };
            match turn {
                Turn::More => self.send_queue.push_back(id),
                Turn::Full => {
                    self.send_queue.push_front(id);
                    break;
                }
                Turn::Done => entry.in_send_queue = false,
            }
        }
        // A frame that waits for its neighbour may have added a solicitation to the control frames.
        if self.link.has_control() {
            self.send_control(sink, budget, &mut sent);
        }
        sent
    }

    fn send_control(&mut self, sink: &mut impl FrameSink, budget: usize, sent: &mut usize) {
        while *sent < budget && self.link.has_control() {
            let Some(slot) = sink.slot() else { return };
            let Some(len) = self.link.next_control(slot, &mut self.counters) else { return };
            let info = self.link.frame_info(&slot[..len]);
            self.counters.frames_sent += 1;
            sink.commit(len, info);
            *sent += 1;
        }
    }

    fn take_turn(
        &mut self,
        now: Instant,
        id: SocketId,
        sink: &mut impl FrameSink,
        budget: usize,
        sent: &mut usize,
    ) -> Turn {
        let mut turn = Turn::More;
        for _ in 0..SEGMENTS_PER_TURN {
            if *sent >= budget {
                break;
            }
            let Some(slot) = sink.slot() else {
                turn = Turn::Full;
                break;
            };
            let Some(written) = self.write_next(now, id, slot) else {
                turn = Turn::Done;
                break;
            };
            if let Some(len) = written.len {
                let info = self.link.frame_info(&slot[..len]);
                self.counters.frames_sent += 1;
                sink.commit(len, info);
                *sent += 1;
            }
            if !written.more {
                turn = Turn::Done;
                break;
            }
        }
        self.after_turn(id);
        turn
    }

    /// Writes the next frame of socket `id`. Returns `None` if there is none.
    fn write_next(&mut self, now: Instant, id: SocketId, slot: &mut [u8]) -> Option<Written> {
        let Self { sockets, link, counters, fragment_ids, budgets, .. } = self;
        match &mut sockets.get_mut(id)?.socket {
            Socket::Listener(_) | Socket::Moved(_) => None,
            Socket::Stream(connection) => {
                let settings = link.config.settings();
                let mut cx = Context { now, settings, counters: &mut *counters, budgets };
                let outgoing = connection.next_segment(&mut cx)?;
                let len = write_segment(link, counters, now, connection, &outgoing, slot);
                Some(Written { len, more: connection.has_output() })
            }
            Socket::Datagram(socket) => {
                if !socket.is_fragmenting() {
                    let datagram = socket.next_outgoing()?;
                    counters.udp_out_datagrams += 1;
                    let frame = frame_len(datagram.peer.ip(), udp::HEADER_LEN + datagram.payload.len());
                    if frame <= ETHERNET_HEADER_LEN + link.config.settings().mtu {
                        let len = write_datagram(link, counters, now, socket, &datagram, slot);
                        return Some(Written { len, more: true });
                    }
                    fragment_ids.1 += 1;
                    socket.fragment(&datagram, fragment_ids.0.hash(fragment_ids.1) as u32);
                }
                Some(Written { len: write_fragment(link, counters, now, socket, slot), more: true })
            }
        }
    }

    /// Updates the timer of a connection that sent, and queues the events of a socket that has room again.
    fn after_turn(&mut self, id: SocketId) {
        let Some(Entry { socket, .. }) = self.sockets.get_mut(id) else { return };
        match socket {
            Socket::Stream(connection) => {
                let deadline = connection.deadline();
                self.wheel.set(id, deadline);
                if connection.edges.contains(Readiness::WRITABLE) {
                    self.enqueue(id);
                }
            }
            _ => self.enqueue(id),
        }
    }
}

fn write_segment(
    link: &mut Link,
    counters: &mut Counters,
    now: Instant,
    connection: &mut Connection,
    outgoing: &crate::tcp::send::Outgoing,
    slot: &mut [u8],
) -> Option<usize> {
    let flow = &connection.flow;
    let outline = IpHeader {
        source: flow.local,
        destination: flow.remote,
        protocol: IpProtocol::Tcp,
        traffic_class: connection.traffic_class | outgoing.header.ecn.bits(),
        fragment: None,
        payload: outgoing.header.len() + outgoing.len,
        neighbor: &mut connection.neighbor,
    };
    let checksums = link.checksums();
    link.write(now, slot, outline, counters, |buffer| {
        let payload = connection.send_buffer.slices(outgoing.offset, outgoing.len);
        let ports = (flow.local_port, flow.remote_port);
        segment::emit(buffer, &outgoing.header, payload, ports, (flow.local, flow.remote), checksums);
    })
}

fn write_datagram(
    link: &mut Link,
    counters: &mut Counters,
    now: Instant,
    socket: &UdpSocket,
    datagram: &udp::Datagram,
    slot: &mut [u8],
) -> Option<usize> {
    let addresses = (datagram.local, datagram.peer.ip());
    let outline = IpHeader {
        source: addresses.0,
        destination: addresses.1,
        protocol: IpProtocol::Udp,
        traffic_class: socket.traffic_class(addresses.1),
        fragment: None,
        payload: udp::HEADER_LEN + datagram.payload.len(),
        neighbor: &mut NeighborId::default(),
    };
    let checksums = link.checksums();
    link.write(now, slot, outline, counters, |buffer| {
        udp::emit(buffer, (socket.local.port(), datagram.peer.port()), &datagram.payload, addresses, checksums);
    })
}

/// Writes the next fragment of the datagram that `socket` is sending. Kept out of the loop that sends segments.
#[cold]
fn write_fragment(
    link: &mut Link,
    counters: &mut Counters,
    now: Instant,
    socket: &mut UdpSocket,
    slot: &mut [u8],
) -> Option<usize> {
    let mtu = link.config.settings().mtu;
    let fragmenter = socket.fragmenter_mut()?;
    let addresses = fragmenter.addresses;
    let (position, part) = fragmenter.next(mtu)?;
    let data = fragmenter.datagram[part].to_vec();
    let is_v4 = addresses.1.is_ipv4();
    let outline = IpHeader {
        source: addresses.0,
        destination: addresses.1,
        protocol: if is_v4 { IpProtocol::Udp } else { IpProtocol::Ipv6Frag },
        traffic_class: socket.traffic_class(addresses.1),
        fragment: Some(position),
        payload: data.len() + if is_v4 { 0 } else { fragment::V6_HEADER_LEN },
        neighbor: &mut NeighborId::default(),
    };
    socket.finish_fragments();
    counters.ip_fragments_created += 1;
    link.write(now, slot, outline, counters, |buffer| {
        let rest = if is_v4 { buffer } else { position.emit_v6(buffer, IpProtocol::Udp) };
        rest.copy_from_slice(&data);
    })
}
