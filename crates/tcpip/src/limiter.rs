//! Limits of answers that anyone can provoke, without a side channel.
//!
//! An attacker who cannot see a connection can count the answers to his own packets. If these share an exact budget
//! with the answers to packets that he forges, one answer less shows that a forged packet was answered: challenge ACKs
//! then reveal a connection's window (CVE-2016-5696), and ICMP errors reveal an open port (CVE-2020-25705, SAD DNS).
//! Two rules prevent that:
//!
//! - Budgets are separate. That of challenge ACKs belongs to one connection. A reply without a connection is charged
//!   to the peer's address first, and only what the address has left is charged to the host.
//! - Budgets are random, between half of their mean and one and a half times the mean, and drawn again for each period.

use core::net::IpAddr;

use crate::{
    flow::{Flow, Secret},
    time::{Instant, SECOND},
};

/// Period of a connection's budget of challenge ACKs: that of the example in RFC 5961, section 7.
const CHALLENGE_PERIOD: u64 = 5 * SECOND;
/// Number of budgets of peer addresses. The addresses that share one change with every period.
const PEER_BUDGETS: usize = 1024;
/// Part of the host's replies that one peer address may use.
const PEER_SHARE: u32 = 4;

/// Returns a value between half of `mean` and one and a half times `mean`, chosen by `random`.
fn spread(mean: u32, random: u64) -> u32 {
    let half = mean / 2;
    (mean - half).saturating_add((random % (2 * u64::from(half) + 1)) as u32)
}

/// Challenge ACKs that one connection may still send in the current period.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ChallengeBudget {
    until: Instant,
    left: u32,
}

impl ChallengeBudget {
    /// Takes one of `mean` challenge ACKs per period of `flow`. Returns false if there is none left.
    pub(crate) fn take(&mut self, now: Instant, mean: u32, flow: &Flow, secret: &Secret) -> bool {
        if now >= self.until {
            let left = spread(mean, secret.hash((flow, now.0)));
            *self = Self { until: now.plus(CHALLENGE_PERIOD), left };
        }
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may
    }
}

/// Limiter of replies that belong to no connection: ICMP messages and resets.
#[derive(Debug)]
pub(crate) struct ReplyLimiter {
    secret: Secret,
    /// Mean number of replies per second.
    rate: u32,
    /// Second of the budgets.
    period: u64,
    /// Replies that the host may still send.
    left: u32,
    /// Replies that were charged to each budget of peer addresses.
    charged: Vec<u32>,
}

impl ReplyLimiter {
    pub(crate) fn new(secret: Secret, rate: u32) -> Self {
        Self { secret, rate, period: u64::MAX, left: 0, charged: vec![0; PEER_BUDGETS] }
    }

    /// Takes a reply to `peer`. Returns false if there is none left.
    pub(crate) fn take(&mut self, now: Instant, peer: IpAddr) -> bool {
        let period = now.0 / SECOND;
        if self.period != period {
            self.period = period;
            self.left = spread(self.rate, self.secret.hash(period));
            self.charged.fill(0);
        }
        let index = self.secret.hash((period, network(peer))) as usize % PEER_BUDGETS;
        let budget = spread((self.rate / PEER_SHARE).max(1), self.secret.hash((period, index)));
        // A refusal is not charged to the host, so that it does not matter how many packets named this source.
        let may = self.charged[index] < budget && self.left > 0;
        self.charged[index] = self.charged[index].saturating_add(1);
        self.left -= u32::from(may);
        may
    }
}

/// Returns the part of an address that is one host's or one site's: all of IPv4, and 64 bits of IPv6.
fn network(address: IpAddr) -> u64 {
    match address {
        IpAddr::V4(v4) => u32::from(v4).into(),
        IpAddr::V6(v6) => (u128::from(v6) >> 64) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret() -> Secret {
        Secret::derive(1, 9)
    }

    #[test]
    fn budgets_are_between_half_of_the_mean_and_one_and_a_half_times() {
        for mean in [0, 1, 2, 3, 10, 1000, u32::MAX] {
            let drawn: Vec<u32> = (0..200).map(|number| spread(mean, secret().hash(number))).collect();
            let most = u64::from(mean) + u64::from(mean / 2);
            assert!(drawn.iter().all(|&budget| budget >= mean - mean / 2 && u64::from(budget) <= most), "{mean}");
            assert!(mean < 2 || drawn.iter().any(|&budget| budget != drawn[0]), "{mean}");
        }
    }

    #[test]
    fn a_connection_has_a_budget_per_period() {
        let flow = Flow {
            local: "10.0.0.1".parse().unwrap(),
            remote: "10.0.0.2".parse().unwrap(),
            local_port: 80,
            remote_port: 4000,
        };
        let mut budget = ChallengeBudget::default();
        let mut taken = |at: u64| (0..100).filter(|_| budget.take(Instant(at), 10, &flow, &secret())).count();
        assert!((5..=15).contains(&taken(SECOND)));
        assert_eq!(taken(SECOND + CHALLENGE_PERIOD - 1), 0);
        assert!((5..=15).contains(&taken(SECOND + CHALLENGE_PERIOD)));
    }

    #[test]
    fn one_peer_cannot_use_all_replies() {
        let mut limiter = ReplyLimiter::new(secret(), 1000);
        let mut taken = |peer: &str, at: u64| {
            let peer = peer.parse().unwrap();
            (0..5000).filter(|_| limiter.take(Instant(at), peer)).count()
        };
        assert!((125..=375).contains(&taken("10.0.0.1", 0)));
        assert!((125..=375).contains(&taken("fd00::1", 0)));
        assert_eq!(taken("fd00::2", 0), 0, "the same network");
        assert!((125..=375).contains(&taken("10.0.0.1", SECOND)));
        let all: usize = (0..50).map(|last| taken(&format!("10.0.1.{last}"), 2 * SECOND)).sum();
        assert!((500..=1500).contains(&all), "{all}");
    }
}
