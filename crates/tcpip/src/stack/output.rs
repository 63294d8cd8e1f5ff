//! Frames out: complete ones first, then sockets in turn.
//!
//! Sockets with something to send stand in a queue; each sends a few segments and goes to the back, so that one with a
//! large window does not keep the others waiting. A socket leaves the queue when it has nothing to send *now*, and every
//! event that may change that puts it back.

use smoltcp::wire::IpProtocol;

use super::{
    Entry, Socket, Stack,
    link::{Link, Outline},
};
use crate::{
    counters::Counters,
    event::SocketId,
    packet::{ETHERNET_HEADER, FrameInfo},
    tcp::{
        connection::{Connection, Context},
        segment,
    },
    time::Instant,
    udp,
};

/// Segments a socket sends before it is another one's turn.
const TURN: usize = 16;

/// Where frames go: a transmit ring, or a list.
pub trait FrameSink {
    /// Memory for one frame, at least as long as [`Stack::frame_capacity`]; `None` when the sink is full. What was
    /// written counts only when it is committed, and the same memory may be offered again.
    fn slot(&mut self) -> Option<&mut [u8]>;

    /// The first `len` bytes of the slot are a frame.
    fn commit(&mut self, len: usize, info: FrameInfo);
}

/// A sink that keeps frames in memory, for tests and simulations.
#[derive(Clone, Debug, Default)]
pub struct Frames {
    /// The frames, in order.
    pub frames: Vec<Vec<u8>>,
    slot: Vec<u8>,
}

impl FrameSink for Frames {
    fn slot(&mut self) -> Option<&mut [u8]> {
        self.slot.resize(crate::MAXIMUM_MTU + ETHERNET_HEADER, 0);
        Some(&mut self.slot)
    }

    fn commit(&mut self, len: usize, _info: FrameInfo) {
        self.frames.push(self.slot[..len].to_vec());
    }
}

/// One frame's memory as a sink.
struct Single<'a> {
    memory: &'a mut [u8],
    frame: Option<(usize, FrameInfo)>,
}

impl FrameSink for Single<'_> {
    fn slot(&mut self) -> Option<&mut [u8]> {
        self.frame.is_none().then_some(&mut *self.memory)
    }

    fn commit(&mut self, len: usize, info: FrameInfo) {
        self.frame = Some((len, info));
    }
}

/// What came of one socket's turn.
enum Turn {
    /// It has nothing more to send now.
    Done,
    /// It may have more.
    More,
    /// The sink is full.
    Full,
}

impl Stack {
    /// The longest frame this stack sends, in bytes.
    #[must_use]
    pub fn frame_capacity(&self) -> usize {
        ETHERNET_HEADER + self.config().settings().mtu
    }

    /// Whether [`Stack::poll_transmit`] may have something. Cheap.
    #[must_use]
    pub fn wants_to_transmit(&self) -> bool {
        !self.sending.is_empty() || self.link.has_control()
    }

    /// Writes the next frame into `frame`, which must be [`Stack::frame_capacity`] long: its length, and what the NIC
    /// must do to it.
    pub fn poll_transmit(&mut self, now: Instant, frame: &mut [u8]) -> Option<(usize, FrameInfo)> {
        let mut sink = Single { memory: frame, frame: None };
        self.poll_transmit_burst(now, &mut sink, 1);
        sink.frame
    }

    /// Writes the next frames into `sink`, at most `budget`; how many.
    pub fn poll_transmit_burst(&mut self, now: Instant, sink: &mut impl FrameSink, budget: usize) -> usize {
        let mut sent = 0;
        while sent < budget && self.send_control(sink) {
            sent += 1;
        }
        while sent < budget {
            let Some(id) = self.sending.pop_front() else { break };
            let turn = self.take_turn(now, id, sink, budget, &mut sent);
            let Some(entry) = self.sockets.get_mut(id) else { continue };
            match turn {
                Turn::More => self.sending.push_back(id),
                Turn::Full => {
                    self.sending.push_front(id);
                    break;
                }
                Turn::Done => entry.is_sending = false,
            }
        }
        // What waited for a neighbour may have made it a question to ask.
        while sent < budget && self.send_control(sink) {
            sent += 1;
        }
        sent
    }

    fn send_control(&mut self, sink: &mut impl FrameSink) -> bool {
        if !self.link.has_control() {
            return false;
        }
        let Some(slot) = sink.slot() else { return false };
        let Some(len) = self.link.next_control(slot, &mut self.counters) else { return false };
        let info = self.link.info(&slot[..len]);
        self.counters.frames_sent += 1;
        sink.commit(len, info);
        true
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
        for _ in 0..TURN {
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
            if let Some(len) = written {
                let info = self.link.info(&slot[..len]);
                self.counters.frames_sent += 1;
                sink.commit(len, info);
                *sent += 1;
            }
        }
        self.after_turn(id);
        turn
    }

    /// Writes the next frame of socket `id`: `None` if there is none, `Some(None)` if it waits for its neighbour.
    fn write_next(&mut self, now: Instant, id: SocketId, slot: &mut [u8]) -> Option<Option<usize>> {
        let Self { sockets, link, counters, challenges, .. } = self;
        match &mut sockets.get_mut(id)?.socket {
            Socket::Listener(_) => None,
            Socket::Stream(connection) => {
                let settings = link.config.settings();
                let mut cx = Context { now, settings, counters: &mut *counters, challenges };
                let outgoing = connection.next_segment(&mut cx)?;
                Some(write_segment(link, counters, now, connection, &outgoing, slot))
            }
            Socket::Datagram(socket) => {
                let datagram = socket.next_outgoing()?;
                let port = socket.local.port();
                counters.udp_out_datagrams += 1;
                Some(write_datagram(link, counters, now, &datagram, port, slot))
            }
        }
    }

    /// The timer of a connection that sent, and the news of a socket that made room.
    fn after_turn(&mut self, id: SocketId) {
        let Some(Entry { socket, .. }) = self.sockets.get_mut(id) else { return };
        match socket {
            Socket::Stream(connection) => {
                let deadline = connection.deadline();
                self.wheel.set(id, deadline);
            }
            _ => self.announce(id),
        }
    }
}

fn write_segment(
    link: &mut Link,
    counters: &mut Counters,
    now: Instant,
    connection: &Connection,
    outgoing: &crate::tcp::send::Outgoing,
    slot: &mut [u8],
) -> Option<usize> {
    let flow = &connection.flow;
    let outline = Outline {
        source: flow.local,
        destination: flow.remote,
        protocol: IpProtocol::Tcp,
        payload: outgoing.header.len() + outgoing.len,
    };
    let checksums = link.checksums();
    link.write(now, slot, outline, counters, |buffer| {
        let payload = connection.outbox.slices(outgoing.offset, outgoing.len);
        let ports = (flow.local_port, flow.remote_port);
        segment::emit(buffer, &outgoing.header, payload, ports, (flow.local, flow.remote), checksums);
    })
}

fn write_datagram(
    link: &mut Link,
    counters: &mut Counters,
    now: Instant,
    datagram: &udp::Datagram,
    port: u16,
    slot: &mut [u8],
) -> Option<usize> {
    let addresses = (datagram.local, datagram.peer.ip());
    let outline = Outline {
        source: addresses.0,
        destination: addresses.1,
        protocol: IpProtocol::Udp,
        payload: udp::HEADER + datagram.payload.len(),
    };
    let checksums = link.checksums();
    link.write(now, slot, outline, counters, |buffer| {
        udp::emit(buffer, (port, datagram.peer.port()), &datagram.payload, addresses, checksums);
    })
}
