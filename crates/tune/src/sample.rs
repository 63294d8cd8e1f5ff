//! What was seen since the last time.

use abey_delivery::Nanos;

/// What happened in one interval, under one choice of settings, to the queues that a controller steers.
///
/// An interval of 250 to 500 ms has enough requests for a 99th percentile, and lets the controller answer a step of the
/// load within a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// How long it was.
    pub interval: Nanos,
    /// Packets received.
    pub packets: u64,
    /// Polls, by whomever.
    pub polls: u64,
    /// Polls that found nothing.
    pub empty_polls: u64,
    /// CPU time of everything that serves these queues, as a share of one CPU: 1 is one CPU, and more is possible.
    pub cpu: f64,
    /// How long requests took; `None` where nobody can see that.
    pub latency: Option<Latency>,
}

/// How long requests took, from when they were intended until they were answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// Requests.
    pub count: u64,
    /// Their median.
    pub p50: Nanos,
    /// Their 99th percentile.
    pub p99: Nanos,
}

/// Fewer packets say nothing about CPU, nor fewer answers about latency.
const LEAST: u64 = 20;

impl Sample {
    /// Packets per second; `None` for an interval in which too little came to say anything, or that is nonsense.
    pub(crate) fn load(&self) -> Option<f64> {
        let sound = !self.interval.is_zero() && self.packets >= LEAST && self.cpu.is_finite() && self.cpu >= 0.0;
        sound.then(|| self.packets as f64 / self.seconds())
    }

    /// The latency, if there were enough answers.
    pub(crate) fn measured(&self) -> Option<Latency> {
        self.latency.filter(|latency| latency.count >= LEAST)
    }

    /// How long a packet waits on this host, as far as polls tell: up to the timer, `timeout`, and then for the batch that
    /// it is taken with and the one under way before it. A batch's time is the CPU time for each poll that found packets.
    /// What happens outside of the host is not in it.
    pub(crate) fn estimated_wait(&self, timeout: Nanos) -> f64 {
        let productive = self.polls.saturating_sub(self.empty_polls).max(1);
        let batch = self.cpu * self.interval.as_nanos() as f64 / productive as f64;
        timeout.as_nanos() as f64 + 2.0 * batch
    }

    fn seconds(&self) -> f64 {
        self.interval.as_nanos() as f64 / 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Sample {
        Sample {
            interval: Nanos::from_millis(500),
            packets: 1_000,
            polls: 500,
            empty_polls: 250,
            cpu: 0.1,
            latency: None,
        }
    }

    #[test]
    fn nonsense_is_no_load() {
        assert_eq!(sample().load(), Some(2_000.0));
        for broken in [
            Sample { interval: Nanos::ZERO, ..sample() },
            Sample { packets: 3, ..sample() },
            Sample { cpu: f64::NAN, ..sample() },
            Sample { cpu: -0.1, ..sample() },
        ] {
            assert_eq!(broken.load(), None, "{broken:?}");
        }
    }

    #[test]
    fn polls_tell_how_long_packets_wait() {
        // 50 ms of CPU time in 250 polls that found something: 200 us a batch.
        assert_eq!(sample().estimated_wait(Nanos::from_micros(50)), 450_000.0);
        let nothing = Sample { polls: 0, empty_polls: 9, ..sample() };
        assert!(nothing.estimated_wait(Nanos::ZERO).is_finite());
    }
}
