//! Which process has which queue pairs, and which processes wait for some.
//!
//! # How many queues a process gets
//!
//! A process that runs a program from its beginning is most likely the whole server. It gets all free queues at once, and
//! spreads its threads over them. A process that was *forked* is most likely one of several workers, whose number is unknown
//! when the first one claims queues. Forked processes therefore wait until there was no claim and no release for
//! [`QUIET`]; then those that wait share the free queues as equally as possible: one worker gets all, two get half each. A
//! server that goes to the background (one process, forked) thus gets all queues too, 200 ms later. With
//! `--nic-queues-per-process N` each process gets N queues at once.
//!
//! While a server reloads its configuration, its new workers claim queues while the old ones still have them. They wait for
//! [`FORKED_LIMIT`]; idle old workers have ended by then. A process that gets no queues in that time uses the kernel's
//! sockets for as long as it lives: its listening socket exists in the kernel as well, and the kernel receives what arrives
//! on queues without a socket. A worker beyond the number of queues waits as long, once.
//!
//! Released queues that no process waits for stay free until the next claim. Queues are never taken from a running process.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Time without claims and releases after which forked processes share the free queues.
const QUIET: Duration = Duration::from_millis(200);
/// Time that a forked process waits at most.
const FORKED_LIMIT: Duration = Duration::from_secs(3);
/// Time that any other process waits at most: a program that a script starts while another one has the NIC.
const OTHER_LIMIT: Duration = Duration::from_millis(300);

/// Identifies a process that has connected to the broker.
pub(super) type ClientId = u64;

/// The answer to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// The process gets these queues.
    Grant(Vec<u32>),
    /// All queues are in use.
    Refuse,
}

/// Queues of a NIC, and the claims that wait for them.
#[derive(Debug)]
pub(super) struct Ledger {
    /// Number of queues.
    queues: usize,
    free: BTreeSet<u32>,
    /// Whether several processes can have some queues each.
    divisible: bool,
    /// Number of queues of each process, if it is fixed.
    per_process: Option<usize>,
    claims: Vec<Claim>,
    /// Time of the last claim or release.
    changed: Option<Instant>,
}

/// A claim that waits.
#[derive(Debug)]
struct Claim {
    client: ClientId,
    deadline: Instant,
    /// Whether it shares the free queues with other claims.
    shares: bool,
}

impl Ledger {
    /// Returns a ledger in which all queues are free.
    pub(super) fn new(queues: usize, divisible: bool, per_process: Option<usize>) -> Self {
        let free = (0..queues as u32).collect();
        Self { queues, free, divisible, per_process, claims: Vec::new(), changed: None }
    }

    /// Adds a claim.
    pub(super) fn claim(&mut self, client: ClientId, is_forked: bool, now: Instant) {
        let deadline = now + if is_forked { FORKED_LIMIT } else { OTHER_LIMIT };
        let shares = is_forked && self.divisible && self.per_process.is_none();
        self.claims.push(Claim { client, deadline, shares });
        self.changed = Some(now);
    }

    /// Frees the queues of a process and removes its claim.
    pub(super) fn release(&mut self, client: ClientId, queues: &[u32], now: Instant) {
        self.claims.retain(|claim| claim.client != client);
        self.free.extend(queues);
        self.changed = Some(now);
    }

    /// Decides the claims that are due, and removes them.
    pub(super) fn decide(&mut self, now: Instant) -> Vec<(ClientId, Decision)> {
        let mut decisions = Vec::new();
        for client in self.clients(false) {
            let share = if self.divisible { self.per_process.unwrap_or(self.queues) } else { self.queues };
            decisions.extend(self.grant(client, share));
        }
        if self.quiet_at().is_some_and(|at| at <= now) {
            let sharing = self.clients(true);
            for (done, client) in sharing.iter().enumerate() {
                decisions.extend(self.grant(*client, self.free.len().div_ceil(sharing.len() - done)));
            }
        }
        let expired = self.claims.extract_if(.., |claim| claim.deadline <= now);
        decisions.extend(expired.map(|claim| (claim.client, Decision::Refuse)));
        decisions
    }

    /// Returns the processes with claims that share the free queues, or that do not.
    fn clients(&self, shares: bool) -> Vec<ClientId> {
        self.claims.iter().filter(|claim| claim.shares == shares).map(|claim| claim.client).collect()
    }

