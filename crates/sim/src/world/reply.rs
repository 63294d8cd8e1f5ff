//! Answers of several segments: bursts within a window, and acknowledgements that open it.

use std::collections::VecDeque;

use super::World;
use super::client::Flight;
use crate::events::Event;
use crate::nic::Packet;
use crate::scenario::Responder;
use crate::wire::Message;

#[derive(Debug)]
struct Reply {
    flight: Flight,
    unsent: u32,
    unsent_bytes: u64,
    /// Segments that may be in flight while this answer is sent.
    window: u32,
}

/// Answers of a connection that are not completely sent, and their segments in flight.
#[derive(Debug, Default)]
pub(super) struct Download {
    replies: VecDeque<Reply>,
    /// Unacknowledged segments.
    under_way: u32,
}

impl Download {
    /// Returns the number of answers whose last part is not sent yet.
    pub(super) fn replies(&self) -> usize {
        self.replies.len()
    }
}

impl World<'_> {
    pub(super) fn reply(&mut self, conn: u32, flight: &Flight, message: Message) {
        let window = self.clients.new_window();
        let download = self.clients.connections[conn as usize].download.get_or_insert_default();
        let reply = Reply { flight: *flight, unsent: message.segments, unsent_bytes: message.wire_bytes, window };
        download.replies.push_back(reply);
        self.download(conn);
    }

    /// Sends as much as the window allows.
    fn download(&mut self, conn: u32) {
        while let Some((segments, bytes, whole)) = self.next_burst(conn) {
            let extra = self.clients.wire_out.carry(self.now, bytes);
            self.counts.sent += u64::from(segments);
            let queue = self.clients.queue(conn);
            if self.scenario.responder == Responder::EventLoop {
                self.events.push(self.now + extra + self.profile.client.ack_ns, Event::Acks { conn, segments });
            }
            if let Some(flight) = whole {
                self.answered(conn, &flight, extra);
            }
            self.completes(queue);
        }
    }

    /// Returns the next burst: its segments and bytes, and the request if the burst completes the answer.
    fn next_burst(&mut self, conn: u32) -> Option<(u32, u64, Option<Flight>)> {
        let most = self.clients.framing.burst;
        let download = self.clients.connections[conn as usize].download.as_mut()?;
        let reply = download.replies.front_mut()?;
        let mut segments = reply.unsent.min(most);
        // Pings are not acknowledged.
        if self.scenario.responder == Responder::EventLoop {
            segments = segments.min(reply.window.saturating_sub(download.under_way));
            download.under_way += segments;
        }
        if segments == 0 {
            return None;
        }
        let bytes = reply.unsent_bytes * u64::from(segments) / u64::from(reply.unsent);
        reply.unsent -= segments;
        reply.unsent_bytes -= bytes;
        let whole = if reply.unsent == 0 { download.replies.pop_front().map(|reply| reply.flight) } else { None };
        Some((segments, bytes, whole))
    }

    /// Puts the acknowledgements of a burst into the ring. If the ring is full, they are sent again.
    pub(super) fn acks_arrive(&mut self, conn: u32, segments: u32) {
        let queue = self.clients.queue(conn);
        let acks = segments.div_ceil(self.profile.client.segments_per_ack);
        if !self.receive(queue, Packet::Ack, acks - 1, Packet::Window { conn, segments }) {
            let again = self.now + 2 * self.profile.client.base_ns.max(1);
            self.events.push(again, Event::Acks { conn, segments });
        }
    }

    /// Handles the acknowledgement of a burst that a poll has taken from the ring.
    pub(super) fn window_opens(&mut self, conn: u32, segments: u32) {
        if let Some(download) = &mut self.clients.connections[conn as usize].download {
            download.under_way -= segments;
            self.download(conn);
        }
    }
}
