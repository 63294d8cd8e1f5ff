//! A random day of load.

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// A random day: requests per second over time, and a goal.
pub(crate) struct Curve {
    /// One load for each interval.
    pub(crate) loads: Vec<f64>,
    /// The goal of the day, in microseconds at the 99th percentile.
    pub(crate) goal_us: u64,
}

/// The range of loads, in requests per second.
pub(crate) const LOADS: (f64, f64) = (2_000.0, 80_000.0);

impl Curve {
    /// Makes a day's rise and fall with a peak of 25,000 to 75,000 and a trough of 5 to 30 % of it, with one or two
    /// humps; noise of 2 to 8 % that is correlated over about a minute; bursts of up to twice the load for 5 seconds to
    /// 5 minutes, up to five an hour; and up to six steps that last from 10 minutes to 3 hours, between half and twice
    /// the load.
    pub(crate) fn random(seed: u64, per_second: f64) -> Self {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let intervals = (86_400.0 * per_second) as usize;
        let peak = random.random_range(25_000.0..75_000.0);
        let trough = peak * random.random_range(0.05..0.3);
        let phase = random.random_range(0.0..1.0);
        let second_hump = random.random_range(0.0..0.5);
        let noise = random.random_range(0.02..0.08);
        let mut loads: Vec<f64> = (0..intervals)
            .map(|at| {
                let day = at as f64 / intervals as f64 + phase;
                let wave = |times: f64| 0.5 - 0.5 * (std::f64::consts::TAU * times * day).cos();
                let height = (1.0 - second_hump) * wave(1.0) + second_hump * wave(2.0);
                trough + (peak - trough) * height
            })
            .collect();
        let span = |random: &mut Xoshiro256PlusPlus, low: f64, high: f64| {
            let length = (low * (high / low).powf(random.random_range(0.0..1.0)) * per_second) as usize;
            let from = random.random_range(0..intervals);
            from..(from + length).min(intervals)
        };
        for _ in 0..random.random_range(24..120) {
            let factor = random.random_range(1.1..2.0);
            loads[span(&mut random, 5.0, 300.0)].iter_mut().for_each(|load| *load *= factor);
        }
        for _ in 0..random.random_range(0..7) {
            let factor = 2f64.powf(random.random_range(-1.0..1.0));
            loads[span(&mut random, 600.0, 10_800.0)].iter_mut().for_each(|load| *load *= factor);
        }
        let keeps = (-1.0 / (60.0 * per_second)).exp();
        let mut off = 0.0;
        for load in &mut loads {
            // A sum of uniform steps is nearly normal.
            let step = random.random_range(-1.0..1.0) * 3f64.sqrt();
            off = keeps * off + (1.0 - keeps * keeps).sqrt() * noise * step;
            *load = (*load * (1.0 + off)).clamp(LOADS.0, LOADS.1);
        }
        let goal_us = [260, 300, 350, 400][random.random_range(0..4usize)];
        Self { loads, goal_us }
    }
}
