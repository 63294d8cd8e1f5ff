//! TCP input: segments to connections, listeners, SYN cookies and TIME-WAIT entries (RFC 9293, section 3.10.7).

use smoltcp::wire::IpProtocol;

use super::{Entry, Socket, Stack, link::IpHeader};
use crate::{
    TcpOptions,
    demux::Target,
    event::SocketId,
    flow::Flow,
    gro::Run,
    listener::Listener,
    neighbor::NeighborId,
    tcp::{
        connection::{Connection, Owner},
        cookies,
        ecn::Ecn,
        handshake::InitialParameters,
        isn,
        options::{Options, Timestamp},
        receive::Reply,
        segment::{self, Flags, HEADER_LEN, Header},
        seq::Seq,
        time_wait::TimeWaitAction,
    },
    tcp_options::clamp_buffer,
    time::Instant,
};

impl Stack {
    pub(super) fn receive_run(&mut self, now: Instant, run: &Run<'_>) {
        self.counters.tcp_coalesced += run.payload.segments() - 1;
        match self.flows.find(&run.flow) {
            Some(Target::Connection(id)) => self.receive_in_connection(now, id, run),
            Some(Target::TimeWait(id)) => {
                match self.time_waits.receive(now, id, &run.header, run.payload.len()) {
                    TimeWaitAction::Ignore => {}
                    TimeWaitAction::Acknowledge(header) => self.send_header(now, &run.flow, &header),
                    TimeWaitAction::Reuse(from) => {
                        // Without a listener that takes the SYN the entry stays in TIME-WAIT.
                        if let Some(listener) = self.listening.find(run.flow.local, run.flow.local_port)
                            && !self.drop_syn_if_full(listener)
                        {
                            self.counters.tcp_time_wait_reused += 1;
                            self.time_waits.remove(id);
                            self.flows.remove(&run.flow, Target::TimeWait(id));
                            self.receive_syn(now, listener, &run.flow, &run.header, Some(from));
                        }
                    }
                }
            }
            Some(Target::Moved(until)) if now < until => self.counters.tcp_moved_segments += run.payload.segments(),
            Some(target @ Target::Moved(_)) => {
                self.flows.remove(&run.flow, target);
                self.receive_unknown(now, run);
            }
            None => self.receive_unknown(now, run),
        }
    }

    fn receive_in_connection(&mut self, now: Instant, id: SocketId, run: &Run<'_>) {
        self.prefetch(id);
        if self.accept_queue_is_full(id, &run.header) {
            self.counters.tcp_listen_overflows += 1;
            return;
        }
        let Some((connection, mut cx)) = self.connection_mut(now, id) else { return };
        match connection.receive(&mut cx, &run.header, &run.payload) {
            Reply::None => {}
            Reply::Reset => self.refuse(now, run),
            Reply::Abort => self.abort_connection(now, id),
        }
        self.sync_socket(now, id);
    }

    /// Returns whether the final ACK of a handshake must be dropped, because the accept queue is full. The peer
    /// retries.
    fn accept_queue_is_full(&self, id: SocketId, header: &Header) -> bool {
        let Some(Entry { socket: Socket::Stream(connection), .. }) = self.sockets.get(id) else { return false };
        let Owner::HalfOpen(listener) = connection.owner else { return false };
        let full = match self.sockets.get(listener) {
            Some(Entry { socket: Socket::Listener(listener), .. }) => listener.is_queue_full(),
            _ => true,
        };
        full && header.has(Flags::ACK) && !header.has(Flags::RST) && !header.has(Flags::SYN)
    }

    fn receive_unknown(&mut self, now: Instant, run: &Run<'_>) {
        let header = &run.header;
        if let Some(id) = self.listening.find(run.flow.local, run.flow.local_port) {
            if header.has(Flags::RST) {
                return;
            }
            if header.has(Flags::SYN) && !header.has(Flags::ACK) {
                if !header.has(Flags::FIN) && !self.drop_syn_if_full(id) {
                    self.receive_syn(now, id, &run.flow, header, None);
                }
                return;
            }
            if !header.has(Flags::ACK) {
                return;
            }
            if !header.has(Flags::SYN) && self.receive_cookie(now, id, run) {
                return;
            }
        }
        self.refuse(now, run);
    }

