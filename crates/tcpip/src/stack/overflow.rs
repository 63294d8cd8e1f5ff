//! What a listener has no room or no time for, and its caller gives to another listener.
//!
//! On a device that is shared with the kernel, a listener of the kernel has the same port, often as one that several processes
//! share. If this process is busy, another may be free. So a listener with an [`Overflow`] drops nothing:
//!
//! | what | when it is due for the other listener |
//! | --- | --- |
//! | a SYN that finds the listener full | after [`HOLD`], unless there was room before: then it is answered as if it had just arrived |
//! | a connection in the accept queue | after the accept timeout of the listener |
//!
//! *Full* means that as many connections as the limit, or as the backlog if that is smaller, are half open or wait to be
//! accepted. Half-open ones count for at most half of them, so that a flood of SYNs alone does not fill a listener; beyond
//! its backlog it answers with cookies.
//!
//! When something was due, the listener is *paused*: the caller steers new SYNs to the other listener, and not here. It resumes
//! when the application accepts a connection and at most half of the room is taken ([`Stack::poll_resumed_listener`]), or
//! with the next [`Stack::set_overflow`].
//!
//! The caller learns of something new to wait for by [`Stack::take_overflow_notice`]. It asks for the deadline then, and is not
//! notified again of what is due later than that: a server that accepts in time costs one notice for each timeout.

use core::{net::SocketAddr, time::Duration};
use std::collections::VecDeque;

use smoltcp::wire::IpProtocol;

use super::{Entry, Socket, Stack};
use crate::{
    error::IoError,
    event::SocketId,
    flow::Flow,
    packet::{Checksums, HOP_LIMIT, IpFields, Route, emit_headers, frame_len},
    tcp::{
        connection::Owner,
        segment::{self, Header},
    },
    time::{Instant, earliest, nanos},
};

/// How long a SYN is held: a server that only takes a moment to come back for the next connection is back by then.
const HOLD: Duration = Duration::from_millis(5);
/// The most SYNs that are held. Further ones are dropped, and the peers retry.
const MAX_HELD: usize = 1024;
/// Time after which a connection that the other listener did not take is due again.
const RETRY: Duration = Duration::from_millis(100);

/// What a listener leaves to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow {
    /// The most connections that are half open or wait to be accepted. The backlog is a limit too.
    pub limit: usize,
    /// How long a connection waits to be accepted, from its arrival or from the call that sets this; `None`: as long as it
    /// takes.
    pub accept_timeout: Option<Duration>,
}

/// The state of a listener with an [`Overflow`].
#[derive(Debug)]
pub(crate) struct OverflowState {
    pub(crate) limit: usize,
    accept_timeout: Option<Duration>,
    /// When it was set.
    since: Instant,
    is_paused: bool,
}

/// A connection in an accept queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) id: SocketId,
    /// When it arrived, or when the other listener is tried again.
    since: Instant,
}

/// What is held or waited for, of all listeners.
#[derive(Debug, Default)]
pub(super) struct OverflowQueue {
    syns: VecDeque<HeldSyn>,
    /// The listeners with an accept timeout.
    listeners: Vec<SocketId>,
    /// The deadline that the caller knows.
    armed: Option<Instant>,
    has_notice: bool,
    resumed: VecDeque<SocketAddr>,
}

#[derive(Debug)]
struct HeldSyn {
    listener: SocketId,
    flow: Flow,
    header: Header,
    until: Instant,
}

/// A SYN for the other listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedSyn {
    /// Address of this end.
    pub local: SocketAddr,
    /// Address of the peer.
    pub remote: SocketAddr,
    /// Ethernet frame with the SYN.
    pub frame: Vec<u8>,
}

/// Something for the other listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Overdue {
    /// A SYN, which this stack has forgotten.
    Syn(PassedSyn),
    /// A connection that was not accepted, at this port of this end. It stays until [`Stack::move_out_unaccepted`], and is due
    /// again later if that is not called.
    Connection(SocketId, u16),
}

