//! Who has which queue pairs, and who waits for some.
//!
//! # Who gets how many
//!
//! A process that runs a program from its beginning is most likely the whole server: it gets every queue there is, at
//! once, and spreads its threads over them. A process that was *forked* is most likely one of several workers, and how
//! many there will be is not known when the first one asks. So whoever was forked waits until nobody has asked and nothing
//! was given back for [`SETTLE`], and then those who wait share what is free as equally as it can be: one worker gets
//! everything, two workers half of it each. A server that goes to the background (one process, forked) so gets everything
//! too, a moment later. `--nic-queues-per-process N` says it outright, and nobody waits to see who else comes.
//!
//! While a server is told to read its configuration again its new workers ask when the old ones still have the queues.
//! They wait for [`PATIENCE`]; old workers that are idle are gone by then. Whoever gets nothing in that time uses the
//! kernel's sockets for as long as it lives: its listening socket is also there, and what arrives on queues that nobody
//! has goes to it. A worker for which there never was a queue (more workers than queues) waits as long, once.
//!
//! Queues that are given back when nobody waits stay free until somebody asks; nothing is taken from a process that runs.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long it must be quiet before those who were forked share what is free.
const SETTLE: Duration = Duration::from_millis(200);
/// How long a process that was forked waits at most.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long any other waits at most: a program that a script starts, while another has the NIC.
const SHORT_PATIENCE: Duration = Duration::from_millis(300);

/// Who asks.
pub(super) type Id = u64;

/// What becomes of who asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// These queues.
    Grant(Vec<u32>),
    /// None: they are all taken.
    Nothing,
}

/// The queues of a NIC.
#[derive(Debug)]
pub(super) struct Shares {
    of: usize,
    free: BTreeSet<u32>,
    /// Whether several processes may have some each.
    divisible: bool,
    /// How many each process gets, if that was said.
    each: Option<usize>,
    waiting: Vec<Waiting>,
    /// When somebody asked or gave back.
    changed: Option<Instant>,
}

#[derive(Debug)]
struct Waiting {
    who: Id,
    until: Instant,
    /// Others may follow.
    shares: bool,
}

impl Shares {
    pub(super) fn new(of: usize, divisible: bool, each: Option<usize>) -> Self {
        let free = (0..of as u32).collect();
        Self { of, free, divisible, each, waiting: Vec::new(), changed: None }
    }

    /// Somebody asks.
    pub(super) fn ask(&mut self, who: Id, is_forked: bool, now: Instant) {
        let until = now + if is_forked { PATIENCE } else { SHORT_PATIENCE };
        let shares = is_forked && self.divisible && self.each.is_none();
        self.waiting.push(Waiting { who, until, shares });
        self.changed = Some(now);
    }

    /// Somebody has gone, or gives back what it had.
    pub(super) fn leave(&mut self, who: Id, queues: &[u32], now: Instant) {
        self.waiting.retain(|waiting| waiting.who != who);
        self.free.extend(queues);
        self.changed = Some(now);
    }

    /// What is decided by now.
    pub(super) fn decide(&mut self, now: Instant) -> Vec<(Id, Decision)> {
        let mut decided = Vec::new();
        let at_once: Vec<Id> = self.waiting.iter().filter(|one| !one.shares).map(|one| one.who).collect();
        for who in at_once {
            let share = if self.divisible { self.each.unwrap_or(self.of) } else { self.of };
            self.grant(who, share, &mut decided);
        }
        if self.settled_at().is_some_and(|at| at <= now) {
            let mut left = self.waiting.iter().filter(|one| one.shares).count();
            let sharing: Vec<Id> = self.waiting.iter().filter(|one| one.shares).map(|one| one.who).collect();
            for who in sharing {
                self.grant(who, self.free.len().div_ceil(left), &mut decided);
                left -= 1;
            }
        }
        decided.extend(self.waiting.extract_if(.., |one| one.until <= now).map(|one| (one.who, Decision::Nothing)));
        decided
    }

    fn grant(&mut self, who: Id, share: usize, decided: &mut Vec<(Id, Decision)>) {
        if self.free.is_empty() {
            return;
        }
        let queues: Vec<u32> = self.free.iter().copied().take(share.max(1)).collect();
        self.free.retain(|queue| !queues.contains(queue));
        self.waiting.retain(|one| one.who != who);
        decided.push((who, Decision::Grant(queues)));
    }

