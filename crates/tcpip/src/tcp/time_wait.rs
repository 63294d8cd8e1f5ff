//! TIME-WAIT (RFC 9293, 3.6.1; RFC 1337; RFC 6191).
//!
//! The side that closes first keeps the connection for a time, to acknowledge a retransmitted FIN and to keep old
//! segments out of a new connection with the same ports. Entries are small and bounded in number. All have the same
//! lifetime, so one queue in order of time serves as their timer. A reset does not end TIME-WAIT (RFC 1337). A SYN
//! that is newer by its timestamp or sequence number starts a new connection with the same ports (RFC 6191).

use std::collections::VecDeque;

use slotmap::SlotMap;

use super::{
    ack,
    connection::Connection,
    isn,
    options::{Options, Timestamp},
    segment::{Flags, Header},
    seq::Seq,
};
use crate::{flow::Flow, time::Instant};

slotmap::new_key_type! {
    /// Identifier of an entry.
    pub(crate) struct TimeWaitId;
}

/// Distance from the last sequence number of the old connection to the first of a new one: more than any unscaled
/// window.
const NUMBER_GAP: u32 = 65_537;

/// Connection in TIME-WAIT.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeWait {
    pub flow: Flow,
    snd_nxt: Seq,
    rcv_nxt: Seq,
    window: u16,
    timestamp_offset: u32,
    /// Latest timestamp of the peer, if it uses them.
    recent: Option<u32>,
    since: Instant,
    expires: Instant,
    /// When a segment without data that was not expected was last acknowledged.
    last_invalid: Option<Instant>,
}

/// Answer to a segment for a connection in TIME-WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeWaitAction {
    Ignore,
    /// Acknowledge it with this header.
    Acknowledge(Header),
    /// It starts a new connection, whose sequence numbers must start at or after this one.
    Reuse(Seq),
}

impl TimeWait {
    fn acknowledgement(&self, now: Instant) -> Header {
        let timestamp =
            self.recent.map(|recent| Timestamp { value: isn::timestamp(now, self.timestamp_offset), echo: recent });
        Header {
            seq: self.snd_nxt,
            ack: self.rcv_nxt,
            flags: Flags::ACK,
            window: self.window,
            options: Options { timestamp, ..Options::default() },
            ..Header::default()
        }
    }

    fn is_newer(&self, syn: &Header) -> bool {
        match (self.recent, syn.options.timestamp) {
            (Some(recent), Some(timestamp)) => {
                let age = timestamp.value.wrapping_sub(recent).cast_signed();
                age > 0 || age == 0 && syn.seq.after(self.rcv_nxt)
            }
            _ => syn.seq.after(self.rcv_nxt),
        }
    }

    /// Returns whether a segment without data is anything but the ACK that the peer sends last.
    fn is_unexpected(&self, header: &Header) -> bool {
        header.seq != self.rcv_nxt || header.has(Flags::SYN) || header.has(Flags::FIN)
    }

    /// Returns whether a segment without data may be acknowledged now. Two hosts in TIME-WAIT that disagree about the
    /// sequence numbers would otherwise answer each other without end.
    fn may_answer_invalid(&mut self, now: Instant) -> bool {
        let may = self.last_invalid.is_none_or(|last| now.nanos_since(last) >= ack::INVALID_INTERVAL);
        if may {
            self.last_invalid = Some(now);
        }
        may
    }

    /// Returns whether this host may reuse the flow: after one second its timestamps are later.
    fn is_reusable(&self, now: Instant) -> bool {
        self.recent.is_some() && now.nanos_since(self.since) >= crate::time::SECOND
    }
}

/// Connections in TIME-WAIT of one shard.
#[derive(Debug)]
pub(crate) struct TimeWaitTable {
    entries: SlotMap<TimeWaitId, TimeWait>,
    /// Entries by their original expiry. An entry may have been renewed or removed since.
    queue: VecDeque<(Instant, TimeWaitId)>,
    wait: u64,
    limit: usize,
}