impl Overdue {
    /// Returns the port of this end.
    #[must_use]
    pub fn port(&self) -> u16 {
        match self {
            Self::Syn(syn) => syn.local.port(),
            Self::Connection(_, port) => *port,
        }
    }
}

impl OverflowQueue {
    /// Notes that something is due at a time.
    fn note(&mut self, due: Instant) {
        self.has_notice |= self.armed.is_none_or(|armed| due < armed);
    }
}

impl OverflowState {
    fn due(&self, waiting: &Waiting) -> Option<Instant> {
        Some(waiting.since.max(self.since).plus(nanos(self.accept_timeout?)))
    }
}

impl Waiting {
    pub(super) fn new(now: Instant, id: SocketId) -> Self {
        Self { id, since: now }
    }
}

impl Stack {
    /// Sets what a listener leaves to another one. Without a call it drops what it has no room for. A listener that was paused
    /// resumes.
    ///
    /// # Errors
    ///
    /// The id is stale or not a listener.
    pub fn set_overflow(&mut self, now: Instant, id: SocketId, overflow: Overflow) -> Result<(), IoError> {
        let Overflow { limit, accept_timeout } = overflow;
        match self.sockets.get_mut(id) {
            Some(Entry { socket: Socket::Listener(listener), .. }) => {
                listener.overflow = Some(OverflowState { limit, accept_timeout, since: now, is_paused: false });
            }
            Some(_) => return Err(IoError::WrongKind),
            None => return Err(IoError::NoSuchSocket),
        }
        let queue = &mut self.overflow;
        queue.listeners.retain(|listener| *listener != id);
        if accept_timeout.is_some() {
            queue.listeners.push(id);
        }
        self.note_waiting(id);
        let mut held = core::mem::take(&mut self.overflow.syns);
        held.retain(|syn| {
            let is_answered = syn.listener == id && !self.is_full(id);
            if is_answered {
                self.receive_syn(now, id, &syn.flow, &syn.header, None);
            }
            !is_answered
        });
        self.overflow.syns = held;
        Ok(())
    }

    fn is_full(&self, id: SocketId) -> bool {
        matches!(self.sockets.get(id), Some(Entry { socket: Socket::Listener(listener), .. }) if listener.is_full())
    }

    /// Holds a SYN, unless that is held already.
    pub(super) fn hold_syn(&mut self, now: Instant, listener: SocketId, flow: &Flow, header: &Header) {
        let queue = &mut self.overflow;
        if queue.syns.len() < MAX_HELD && !queue.syns.iter().any(|syn| syn.flow == *flow) {
            let until = now.plus(nanos(HOLD));
            queue.syns.push_back(HeldSyn { listener, flow: *flow, header: *header, until });
            queue.note(until);
        }
    }

    /// Notes that connections wait to be accepted.
    pub(super) fn note_waiting(&mut self, id: SocketId) {
        if let Some(due) = self.waiting_deadline(id) {
            self.overflow.note(due);
        }
    }

    /// Returns when the first connection in the queue of a listener is due.
    fn waiting_deadline(&self, id: SocketId) -> Option<Instant> {
        let Some(Entry { socket: Socket::Listener(listener), .. }) = self.sockets.get(id) else { return None };
        let overflow = listener.overflow.as_ref()?;
        listener.queue.iter().filter_map(|waiting| overflow.due(waiting)).min()
    }

    /// Returns whether something was added that is due before the deadline that the caller knows.
    pub fn take_overflow_notice(&mut self) -> bool {
        core::mem::take(&mut self.overflow.has_notice)
    }

    /// Returns when [`Stack::take_overdue`] will return something, without further events.
    pub fn overdue_deadline(&mut self) -> Option<Instant> {
        let waiting = self.overflow.listeners.iter().filter_map(|id| self.waiting_deadline(*id)).min();
        let syn = self.overflow.syns.front().map(|syn| syn.until);
        self.overflow.armed = earliest(waiting, syn);
        self.overflow.armed
    }