    fn listener_mut(&mut self, id: SocketId) -> Option<&mut Listener> {
        match self.sockets.get_mut(id) {
            Some(Entry { socket: Socket::Listener(listener), .. }) => Some(listener),
            _ => None,
        }
    }

    /// Returns whether a SYN to listener `id` must be dropped, because its accept queue is full, and counts it.
    fn drop_syn_if_full(&mut self, id: SocketId) -> bool {
        let full = self.listener_mut(id).is_none_or(|listener| listener.is_queue_full() && listener.overflow.is_none());
        self.counters.tcp_listen_overflows += u64::from(full);
        self.counters.tcp_listen_drops += u64::from(full);
        full
    }

    /// Returns the initial sequence number, timestamp offset and path MTU of a new connection.
    pub(super) fn initial_parameters(&self, now: Instant, flow: &Flow) -> InitialParameters {
        InitialParameters {
            initial: self.numbers.initial(now, flow),
            timestamp_offset: self.numbers.timestamp_offset(flow),
            path_mtu: self.paths.mtu(now, flow.remote).unwrap_or(u16::MAX).min(self.config().settings().mtu as u16),
        }
    }

    /// Handles a SYN to listener `id`, whose accept queue is not full. `from` is the lowest initial sequence number,
    /// if the flow was used before.
    pub(super) fn receive_syn(&mut self, now: Instant, id: SocketId, flow: &Flow, header: &Header, from: Option<Seq>) {
        let full = self.sockets.len() >= self.config().settings().sockets;
        let Some(listener) = self.listener_mut(id) else { return };
        if listener.is_full() {
            self.hold_syn(now, id, flow, header);
            return;
        }
        if listener.is_flooded() || full {
            listener.cookie_sent(now);
            let options = listener.options;
            self.send_cookie(now, flow, header, &options);
            return;
        }
        let (flooded_lately, options) = (listener.expects_cookies(now), listener.options);
        let mut start = self.initial_parameters(now, flow);
        let mut syn = *header;
        if let Some(from) = from {
            start.initial = start.initial.later(from);
        } else if flooded_lately {
            // This SYN may be a retransmission whose first copy was answered with a cookie. Both answers must be the
            // same.
            start.initial = self.cookies.make(now, flow, syn.seq, syn.options.mss.unwrap_or(536));
            syn = cookies::encodable_syn(&syn, self.config().settings().timestamps);
        }
        let connection = Connection::passive(self.config().settings(), *flow, start, (id, &options), &syn, now);
        self.insert_accepted(now, id, connection);
    }

    /// Adds a half-open connection of listener `id`.
    fn insert_accepted(&mut self, now: Instant, id: SocketId, connection: Connection) -> Option<SocketId> {
        let listener = self.listener_mut(id)?;
        listener.half_open += 1;
        let flow = connection.flow;
        let child = self.insert(Socket::Stream(Box::new(connection)));
        self.flows.insert(flow, Target::Connection(child));
        self.sync_socket(now, child);
        Some(child)
    }