    fn settled_at(&self) -> Option<Instant> {
        let sharing = self.waiting.iter().any(|one| one.shares) && !self.free.is_empty();
        sharing.then(|| self.changed.map(|at| at + SETTLE)).flatten()
    }

    /// When there is something to decide next, if nobody asks or leaves before.
    pub(super) fn next(&self) -> Option<Instant> {
        self.waiting.iter().map(|one| one.until).chain(self.settled_at()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(queues: &[u32]) -> Decision {
        Decision::Grant(queues.to_vec())
    }

    #[test]
    fn a_program_gets_everything_at_once_and_a_second_one_nothing() {
        let (mut shares, now) = (Shares::new(4, true, None), Instant::now());
        shares.ask(1, false, now);
        assert_eq!(shares.decide(now), [(1, all(&[0, 1, 2, 3]))]);
        shares.ask(2, false, now);
        assert_eq!(shares.decide(now), []);
        assert_eq!(shares.next(), Some(now + SHORT_PATIENCE));
        assert_eq!(shares.decide(now + SHORT_PATIENCE), [(2, Decision::Nothing)]);
        assert_eq!(shares.next(), None);
    }

    #[test]
    fn workers_share_as_equally_as_it_can_be() {
        for (queues, workers, expected) in
            [(4, 1, vec![4]), (4, 2, vec![2, 2]), (4, 3, vec![2, 1, 1]), (2, 3, vec![1, 1, 0])]
        {
            let (mut shares, now) = (Shares::new(queues, true, None), Instant::now());
            for who in 0..workers {
                shares.ask(who, true, now);
                assert_eq!(shares.decide(now), []);
            }
            let mut counts = vec![0; workers as usize];
            for (who, decision) in shares.decide(now + SETTLE).into_iter().chain(shares.decide(now + PATIENCE)) {
                if let Decision::Grant(granted) = decision {
                    counts[who as usize] = granted.len();
                }
            }
            assert_eq!(counts, expected, "{workers} on {queues}");
        }
    }

    #[test]
    fn new_workers_take_over_what_old_ones_give_back() {
        let (mut shares, start) = (Shares::new(2, true, None), Instant::now());
        shares.ask(1, true, start);
        shares.ask(2, true, start);
        let now = start + SETTLE;
        assert_eq!(shares.decide(now), [(1, all(&[0])), (2, all(&[1]))]);
        shares.ask(3, true, now);
        shares.ask(4, true, now);
        assert_eq!(shares.decide(now + SETTLE), []);
        let later = now + SETTLE * 2;
        shares.leave(2, &[1], later);
        shares.leave(1, &[0], later + SETTLE / 2);
        assert_eq!(shares.decide(later + SETTLE), [], "the other one may follow");
        let settled = later + SETTLE + SETTLE / 2;
        assert_eq!(shares.next(), Some(settled));
        assert_eq!(shares.decide(settled), [(3, all(&[0])), (4, all(&[1]))]);
    }

    #[test]
    fn one_that_dies_while_it_waits_is_forgotten() {
        let (mut shares, now) = (Shares::new(1, true, None), Instant::now());
        shares.ask(1, true, now);
        shares.leave(1, &[], now);
        assert_eq!((shares.decide(now + PATIENCE), shares.next()), (vec![], None));
    }

    #[test]
    fn a_number_that_was_said_is_given_at_once_and_what_cannot_be_divided_goes_to_one() {
        let (mut shares, now) = (Shares::new(4, true, Some(1)), Instant::now());
        shares.ask(1, true, now);
        shares.ask(2, false, now);
        assert_eq!(shares.decide(now), [(1, all(&[0])), (2, all(&[1]))]);
        let mut shares = Shares::new(4, false, Some(1));
        shares.ask(1, true, now);
        shares.ask(2, true, now);
        assert_eq!(shares.decide(now), [(1, all(&[0, 1, 2, 3]))]);
        assert_eq!(shares.decide(now + PATIENCE), [(2, Decision::Nothing)]);
    }
}
