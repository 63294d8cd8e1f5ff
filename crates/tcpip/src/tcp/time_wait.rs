//! Connections that are over but not forgotten: TIME-WAIT (RFC 9293, 3.6.1; RFC 1337; RFC 6191).
//!
//! The side that closed first remembers the connection for a time, to acknowledge a FIN that comes again and to keep old
//! segments out of a new connection with the same ports. What is remembered is small, its number is bounded, and all
//! wait equally long, so a queue in order of time is all the timer they need. A reset does not end the wait (RFC 1337). A
//! SYN that is provably newer, by timestamp or by sequence number, takes the ports over.

use std::collections::VecDeque;

use slotmap::SlotMap;

use super::{
    connection::Connection,
    isn,
    options::{Options, Timestamp},
    segment::{Flags, Header},
    seq::Seq,
};
use crate::{flow::Flow, time::Instant};

slotmap::new_key_type! {
    /// The name of an entry.
    pub(crate) struct TimeWaitId;
}

/// Past the last number of the old connection, where a new one begins (more than any window without scaling).
const NUMBER_GAP: u32 = 65_537;

/// What is remembered of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeWait {
    pub flow: Flow,
    snd_nxt: Seq,
    rcv_nxt: Seq,
    window: u16,
    timestamp_offset: u32,
    /// The peer's latest timestamp, if it uses them.
    recent: Option<u32>,
    since: Instant,
    expires: Instant,
}

/// What a segment to a remembered connection asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Ignore,
    /// Acknowledge it with this header.
    Acknowledge(Header),
    /// It begins a new connection, whose numbers must start at or after this one.
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

    /// Whether this host may use the flow again for a connection of its own: one second later the timestamps differ.
    fn is_reusable(&self, now: Instant) -> bool {
        self.recent.is_some() && now.nanos_since(self.since) >= crate::time::SECOND
    }
}

/// All of one shard's.
#[derive(Debug)]
pub(crate) struct TimeWaits {
    entries: SlotMap<TimeWaitId, TimeWait>,
    /// By the time they were to expire when they were put here; an entry may have been renewed since, or be gone.
    queue: VecDeque<(Instant, TimeWaitId)>,
    wait: u64,
    limit: usize,
}

impl TimeWaits {
    pub(crate) fn new(wait: u64, limit: usize) -> Self {
        Self { entries: SlotMap::with_key(), queue: VecDeque::new(), wait, limit }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Remembers `connection`. The one that had to be forgotten for it, if there are too many, comes out.
    pub(crate) fn insert(
        &mut self,
        now: Instant,
        connection: &mut Connection,
    ) -> (TimeWaitId, Header, Option<(TimeWaitId, TimeWait)>) {
        let mss = connection.mss();
        let entry = TimeWait {
            flow: connection.flow,
            snd_nxt: connection.outbox.nxt,
            rcv_nxt: connection.inbox.next(),
            window: connection.inbox.promise(mss),
            timestamp_offset: connection.timestamp_offset,
            recent: connection.timestamps.map(|timestamps| timestamps.recent),
            since: now,
            expires: now.plus(self.wait),
        };
        let evicted = if self.entries.len() >= self.limit { self.evict() } else { None };
        if self.queue.len() >= 2 * self.limit {
            // Places of entries that are gone; each is swept once.
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

    /// A segment for entry `id`.
    pub(crate) fn receive(&mut self, now: Instant, id: TimeWaitId, header: &Header, payload: usize) -> Verdict {
        let Some(entry) = self.entries.get_mut(id) else { return Verdict::Ignore };
        if header.has(Flags::RST) {
            return Verdict::Ignore;
        }
        if header.has(Flags::SYN) && !header.has(Flags::ACK) && entry.is_newer(header) {
            return Verdict::Reuse(entry.snd_nxt.plus(NUMBER_GAP));
        }
        let old = header.seq.before(entry.rcv_nxt);
        if header.has(Flags::FIN) && header.seq.plus(payload as u32).plus(1) == entry.rcv_nxt {
            // Our acknowledgement was lost: the wait begins again.
            entry.expires = now.plus(self.wait);
        } else if !old && payload == 0 && !header.has(Flags::SYN) {
            return Verdict::Ignore;
        }
        Verdict::Acknowledge(entry.acknowledgement(now))
    }

    /// Whether entry `id` may make room for a connection from here, and where its numbers must start.
    pub(crate) fn reuse(&self, now: Instant, id: TimeWaitId) -> Option<Seq> {
        self.entries.get(id).filter(|entry| entry.is_reusable(now)).map(|entry| entry.snd_nxt.plus(NUMBER_GAP))
    }

    /// Forgets entry `id`.
    pub(crate) fn remove(&mut self, id: TimeWaitId) -> Option<TimeWait> {
        self.entries.remove(id)
    }

    /// When the first entry may expire.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.queue.front().map(|&(at, _)| at)
    }

    /// The next step of expiring: `Some(None)` means that a queue entry was dealt with, go on.
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
