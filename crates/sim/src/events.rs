//! Event queue. Simultaneous events are in the order in which they were scheduled.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Event at a point in virtual time. Indices refer to the world's arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The next request of the open loop is due.
    Due,
    /// A request that was sent one way delay ago reaches the NIC, if the wire is free.
    Request { conn: u32, back_to_back: bool },
    /// This many segments of a connection reach the NIC.
    Data { conn: u32, segments: u32 },
    /// This many retransmitted segments of a connection reach the NIC, if the wire is free.
    Resend { conn: u32, segments: u32 },
    /// The client of this connection may send more.
    Upload { conn: u32 },
    /// A device has finished the oldest served request of this connection.
    Device { conn: u32 },
    /// The acknowledgements of this many segments of an answer reach the NIC.
    Acks { conn: u32, segments: u32 },
    /// A pure acknowledgement reaches this queue.
    Ack { queue: u32 },
    /// A transmission on this queue is complete.
    Transmitted { queue: u32 },
    /// The moderation timer of this queue expires.
    Moderation { queue: u32 },
    /// The timer of this queue's NAPI instance expires.
    Timer { queue: u32 },
    /// The sleep of the server that waits for this queue ends, unless it ended before.
    SleepOver { queue: u32, generation: u32 },
    /// The current activity of this CPU ends, unless it was interrupted.
    Done { cpu: u32, generation: u32 },
    /// The deadline of a wait, unless the wait ended before.
    WaitOver { thread: u32, generation: u32 },
    /// Waiting threads are migrated to idle CPUs.
    Balance,
    /// The warm-up ends; counters are reset.
    Measure,
    /// The run ends.
    End,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Time in the high half, scheduling order in the low half, so that one comparison suffices.
    key: u128,
    event: Event,
}

impl Entry {
    const fn at(&self) -> u64 {
        (self.key >> 64) as u64
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap returns the greatest first.
        other.key.cmp(&self.key)
    }
}

/// Pending events.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// The next event, if it was scheduled as such, to bypass the heap.
    next: Option<Entry>,
    heap: BinaryHeap<Entry>,
    order: u64,
}

impl Events {
    #[inline]
    pub(crate) fn push(&mut self, at: u64, event: Event) {
        self.order += 1;
        let entry = Entry { key: u128::from(at) << 64 | u128::from(self.order), event };
        match &mut self.next {
            Some(next) if entry.key > next.key => self.heap.push(entry),
            Some(next) => self.heap.push(std::mem::replace(next, entry)),
            None if self.heap.peek().is_some_and(|first| first.key < entry.key) => self.heap.push(entry),
            None => self.next = Some(entry),
        }
    }

    /// Removes and returns the next event with its time in nanoseconds.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(u64, Event)> {
        let entry = self.next.take().or_else(|| self.heap.pop())?;
        Some((entry.at(), entry.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_time_order_and_ties_in_order_of_scheduling() {
        let mut events = Events::default();
        for (at, queue) in [(5, 0), (3, 1), (5, 2), (3, 3)] {
            events.push(at, Event::Ack { queue });
        }
        let order: Vec<_> = std::iter::from_fn(|| events.pop()).collect();
        let ack = |queue| Event::Ack { queue };
        assert_eq!(order, [(3, ack(1)), (3, ack(3)), (5, ack(0)), (5, ack(2))]);
    }
}
