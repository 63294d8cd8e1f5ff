//! Hierarchical timing wheel: one deadline per key, each operation in constant time.
//!
//! Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (SOSP 1987). There are six levels of 64 slots. A slot
//! of level 0 is one tick of 2^16 ns (66 us), a slot of level `n` is 64^n ticks, and the last level reaches 52 days.
//! A deadline is put on the lowest level on which its slot differs from that of the current tick. It moves down a
//! level each time the wheel reaches its slot, at most six times.
//!
//! Deadlines are *lazy*. TCP moves its retransmission timer out with every acknowledgement, so [`Wheel::set`] leaves
//! an entry in its slot when the deadline moves out or is cancelled. [`Wheel::pop`] relinks or drops the entry when
//! its old slot is reached. Only a deadline that moves in is relinked at once. A request and its response therefore
//! touch only the connection's own entry, not its neighbours in the list. The lists are linked through the keys, so a
//! key is in the wheel at most once, and memory is bounded by the number of live keys.

use slotmap::{Key, SecondaryMap};

use crate::time::Instant;

const TICK_BITS: u32 = 16;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const LEVELS: usize = 6;
/// Largest distance of a slot: one slot of the last level less than a full turn, because a full turn would look due.
const MAX_TICKS_AHEAD: u64 = (1 << (SLOT_BITS as usize * LEVELS)) - (1 << (SLOT_BITS as usize * (LEVELS - 1)));

#[derive(Clone, Copy, Debug)]
struct Node<K> {
    previous: K,
    next: K,
    /// Deadline of the key, if it has one; never earlier than its slot.
    deadline: Option<Instant>,
    /// Tick of the slot in which it is linked.
    tick: u64,
    level: u8,
    slot: u8,
}

#[derive(Clone, Copy, Debug)]
struct Level<K> {
    occupied: u64,
    heads: [K; SLOTS],
}

/// Result of one step of the wheel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step<K> {
    /// The deadline of this key has passed; the key was removed.
    Expired(K),
    /// A key moved closer to its deadline, or was dropped because its deadline was cancelled.
    Moved,
    /// Nothing is due.
    Idle,
}

/// Timing wheel of deadlines by key.
#[derive(Debug)]
pub(crate) struct Wheel<K: Key> {
    nodes: SecondaryMap<K, Node<K>>,
    levels: Box<[Level<K>; LEVELS]>,
    /// Current tick; everything before it has been processed.
    hand: u64,
}

impl<K: Key> Wheel<K> {
    pub(crate) fn new() -> Self {
        let level = Level { occupied: 0, heads: [K::null(); SLOTS] };
        Self { nodes: SecondaryMap::new(), levels: Box::new([level; LEVELS]), hand: 0 }
    }

    /// Returns the number of keys in the wheel, including those whose deadline was cancelled.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Sets or cancels the deadline of `key`.
    pub(crate) fn set(&mut self, key: K, deadline: Option<Instant>) {
        if let Some(node) = self.nodes.get_mut(key) {
            node.deadline = deadline;
            if deadline.is_none_or(|deadline| tick_at(deadline) >= node.tick) {
                return;
            }
            self.unlink(key);
        }
        if let Some(deadline) = deadline {
            self.link(key, deadline);
        }
    }

    /// Loads the entry of `key` into the CPU's cache.
    pub(crate) fn prefetch(&self, key: K) {
        core::hint::black_box(self.nodes.get(key).map(|node| node.tick));
    }

    /// Removes `key`.
    pub(crate) fn remove(&mut self, key: K) {
        if self.nodes.contains_key(key) {
            self.unlink(key);
            self.nodes.remove(key);
        }
    }

    /// Returns whether `key` will be processed by `deadline`. For tests.
    pub(crate) fn fires_by(&self, key: K, deadline: Instant) -> bool {
        self.nodes.get(key).is_some_and(|node| {
            node.tick <= tick_at(deadline) && node.deadline.is_some_and(|own| tick_at(own) <= tick_at(deadline))
        })
    }

