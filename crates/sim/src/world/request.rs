//! Requests on their way from the client's wire to the server's socket: segments, drops and retransmissions.

use super::World;
use crate::events::Event;
use crate::nic::Packet;
use crate::scenario::Responder;
use crate::wire::Message;

/// Time after which a lost request is retransmitted if nothing else reveals the loss (Linux `TCP_RTO_MIN`).
const RETRANSMIT_NS: u64 = 200_000_000;

/// Requests of a connection as a stream of segments, sent in bursts within a window.
#[derive(Debug, Default)]
pub(super) struct Upload {
    unsent: u32,
    unsent_bytes: u64,
    /// Segments in flight, including lost ones.
    under_way: u32,
    /// Segments that may be in flight: `most`, and less after a loss.
    window: u32,
    most: u32,
}

impl World<'_> {
    /// Puts a request on the wire whose first byte was sent one way delay ago.
    pub(super) fn send_request(&mut self, conn: u32, back_to_back: bool) {
        let sent_at = self.now.saturating_sub(self.way_out());
        let clients = &mut self.clients;
        clients.requests += 1;
        let (flight, message) = clients.new_flight(sent_at, back_to_back);
        let connection = &mut clients.connections[conn as usize];
        connection.flights.push(flight);
        if message.segments > 1 || connection.upload.is_some() {
            return self.add_to_upload(conn, message);
        }
        match clients.wire_in.carry(self.now, message.wire_bytes) {
            0 => self.data_arrives(conn, 1),
            extra => self.events.push(self.now + extra, Event::Data { conn, segments: 1 }),
        }
    }

    fn add_to_upload(&mut self, conn: u32, message: Message) {
        let window = self.clients.new_window();
        let upload = self.clients.connections[conn as usize].upload.get_or_insert_default();
        // After a loss the window grows again from its current value.
        upload.window = if upload.window < upload.most { upload.window.min(window) } else { window };
        upload.most = window;
        upload.unsent += message.segments;
        upload.unsent_bytes += message.wire_bytes;
        self.upload(conn);
    }

    /// Sends as much as the window allows.
    pub(super) fn upload(&mut self, conn: u32) {
        let clients = &mut self.clients;
        let Some(upload) = &mut clients.connections[conn as usize].upload else { return };
        while upload.unsent > 0 && upload.under_way < upload.window {
            let segments = upload.unsent.min(clients.framing.burst).min(upload.window - upload.under_way);
            let bytes = upload.unsent_bytes * u64::from(segments) / u64::from(upload.unsent);
            upload.unsent -= segments;
            upload.unsent_bytes -= bytes;
            upload.under_way += segments;
            let extra = clients.wire_in.carry(self.now, bytes);
            self.events.push(self.now + extra, Event::Data { conn, segments });
        }
    }

    /// Puts segments that arrive together into the ring; those without room are lost.
    pub(super) fn data_arrives(&mut self, conn: u32, segments: u32) {
        let queue = self.clients.queue(conn);
        let room = self.queues[queue].rx.room();
        let taken = if room >= segments as usize { segments } else { room as u32 };
        if taken > 0 {
            let last = Packet::Data { conn, segments: taken };
            self.receive(queue, Packet::Segment, taken - 1, last);
        }
        if taken < segments {
            self.lose(conn, segments - taken, taken > 0);
        }
    }

    /// Handles dropped segments. Other data in flight reveals the loss after two round trips (the tail loss probe of
    /// RFC 8985); otherwise a timeout does. The window is halved (RFC 5681).
    fn lose(&mut self, conn: u32, segments: u32, others: bool) {
        self.counts.drops += u64::from(segments);
        let connection = &mut self.clients.connections[conn as usize];
        connection.lost += segments;
        let mut noticed = others;
        if let Some(upload) = &mut connection.upload {
            noticed |= upload.under_way > segments;
            upload.window = (upload.window / 2).max(1);
        }
        let span = if noticed { 2 * self.profile.client.base_ns } else { RETRANSMIT_NS };
        self.events.push(self.now + span, Event::Resend { conn, segments });
    }

    pub(super) fn resend(&mut self, conn: u32, segments: u32) {
        let clients = &mut self.clients;
        let connection = &mut clients.connections[conn as usize];
        connection.lost -= segments;
        let bytes = match connection.flights.first() {
            Some(flight) if flight.request_bytes > 0 => clients.framing.full_bytes() * u64::from(segments),
            _ => self.profile.client.request_bytes,
        };
        match clients.wire_in.carry(self.now, bytes) {
            0 => self.data_arrives(conn, segments),
            extra => self.events.push(self.now + extra, Event::Data { conn, segments }),
        }
    }

    /// Handles segments that a poll has taken from the ring: whole requests go to their socket, and the client may
    /// send more.
    pub(super) fn data_received(&mut self, conn: u32, segments: u32, cpu: usize, disturbed: bool) {
        let connection = &mut self.clients.connections[conn as usize];
        connection.received += segments;
        if let Some(upload) = &mut connection.upload {
            upload.under_way = upload.under_way.saturating_sub(segments);
            upload.window = (upload.window + 1).min(upload.most);
            if upload.unsent > 0 {
                self.events.push(self.now + self.profile.client.base_ns, Event::Upload { conn });
            }
        }
        if self.scenario.responder == Responder::RoundTrip {
            connection.delivered = 0;
        }
        while connection_has_request(&mut self.clients.connections[conn as usize]) {
            self.deliver(conn, cpu, disturbed);
        }
    }
}

/// Takes the next whole request that has arrived without a gap.
fn connection_has_request(connection: &mut super::client::Connection) -> bool {
    if connection.lost > 0 {
        return false;
    }
    match connection.flights.get(connection.delivered as usize) {
        Some(flight) if flight.segments <= connection.received => {
            connection.received -= flight.segments;
            connection.delivered += 1;
            true
        }
        _ => false,
    }
}
