//! A host as a few formulas with noise: faster than the simulator, and as diverse as hosts may be.

use abey_delivery::{Family, ModeSettings, Nanos};
use abey_tune::{Latency, Sample};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

pub(crate) struct Plant {
    random: Xoshiro256PlusPlus,
    /// Latency of a request without deferral, in microseconds, and the increase on a saturated CPU.
    idle_us: f64,
    busy_us: f64,
    /// Increase of the 99th percentile for a microsecond of timeout.
    slope: f64,
    /// Increase with plain interrupts, because the NIC moderates them.
    moderation_us: f64,
    /// CPU time of a request and of a batch, in microseconds; the increase of the former with suspension.
    request_us: f64,
    batch_us: f64,
    suspend_us: f64,
    /// Coefficient of variation of a measured 99th percentile, in addition to the noise of counting.
    noise: f64,
}

impl Plant {
    pub(crate) fn random(seed: u64) -> Self {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut between = |low: f64, high: f64| random.random_range(low..high);
        let (idle_us, busy_us, slope) = (between(30.0, 200.0), between(0.0, 100.0), between(0.7, 1.25));
        let (moderation_us, request_us, batch_us) = (between(0.0, 200.0), between(4.0, 9.0), between(1.0, 8.0));
        let (suspend_us, noise) = (between(-1.0, 1.5), between(0.0, 0.03));
        Self { random, idle_us, busy_us, slope, moderation_us, request_us, batch_us, suspend_us, noise }
    }

    pub(crate) fn cpu(&self, settings: &ModeSettings, load: f64) -> f64 {
        let flush = settings.napi.gro_flush_timeout.as_nanos() as f64 / 1e9;
        let batches = load / (1.0 + load * flush.max(5e-6));
        let own = if Family::of(settings) == Family::Suspend { self.suspend_us } else { 0.0 };
        ((load * (self.request_us + own) + batches * self.batch_us) / 1e6).min(1.0)
    }

    pub(crate) fn p99_us(&self, settings: &ModeSettings, load: f64) -> f64 {
        let flush = settings.napi.gro_flush_timeout.as_nanos() as f64 / 1e3;
        let added = if Family::of(settings) == Family::Base { self.moderation_us } else { self.slope * flush };
        self.idle_us + added + self.busy_us * self.cpu(settings, load).powi(2)
    }

    pub(crate) fn sample(&mut self, settings: &ModeSettings, load: f64, interval: Nanos) -> Sample {
        let seconds = interval.as_nanos() as f64 / 1e9;
        // A sum of uniform numbers is nearly normal.
        let mut normal = || (0..12).map(|_| self.random.random_range(0.0..1.0)).sum::<f64>() - 6.0;
        let packets = (load * seconds + normal() * (load * seconds).sqrt()).max(0.0);
        let (latency_noise, cpu_noise) = (normal(), normal());
        let cpu = self.cpu(settings, packets / seconds) * (1.0 + 0.01 * cpu_noise);
        let spread = self.noise + 0.5 / packets.max(1.0).sqrt();
        let p99 = self.p99_us(settings, load) * (1.0 + spread * latency_noise);
        let flush = settings.napi.gro_flush_timeout.as_nanos() as f64 / 1e9;
        let polls = packets / (1.0 + load * flush);
        let nanos = |micros: f64| Nanos::from_nanos((micros * 1e3) as u64);
        Sample {
            interval,
            packets: packets as u64,
            polls: polls as u64 + 10,
            empty_polls: 10,
            cpu,
            latency: Some(Latency { count: packets as u64, p50: nanos(p99 / 3.0), p99: nanos(p99) }),
        }
    }
}