impl TimeWaitTable {
    pub(crate) fn new(wait: u64, limit: usize) -> Self {
        Self { entries: SlotMap::with_key(), queue: VecDeque::new(), wait, limit }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds `connection`. Returns the entry that was removed for it, if the table was full.
    pub(crate) fn insert(
        &mut self,
        now: Instant,
        connection: &mut Connection,
    ) -> (TimeWaitId, Header, Option<(TimeWaitId, TimeWait)>) {
        let mss = connection.mss();
        let entry = TimeWait {
            flow: connection.flow,
            snd_nxt: connection.send_buffer.nxt,
            rcv_nxt: connection.receive_buffer.next(),
            window: connection.receive_buffer.advertise_window(mss),
            timestamp_offset: connection.timestamp_offset,
            recent: connection.timestamps.map(|timestamps| timestamps.recent),
            since: now,
            expires: now.plus(self.wait),
            last_invalid: None,
        };
        let evicted = if self.entries.len() >= self.limit { self.evict() } else { None };
        if self.queue.len() >= 2 * self.limit {
            // Drop the queue positions of removed entries.
            self.queue.retain(|&(_, id)| self.entries.contains_key(id));
        }
        let id = self.entries.insert(entry);
        self.queue.push_back((entry.expires, id));
        (id, entry.acknowledgement(now), evicted)
    }

    fn evict(&mut self) -> Option<(TimeWaitId, TimeWait)> {
        while let Some((_, id)) = self.queue.pop_front() {
            if let Some(entry) = self.entries.remove(id) {
                return Some((id, entry));
            }
        }
        None
    }

    /// Handles a segment for entry `id`.
    pub(crate) fn receive(&mut self, now: Instant, id: TimeWaitId, header: &Header, payload: usize) -> TimeWaitAction {
        let Some(entry) = self.entries.get_mut(id) else { return TimeWaitAction::Ignore };
        if header.has(Flags::RST) {
            return TimeWaitAction::Ignore;
        }
        let (syn, fin) = (header.has(Flags::SYN), header.has(Flags::FIN));
        if syn && !fin && !header.has(Flags::ACK) && entry.is_newer(header) {
            return TimeWaitAction::Reuse(entry.snd_nxt.plus(NUMBER_GAP));
        }
        if fin && !syn && header.range(payload).end == entry.rcv_nxt {
            // The acknowledgement was lost: TIME-WAIT restarts.
            entry.expires = now.plus(self.wait);
        } else if payload == 0 && !(entry.is_unexpected(header) && entry.may_answer_invalid(now)) {
            return TimeWaitAction::Ignore;
        }
        TimeWaitAction::Acknowledge(entry.acknowledgement(now))
    }

    /// Returns whether this host may reuse the flow of entry `id`, and the lowest sequence number of the new
    /// connection.
    pub(crate) fn reuse(&self, now: Instant, id: TimeWaitId) -> Option<Seq> {
        self.entries.get(id).filter(|entry| entry.is_reusable(now)).map(|entry| entry.snd_nxt.plus(NUMBER_GAP))
    }

    /// Removes entry `id`.
    pub(crate) fn remove(&mut self, id: TimeWaitId) -> Option<TimeWait> {
        self.entries.remove(id)
    }

    /// Returns when the first entry may expire.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.queue.front().map(|&(at, _)| at)
    }

    /// Processes one queue position that is due. `Some(None)` means that no entry expired there and the caller must
    /// go on.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<Option<(TimeWaitId, TimeWait)>> {
        let &(at, id) = self.queue.front()?;
        if at > now {
            return None;
        }
        self.queue.pop_front();
        let Some(entry) = self.entries.get(id) else { return Some(None) };
        if entry.expires > now {
            self.queue.push_back((entry.expires, id));
            return Some(None);
        }
        Some(self.entries.remove(id).map(|entry| (id, entry)))
    }
}