    /// Takes what is due for the other listener. Their listeners are paused.
    pub fn take_overdue(&mut self, now: Instant) -> Vec<Overdue> {
        let mut overdue = Vec::new();
        while self.overflow.syns.front().is_some_and(|syn| syn.until <= now) {
            let Some(syn) = self.overflow.syns.pop_front() else { break };
            self.counters.tcp_passed_syns += 1;
            self.pause(syn.listener);
            overdue.push(Overdue::Syn(self.passed_syn(&syn)));
        }
        let mut listeners = core::mem::take(&mut self.overflow.listeners);
        listeners.retain(|id| self.take_overdue_connections(now, *id, &mut overdue));
        self.overflow.listeners = listeners;
        overdue
    }

    /// Adds the connections that are due. Returns false if there is no such listener.
    fn take_overdue_connections(&mut self, now: Instant, id: SocketId, overdue: &mut Vec<Overdue>) -> bool {
        let Some(Entry { socket: Socket::Listener(listener), .. }) = self.sockets.get_mut(id) else { return false };
        let Some(overflow) = &mut listener.overflow else { return false };
        for waiting in &mut listener.queue {
            if overflow.due(waiting).is_some_and(|due| due <= now) {
                waiting.since = now.plus(nanos(RETRY));
                overflow.is_paused = true;
                overdue.push(Overdue::Connection(waiting.id, listener.local.port()));
            }
        }
        true
    }

    fn pause(&mut self, id: SocketId) {
        if let Some(Entry { socket: Socket::Listener(listener), .. }) = self.sockets.get_mut(id)
            && let Some(overflow) = &mut listener.overflow
        {
            overflow.is_paused = true;
        }
    }

    /// Resumes a paused listener that has room again, of which the application has accepted a connection.
    pub(super) fn resume_listener(&mut self, id: SocketId) {
        if let Some(Entry { socket: Socket::Listener(listener), .. }) = self.sockets.get_mut(id)
            && listener.is_half_empty()
            && let Some(overflow) = &mut listener.overflow
            && core::mem::take(&mut overflow.is_paused)
        {
            self.overflow.resumed.push_back(listener.local);
        }
    }

    /// Returns the address of the next listener that has resumed: new SYNs are welcome again.
    pub fn poll_resumed_listener(&mut self) -> Option<SocketAddr> {
        self.overflow.resumed.pop_front()
    }

    /// Takes all that a listener has, before it is closed: held SYNs, and connections that were not accepted, half-open ones
    /// included.
    pub fn take_all_unaccepted(&mut self, id: SocketId) -> Vec<Overdue> {
        self.pause(id);
        let held = core::mem::take(&mut self.overflow.syns);
        let (taken, left): (VecDeque<_>, _) = held.into_iter().partition(|syn| syn.listener == id);
        self.overflow.syns = left;
        self.counters.tcp_passed_syns += taken.len() as u64;
        let mut all: Vec<_> = taken.iter().map(|syn| Overdue::Syn(self.passed_syn(syn))).collect();
        let unaccepted = self.sockets.iter().filter_map(|(child, entry)| match &entry.socket {
            Socket::Stream(connection) if matches!(connection.owner, Owner::HalfOpen(of) | Owner::Queued(of) if of == id) => {
                Some(Overdue::Connection(child, connection.flow.local_port))
            }
            _ => None,
        });
        all.extend(unaccepted);
        all
    }

    fn passed_syn(&self, syn: &HeldSyn) -> PassedSyn {
        let (local, remote) = (syn.flow.local(), syn.flow.remote());
        let mac = self.config().settings().mac;
        let addresses = (remote.ip(), local.ip());
        let route = Route { source: addresses.0, destination: addresses.1, source_mac: mac, destination_mac: mac };
        let mut frame = vec![0; frame_len(addresses.1, syn.header.len())];
        let fields = IpFields { protocol: IpProtocol::Tcp, hop_limit: HOP_LIMIT, traffic_class: 0, fragment: None };
        let segment = emit_headers(&mut frame, &route, fields);
        let ports = (remote.port(), local.port());
        segment::emit(segment, &syn.header, (&[], &[]), ports, addresses, Checksums::Full);
        PassedSyn { local, remote, frame }
    }
}
