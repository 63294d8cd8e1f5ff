//! What an instance's counts are, as words of eight bytes: shared by the programs that count and by who reads.

// Contexts, in the order of the words of each group.
pub(super) const SOFTIRQ: usize = 0;
pub(super) const TIMER: usize = 1;
pub(super) const BUSY: usize = 2;
pub(super) const THREAD: usize = 3;
const CONTEXTS: usize = 4;

/// Groups with a word for each context.
pub(super) const POLLS: usize = 0;
pub(super) const WITH_WORK: usize = POLLS + CONTEXTS;
pub(super) const PACKETS: usize = WITH_WORK + CONTEXTS;

/// Most packets of a poll in each bucket but the last, whose polls used up the usual budget of 64.
pub(super) const BATCH_BOUNDS: [i32; 7] = [1, 2, 4, 8, 16, 32, 63];
pub(super) const BATCHES: usize = PACKETS + CONTEXTS;

pub(super) const SOFTIRQ_NS: usize = BATCHES + BATCH_BOUNDS.len() + 1;
pub(super) const TIMERS: usize = SOFTIRQ_NS + 1;
pub(super) const SUSPENSIONS: usize = TIMERS + 1;
/// No count: the timer has gone off on this CPU, and nothing was polled since.
pub(super) const TIMER_WENT_OFF: usize = SUSPENSIONS + 1;
pub(super) const WORDS: usize = TIMER_WENT_OFF + 1;