    /// Returns when [`Wheel::pop`] should next be called. That may be earlier than the earliest deadline, because an
    /// entry has to move down a level or its deadline moved out. It is later by at most one tick.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        self.next_slot().map(|(_, _, tick)| Instant(tick << TICK_BITS))
    }

    /// Processes one entry. The caller repeats it until it returns [`Step::Idle`] or the caller's budget is spent.
    pub(crate) fn pop(&mut self, now: Instant) -> Step<K> {
        let Some((level, slot, tick)) = self.next_slot() else {
            self.hand = self.hand.max(now.0 >> TICK_BITS);
            return Step::Idle;
        };
        if tick > now.0 >> TICK_BITS {
            // The hand must not pass a slot that is not due: entries are linked relative to the hand.
            self.hand = self.hand.max(now.0 >> TICK_BITS);
            return Step::Idle;
        }
        self.hand = self.hand.max(tick);
        let key = self.levels[level].heads[slot];
        let deadline = self.nodes[key].deadline;
        self.unlink(key);
        match deadline {
            Some(deadline) if tick_at(deadline) > now.0 >> TICK_BITS => {
                self.link(key, deadline);
                Step::Moved
            }
            Some(_) => {
                self.nodes.remove(key);
                Step::Expired(key)
            }
            None => {
                self.nodes.remove(key);
                Step::Moved
            }
        }
    }

    /// Returns the level and index of the slot that the hand reaches next, and its tick.
    fn next_slot(&self) -> Option<(usize, usize, u64)> {
        let mut earliest: Option<(usize, usize, u64)> = None;
        for (number, level) in self.levels.iter().enumerate() {
            if level.occupied == 0 {
                continue;
            }
            let shift = SLOT_BITS * number as u32;
            let hand = self.hand >> shift;
            let ahead = level.occupied.rotate_right((hand % SLOTS as u64) as u32).trailing_zeros();
            let slot = (hand + u64::from(ahead)) % SLOTS as u64;
            let tick = ((hand + u64::from(ahead)) << shift).max(self.hand);
            // On a tie the higher level comes first: its entries may belong before those of the lower level.
            if earliest.is_none_or(|(_, _, best)| tick <= best) {
                earliest = Some((number, slot as usize, tick));
            }
        }
        earliest
    }

    fn link(&mut self, key: K, deadline: Instant) {
        let tick = tick_at(deadline).clamp(self.hand, self.hand + MAX_TICKS_AHEAD);
        let differing = (tick ^ self.hand) | 1;
        let level = ((63 - differing.leading_zeros()) / SLOT_BITS).min(LEVELS as u32 - 1) as usize;
        let slot = ((tick >> (SLOT_BITS as usize * level)) % SLOTS as u64) as usize;
        let next = self.levels[level].heads[slot];
        if let Some(next) = self.nodes.get_mut(next) {
            next.previous = key;
        }
        self.levels[level].heads[slot] = key;
        self.levels[level].occupied |= 1 << slot;
        let (level, slot, deadline) = (level as u8, slot as u8, Some(deadline));
        self.nodes.insert(key, Node { previous: K::null(), next, deadline, tick, level, slot });
    }

    fn unlink(&mut self, key: K) {
        let Node { previous, next, level, slot, .. } = self.nodes[key];
        if let Some(next) = self.nodes.get_mut(next) {
            next.previous = previous;
        }
        if let Some(previous) = self.nodes.get_mut(previous) {
            previous.next = next;
        } else {
            let level = &mut self.levels[usize::from(level)];
            level.heads[usize::from(slot)] = next;
            if next.is_null() {
                level.occupied &= !(1 << slot);
            }
        }
    }
}

