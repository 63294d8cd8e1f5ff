//! Layout of an instance's counts in 8-byte words, shared by the BPF programs and the reader.

// Poll contexts, in the order of the words of each group.
pub(super) const SOFTIRQ: usize = 0;
pub(super) const TIMER: usize = 1;
pub(super) const BUSY: usize = 2;
pub(super) const THREAD: usize = 3;
const CONTEXTS: usize = 4;

// Groups, each with one word per context.
pub(super) const POLLS: usize = 0;
pub(super) const WITH_WORK: usize = POLLS + CONTEXTS;
pub(super) const PACKETS: usize = WITH_WORK + CONTEXTS;

/// Upper bounds, in packets per poll, of all buckets but the last. The last holds polls that used the usual budget of 64.
pub(super) const BATCH_BOUNDS: [i32; 7] = [1, 2, 4, 8, 16, 32, 63];
pub(super) const BATCHES: usize = PACKETS + CONTEXTS;

pub(super) const SOFTIRQ_NS: usize = BATCHES + BATCH_BOUNDS.len() + 1;
pub(super) const TIMERS: usize = SOFTIRQ_NS + 1;
pub(super) const SUSPENSIONS: usize = TIMERS + 1;
/// A flag, not a count: the timer expired on this CPU, and no poll has run since.
pub(super) const TIMER_EXPIRED: usize = SUSPENSIONS + 1;
pub(super) const WORDS: usize = TIMER_EXPIRED + 1;
