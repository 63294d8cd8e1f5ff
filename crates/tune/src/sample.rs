//! Measurements of one interval.

use abey_delivery::Nanos;

/// Measurements of the queues that a controller tunes, in one interval with one choice of settings.
///
/// An interval of 250 to 500 ms has enough requests for a 99th percentile, and lets the controller respond to a step of
/// the load within a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Length of the interval.
    pub interval: Nanos,
    /// Packets received.
    pub packets: u64,
    /// Polls, by any thread or interrupt.
    pub polls: u64,
    /// Polls that found no packet.
    pub empty_polls: u64,
    /// CPU time of everything that serves these queues, as a share of one CPU: 1 is one CPU, and more is possible.
    pub cpu: f64,
    /// Latency of requests; `None` where it is not measured.
    pub latency: Option<Latency>,
}

/// Latency of requests, from their intended time until the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// Number of requests.
    pub count: u64,
    /// Median.
    pub p50: Nanos,
    /// 99th percentile.
    pub p99: Nanos,
}

/// Minimum of packets for a figure of CPU, and of replies for one of latency.
const LEAST: u64 = 20;

impl Sample {
    /// Returns packets per second; `None` if the interval has too few packets, or contains invalid figures.
    pub(crate) fn load(&self) -> Option<f64> {
        let sound = !self.interval.is_zero() && self.packets >= LEAST && self.cpu.is_finite() && self.cpu >= 0.0;
        sound.then(|| self.packets as f64 / self.seconds())
    }

    /// Returns the latency, if there were enough replies.
    pub(crate) fn measured(&self) -> Option<Latency> {
        self.latency.filter(|latency| latency.count >= LEAST)
    }

    /// Estimates the time that a packet waits on this host, from the polls: up to the timer, `timeout`, and then for
    /// its own batch and the one in progress before it. A batch's time is the CPU time for each poll that found
    /// packets. Delays outside of the host are not included.
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