/// Returns the first tick at which `deadline` has passed.
const fn tick_at(deadline: Instant) -> u64 {
    (deadline.0 >> TICK_BITS) + (deadline.0 & ((1 << TICK_BITS) - 1) != 0) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use slotmap::{DefaultKey, SlotMap};

    use super::*;

    const TICK: u64 = 1 << TICK_BITS;

    fn expired(wheel: &mut Wheel<DefaultKey>, now: Instant) -> Vec<DefaultKey> {
        let mut keys = Vec::new();
        loop {
            match wheel.pop(now) {
                Step::Expired(key) => keys.push(key),
                Step::Moved => {}
                Step::Idle => return keys,
            }
        }
    }

    #[test]
    fn a_deadline_expires_on_time_and_once() {
        let mut keys = SlotMap::new();
        let key = keys.insert(());
        let mut wheel = Wheel::new();
        for deadline in [1, TICK, 100 * TICK, 5_000 * TICK, 400_000 * TICK + 7] {
            let start = wheel.hand * TICK;
            wheel.set(key, Some(Instant(start + deadline)));
            assert!(expired(&mut wheel, Instant(start + deadline - 1)).is_empty());
            assert_eq!(expired(&mut wheel, Instant(start + deadline + TICK)), [key]);
            assert_eq!((wheel.len(), wheel.next_wake()), (0, None));
        }
    }

    #[test]
    fn a_deadline_that_moves_out_is_not_early_and_one_that_moves_in_not_late() {
        let mut keys = SlotMap::new();
        let (out, inward) = (keys.insert(()), keys.insert(()));
        let mut wheel = Wheel::new();
        wheel.set(out, Some(Instant(10 * TICK)));
        wheel.set(out, Some(Instant(1_000 * TICK)));
        wheel.set(inward, Some(Instant(100_000 * TICK)));
        wheel.set(inward, Some(Instant(50 * TICK)));
        assert_eq!(expired(&mut wheel, Instant(60 * TICK)), [inward]);
        assert!(expired(&mut wheel, Instant(999 * TICK)).is_empty());
        assert_eq!(expired(&mut wheel, Instant(1_000 * TICK)), [out]);
    }

    #[test]
    fn a_deadline_beyond_the_last_level_expires_on_time() {
        let mut keys = SlotMap::new();
        let key = keys.insert(());
        let mut wheel = Wheel::new();
        wheel.set(key, Some(Instant(3 * MAX_TICKS_AHEAD * TICK)));
        assert!(expired(&mut wheel, Instant(2 * MAX_TICKS_AHEAD * TICK)).is_empty());
        assert_eq!(expired(&mut wheel, Instant(3 * MAX_TICKS_AHEAD * TICK)), [key]);
    }

    proptest! {
        /// Compares the wheel with a map: sets, moves and removes deadlines, and advances the time.
        #[test]
        fn the_wheel_agrees_with_a_map(operations in prop::collection::vec((0_usize..20, 0_u64..4, 0_u64..1 << 40, 0_u64..1 << 34), 1..200)) {
            let mut slots = SlotMap::new();
            let keys: Vec<DefaultKey> = (0..20).map(|_| slots.insert(())).collect();
            let mut wheel = Wheel::new();
            let mut model = std::collections::BTreeMap::new();
            let mut now = Instant::ZERO;
            for (index, operation, span, step) in operations {
                let key = keys[index];
                match operation {
                    0 if step % 2 == 0 => { wheel.remove(key); model.remove(&key); }
                    0 => { wheel.set(key, None); model.remove(&key); }
                    _ => {
                        let deadline = now.plus(span >> (operation * 8));
                        wheel.set(key, Some(deadline));
                        model.insert(key, deadline);
                    }
                }
                now = now.plus(step);
                if let Some(first) = model.values().min() {
                    prop_assert!(wheel.next_wake().is_some_and(|wake| wake <= first.plus(TICK)));
                }
                let mut due = expired(&mut wheel, now);
                due.sort();
                for key in &due {
                    prop_assert!(model.remove(key).is_some_and(|deadline| deadline <= now));
                }
                prop_assert!(model.values().all(|deadline| deadline.plus(TICK) > now));
                prop_assert!(wheel.len() >= model.len());
            }
            expired(&mut wheel, Instant(1 << 50));
            prop_assert_eq!(wheel.len(), 0);
        }
    }
}