    /// Gives up to `share` free queues to a process, at least one if there is any.
    fn grant(&mut self, client: ClientId, share: usize) -> Option<(ClientId, Decision)> {
        if self.free.is_empty() {
            return None;
        }
        let queues: Vec<u32> = self.free.iter().copied().take(share.max(1)).collect();
        self.free.retain(|queue| !queues.contains(queue));
        self.claims.retain(|claim| claim.client != client);
        Some((client, Decision::Grant(queues)))
    }

    /// Returns when claims share the free queues, if any claim does and any queue is free.
    fn quiet_at(&self) -> Option<Instant> {
        let sharing = self.claims.iter().any(|claim| claim.shares) && !self.free.is_empty();
        sharing.then(|| self.changed.map(|at| at + QUIET)).flatten()
    }

    /// Returns when the next decision is due, without further claims and releases.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.claims.iter().map(|claim| claim.deadline).chain(self.quiet_at()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(queues: &[u32]) -> Decision {
        Decision::Grant(queues.to_vec())
    }

    #[test]
    fn a_program_gets_all_queues_at_once_and_a_second_one_none() {
        let (mut ledger, now) = (Ledger::new(4, true, None), Instant::now());
        ledger.claim(1, false, now);
        assert_eq!(ledger.decide(now), [(1, grant(&[0, 1, 2, 3]))]);
        ledger.claim(2, false, now);
        assert_eq!(ledger.decide(now), []);
        assert_eq!(ledger.next_deadline(), Some(now + OTHER_LIMIT));
        assert_eq!(ledger.decide(now + OTHER_LIMIT), [(2, Decision::Refuse)]);
        assert_eq!(ledger.next_deadline(), None);
    }

    #[test]
    fn workers_share_equally() {
        for (queues, workers, expected) in
            [(4, 1, vec![4]), (4, 2, vec![2, 2]), (4, 3, vec![2, 1, 1]), (2, 3, vec![1, 1, 0])]
        {
            let (mut ledger, now) = (Ledger::new(queues, true, None), Instant::now());
            for client in 0..workers {
                ledger.claim(client, true, now);
                assert_eq!(ledger.decide(now), []);
            }
            let mut counts = vec![0; workers as usize];
            for (client, decision) in ledger.decide(now + QUIET).into_iter().chain(ledger.decide(now + FORKED_LIMIT)) {
                if let Decision::Grant(granted) = decision {
                    counts[client as usize] = granted.len();
                }
            }
            assert_eq!(counts, expected, "{workers} on {queues}");
        }
    }

    #[test]
    fn new_workers_get_the_queues_that_old_ones_release() {
        let (mut ledger, start) = (Ledger::new(2, true, None), Instant::now());
        ledger.claim(1, true, start);
        ledger.claim(2, true, start);
        let now = start + QUIET;
        assert_eq!(ledger.decide(now), [(1, grant(&[0])), (2, grant(&[1]))]);
        ledger.claim(3, true, now);
        ledger.claim(4, true, now);
        assert_eq!(ledger.decide(now + QUIET), []);
        let later = now + QUIET * 2;
        ledger.release(2, &[1], later);
        ledger.release(1, &[0], later + QUIET / 2);
        assert_eq!(ledger.decide(later + QUIET), [], "the other worker may release its queue too");
        let quiet = later + QUIET + QUIET / 2;
        assert_eq!(ledger.next_deadline(), Some(quiet));
        assert_eq!(ledger.decide(quiet), [(3, grant(&[0])), (4, grant(&[1]))]);
    }

    #[test]
    fn a_process_that_ends_while_it_waits_is_removed() {
        let (mut ledger, now) = (Ledger::new(1, true, None), Instant::now());
        ledger.claim(1, true, now);
        ledger.release(1, &[], now);
        assert_eq!((ledger.decide(now + FORKED_LIMIT), ledger.next_deadline()), (vec![], None));
    }

    #[test]
    fn a_fixed_number_is_granted_at_once_and_an_indivisible_nic_as_a_whole() {
        let (mut ledger, now) = (Ledger::new(4, true, Some(1)), Instant::now());
        ledger.claim(1, true, now);
        ledger.claim(2, false, now);
        assert_eq!(ledger.decide(now), [(1, grant(&[0])), (2, grant(&[1]))]);
        let mut ledger = Ledger::new(4, false, Some(1));
        ledger.claim(1, true, now);
        ledger.claim(2, true, now);
        assert_eq!(ledger.decide(now), [(1, grant(&[0, 1, 2, 3]))]);
        assert_eq!(ledger.decide(now + FORKED_LIMIT), [(2, Decision::Refuse)]);
    }
}
