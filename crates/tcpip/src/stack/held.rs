//! SYNs that a listener may not answer now, because its limit is reached.
//!
//! A listener may be shared with other processes, through the kernel. If this one is busy with its connections, another may
//! be free. So a SYN beyond the limit ([`Stack::set_listen_limit`]) is held for [`HOLD`]: a server that only takes a moment to
//! come back for the next connection raises the limit within that time, and the SYN is answered as if it had just arrived.
//! After that the caller gives it to the kernel, whose listener all processes have.

use core::{net::SocketAddr, time::Duration};
use std::collections::VecDeque;

use smoltcp::wire::IpProtocol;

use super::{Entry, Socket, Stack};
use crate::{
    error::IoError,
    event::SocketId,
    flow::Flow,
    packet::{Checksums, HOP_LIMIT, IpFields, Route, emit_headers, frame_len},
    tcp::segment::{self, Header},
    time::{Instant, nanos},
};

/// How long a SYN is held.
const HOLD: Duration = Duration::from_millis(5);
/// The most SYNs that are held. Further ones are dropped, and the peers retry.
const MAX_HELD: usize = 1024;

/// SYNs that are held, in the order in which they arrived.
#[derive(Debug, Default)]
pub(super) struct HeldSyns {
    queue: VecDeque<HeldSyn>,
    /// A SYN was added since the caller asked last.
    has_new: bool,
}

#[derive(Debug)]
struct HeldSyn {
    listener: SocketId,
    flow: Flow,
    header: Header,
    until: Instant,
}

/// A SYN for the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedSyn {
    /// Address of this end.
    pub local: SocketAddr,
    /// Address of the peer.
    pub remote: SocketAddr,
    /// Ethernet frame with the SYN.
    pub frame: Vec<u8>,
}

impl Stack {
    /// Sets how many connections of a listener may be half open or wait to be accepted. SYNs beyond that are held, and then
    /// due for the kernel ([`Stack::take_overdue_syns`]). Without a call there is no limit but the backlog.
    ///
    /// # Errors
    ///
    /// The id is stale or not a listener.
    pub fn set_listen_limit(&mut self, now: Instant, id: SocketId, limit: usize) -> Result<(), IoError> {
        match self.sockets.get_mut(id) {
            Some(Entry { socket: Socket::Listener(listener), .. }) => listener.limit = limit,
            Some(_) => return Err(IoError::WrongKind),
            None => return Err(IoError::NoSuchSocket),
        }
        let mut held = core::mem::take(&mut self.held.queue);
        held.retain(|syn| {
            let is_answered = syn.listener == id && !self.is_at_limit(id);
            if is_answered {
                self.receive_syn(now, id, &syn.flow, &syn.header, None);
            }
            !is_answered
        });
        self.held.queue = held;
        Ok(())
    }

    fn is_at_limit(&self, id: SocketId) -> bool {
        matches!(self.sockets.get(id), Some(Entry { socket: Socket::Listener(listener), .. }) if listener.is_at_limit())
    }

    /// Holds a SYN, unless that is held already.
    pub(super) fn hold_syn(&mut self, now: Instant, listener: SocketId, flow: &Flow, header: &Header) {
        let held = &mut self.held;
        if held.queue.len() < MAX_HELD && !held.queue.iter().any(|syn| syn.flow == *flow) {
            held.queue.push_back(HeldSyn { listener, flow: *flow, header: *header, until: now.plus(nanos(HOLD)) });
            held.has_new = true;
        }
    }

    /// Returns whether a SYN was held since the last call.
    pub fn take_held_notice(&mut self) -> bool {
        core::mem::take(&mut self.held.has_new)
    }

    /// Returns when [`Stack::take_overdue_syns`] will return something.
    #[must_use]
    pub fn held_syn_deadline(&self) -> Option<Instant> {
        self.held.queue.front().map(|syn| syn.until)
    }

    /// Takes the SYNs that were held for long enough, for the kernel.
    pub fn take_overdue_syns(&mut self, now: Instant) -> Vec<PassedSyn> {
        let mut overdue = Vec::new();
        while self.held_syn_deadline().is_some_and(|until| until <= now) {
            let Some(syn) = self.held.queue.pop_front() else { break };
            self.counters.tcp_passed_syns += 1;
            overdue.push(self.passed_syn(&syn));
        }
        overdue
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