    fn send_cookie(&mut self, now: Instant, flow: &Flow, syn: &Header, inherited: &TcpOptions) {
        let settings = self.config().settings();
        let longest = (settings.mtu - flow.ip_header() - HEADER_LEN) as u16;
        let own_mss = inherited.maximum_segment.map_or(longest, |own| own.min(longest));
        let window = inherited.receive_buffer.map_or(settings.receive_buffer, clamp_buffer);
        let syn = cookies::encodable_syn(syn, settings.timestamps);
        let (options, ecn) = (syn.options, Ecn::passive(settings.ecn, &syn));
        let timestamp = options.timestamp.map(|timestamp| Timestamp {
            value: cookies::encode_options(
                isn::timestamp(now, self.numbers.timestamp_offset(flow)),
                &options,
                ecn.is_agreed(),
            ),
            echo: timestamp.value,
        });
        let header = Header {
            seq: self.cookies.make(now, flow, syn.seq, syn.options.mss.unwrap_or(536)),
            ack: syn.seq.plus(1),
            flags: Flags::SYN.with(Flags::ACK).with(ecn.syn_flags(true)),
            window: window.min(0xffff) as u16,
            options: Options {
                mss: Some(own_mss),
                window_scale: options.window_scale.map(|_| Connection::offered_scale(settings)),
                sack_permitted: options.sack_permitted && settings.sack,
                timestamp,
                ..Options::default()
            },
            ..Header::default()
        };
        self.counters.tcp_syncookies_sent += 1;
        self.send_header(now, flow, &header);
    }

    /// Handles an ACK that may carry a cookie. Returns false if the segment must be answered with a reset.
    fn receive_cookie(&mut self, now: Instant, id: SocketId, run: &Run<'_>) -> bool {
        let full = self.sockets.len() >= self.config().settings().sockets;
        let Some(listener) = self.listener_mut(id) else { return false };
        if !listener.expects_cookies(now) {
            return false;
        }
        let (queue_full, options) = (listener.is_queue_full(), listener.options);
        let (header, flow) = (&run.header, &run.flow);
        let cookie = header.ack.minus(1);
        let Some(mss) = self.cookies.check(now, flow, header.seq.minus(1), cookie) else {
            // It may be a later segment of a connection whose first one was lost, so a reset would end a valid
            // connection.
            self.counters.tcp_syncookies_failed += 1;
            return true;
        };
        if queue_full || full {
            // The cookie is valid, but there is no room. The peer retransmits.
            self.counters.tcp_listen_overflows += 1;
            return true;
        }
        self.counters.tcp_syncookies_received += 1;
        let cookie_options = cookies::decode_options(mss, header.options.timestamp.map(|timestamp| timestamp.echo));
        let start = InitialParameters { initial: cookie, ..self.initial_parameters(now, flow) };
        let settings = self.link.config.settings();
        let connection = Connection::from_cookie(settings, *flow, start, (id, &options), header, cookie_options, now);
        if let Some(child) = self.insert_accepted(now, id, connection) {
            self.receive_in_connection(now, child, run);
        }
        true
    }

    /// Answers a segment that belongs to no connection with a reset (RFC 9293, section 3.10.7.1).
    fn refuse(&mut self, now: Instant, run: &Run<'_>) {
        let header = &run.header;
        if header.has(Flags::RST) {
            return;
        }
        if !self.resets.take(now, run.flow.remote) {
            self.counters.tcp_resets_skipped += 1;
            return;
        }
        let reset = if header.has(Flags::ACK) {
            Header { seq: header.ack, flags: Flags::RST, ..Header::default() }
        } else {
            Header { ack: header.range(run.payload.len()).end, flags: Flags::RST.with(Flags::ACK), ..Header::default() }
        };
        self.send_header(now, &run.flow, &reset);
    }

    /// Sends a segment without payload that no connection retransmits.
    pub(super) fn send_header(&mut self, now: Instant, flow: &Flow, header: &Header) {
        self.counters.tcp_out_segments += 1;
        self.counters.tcp_out_resets += u64::from(header.has(Flags::RST));
        let outline = IpHeader {
            source: flow.local,
            destination: flow.remote,
            protocol: IpProtocol::Tcp,
            traffic_class: header.ecn.bits(),
            fragment: None,
            payload: header.len(),
            neighbor: &mut NeighborId::default(),
        };
        let checksums = self.link.checksums();
        self.link.send(now, outline, &mut self.counters, |buffer| {
            let ports = (flow.local_port, flow.remote_port);
            segment::emit(buffer, header, (&[], &[]), ports, (flow.local, flow.remote), checksums);
        });
    }
}
