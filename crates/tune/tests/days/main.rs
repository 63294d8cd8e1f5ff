//! Days of random load on a simulated host: the controller must keep its goal at little cost.
//!
//! The host is of the IRQ suspension study's kind with one queue, one CPU and 560 connections, and the Linux kernel's
//! delivery. Every interval of 250 ms is a run of the simulator at that interval's load and settings (`slices`), from a
//! cold start and 20 ms of warm-up. The effect of a change within an interval is not simulated; instead, the interval
//! after a change has the worse latency and the higher cost of both settings. `steps.rs` tests changes within one run.
//!
//! *Kept*: the share of the day's intervals with a 99th percentile of at most the goal. *Best fixed*: with hindsight,
//! the settings within the same bounds with the least CPU over the day among those that keep the goal at least 97 % of
//! it; if none do, those that keep it longest.
//!
//! The canaries are controllers with a deliberate fault: one never moves back, one never changes its settings. They
//! must fail.
//!
//! `ABEY_TUNE_CURVES=50 cargo test -p abey-tune --release --test days -- --nocapture` runs the full test: 50 days, on a
//! finer grid of loads, with more seeds. `ABEY_TUNE_SEED` sets the seed of the first day.

mod constant;
mod curve;
#[path = "../host/mod.rs"]
mod host;
mod slices;

use abey_delivery::{Family, ModeSettings, Nanos, describe};
use abey_tune::{Bounds, Controller, Goal, Sample};

use curve::Curve;
use slices::{Grid, INTERVAL, Slices};

const LEAST_KEPT: f64 = 0.97;
const MOST_CPU: f64 = 1.10;

/// The result of a day.
#[derive(Clone, Copy, Debug, Default)]
struct Day {
    intervals: f64,
    kept: f64,
    cpu: f64,
    changes: u32,
}

impl Day {
    fn add(&mut self, goal: Nanos, p99: Nanos, cpu: f64) {
        self.intervals += 1.0;
        self.kept += f64::from(u8::from(p99 <= goal));
        self.cpu += cpu;
    }

    fn kept(&self) -> f64 {
        self.kept / self.intervals
    }

    fn cpu(&self) -> f64 {
        self.cpu / self.intervals
    }
}

/// A source of settings: the controller or a canary.
trait Tuner {
    fn settings(&self) -> ModeSettings;
    /// Returns true if the settings have changed.
    fn handle_sample(&mut self, now: Nanos, sample: &Sample) -> bool;
}

impl Tuner for Controller {
    fn settings(&self) -> ModeSettings {
        Self::settings(self)
    }

    fn handle_sample(&mut self, now: Nanos, sample: &Sample) -> bool {
        let step = Self::handle_sample(self, now, sample);
        if step.changed && std::env::var_os("ABEY_TUNE_STEPS").is_some() {
            println!("{:>9.2} s  {}", now.as_nanos() as f64 / 1e9, step.reason);
        }
        step.changed
    }
}

fn p99(sample: &Sample) -> Nanos {
    sample.latency.expect("simulated requests are seen").p99
}

/// Returns the seed of an interval.
fn chance(at: usize) -> u64 {
    (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40
}

fn run_day(tuner: &mut dyn Tuner, slices: &mut Slices, curve: &Curve) -> Day {
    let goal = Nanos::from_micros(curve.goal_us);
    let mut day = Day::default();
    let mut before = None;
    for (at, load) in curve.loads.iter().enumerate() {
        let load = slices.grid.nearest(*load);
        let settings = tuner.settings();
        let mut sample = slices.slice(&settings, load, chance(at));
        if let Some(before) = before.take() {
            let other = slices.slice(&before, load, chance(at));
            let (mine, others) = (sample.latency.expect("seen"), other.latency.expect("seen"));
            sample.latency = Some(if mine.p99 >= others.p99 { mine } else { others });
            sample.cpu = sample.cpu.max(other.cpu);
        }
        day.add(goal, p99(&sample), sample.cpu);
        let now = Nanos::from_nanos(INTERVAL.as_nanos() * (at as u64 + 1));
        if tuner.handle_sample(now, &sample) {
            before = Some(settings);
            day.changes += 1;
        }
    }
    day
}

fn fixed_day(settings: &ModeSettings, slices: &mut Slices, curve: &Curve) -> Day {
    let goal = Nanos::from_micros(curve.goal_us);
    let mut day = Day::default();
    for (at, load) in curve.loads.iter().enumerate() {
        let load = slices.grid.nearest(*load);
        let sample = slices.slice(settings, load, chance(at));
        day.add(goal, p99(&sample), sample.cpu);
    }
    day
}

fn best_fixed(all: &[ModeSettings], slices: &mut Slices, curve: &Curve) -> (ModeSettings, Day) {
    let days: Vec<_> = all.iter().map(|settings| (*settings, fixed_day(settings, slices, curve))).collect();
    let keeping = days.iter().filter(|(_, day)| day.kept() >= LEAST_KEPT);
    let cheapest = keeping.min_by(|(_, a), (_, b)| a.cpu.total_cmp(&b.cpu));
    let longest = || days.iter().max_by(|(_, a), (_, b)| a.kept.total_cmp(&b.kept));
    *cheapest.or_else(longest).expect("there are settings")
}

fn passes(day: &Day, fixed: &Day) -> bool {
    day.kept() >= LEAST_KEPT && day.cpu() <= MOST_CPU * fixed.cpu()
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not `{text}`")))
}

/// Returns the bounds and the slices, with a coarser grid for a few days than for many.
fn host(many: bool) -> (Bounds, Slices) {
    let us = Nanos::from_micros;
    let flush = if many { us(10)..=us(300) } else { us(25)..=us(300) };
    let suspend = Nanos::from_millis(5)..=Nanos::from_millis(20);
    let bounds = Bounds::new(flush, suspend, &[Family::Base, Family::Defer, Family::Suspend]).expect("sound");
    let grid = if many { Grid { factor: 1.1, seeds: 4 } } else { Grid { factor: 1.2, seeds: 2 } };
    let slices = Slices::new("epyc-7662", grid, &bounds.settings());
    (bounds, slices)
}

fn tuner(bounds: &Bounds, curve: &Curve) -> Controller {
    let goal = Goal::P99(Nanos::from_micros(curve.goal_us));
    Controller::new(goal, bounds.clone(), None).expect("sound")
}

/// A controller without moves back: it follows only moves towards less CPU.
struct NeverBack(Controller, ModeSettings);

impl Tuner for NeverBack {
    fn settings(&self) -> ModeSettings {
        self.1
    }

    fn handle_sample(&mut self, now: Nanos, sample: &Sample) -> bool {
        let wanted = self.0.handle_sample(now, sample).settings;
        let further = wanted.napi.gro_flush_timeout > self.1.napi.gro_flush_timeout;
        if further {
            self.1 = wanted;
        }
        further
    }
}

/// A controller that keeps its initial settings.
struct NeverForward(ModeSettings);

impl Tuner for NeverForward {
    fn settings(&self) -> ModeSettings {
        self.0
    }

    fn handle_sample(&mut self, _: Nanos, _: &Sample) -> bool {
        false
    }
}

#[test]
fn days_keep_the_goal_at_little_more_than_the_best_fixed_settings() {
    let curves = number("ABEY_TUNE_CURVES");
    let seed = number("ABEY_TUNE_SEED").unwrap_or(1);
    println!("seed {seed} (ABEY_TUNE_SEED), {} days (ABEY_TUNE_CURVES)", curves.unwrap_or(3));
    let (bounds, mut slices) = host(curves.is_some());
    let all = bounds.settings();
    let mut failures = Vec::new();
    let mut totals: Vec<(Day, Day)> = Vec::new();
    for seed in seed..seed + curves.unwrap_or(3) {
        let curve = Curve::random(seed, 1e9 / INTERVAL.as_nanos() as f64);
        let day = run_day(&mut tuner(&bounds, &curve), &mut slices, &curve);
        let (settings, fixed) = best_fixed(&all, &mut slices, &curve);
        println!(
            "day {seed:3}, p99={}us: kept {:6.2} %, CPU {:5.2} %, {:4} changes; fixed {:11} keeps {:6.2} %, CPU {:5.2} %: ratio {:.3}",
            curve.goal_us,
            day.kept() * 100.0,
            day.cpu() * 100.0,
            day.changes,
            describe(&settings),
            fixed.kept() * 100.0,
            fixed.cpu() * 100.0,
            day.cpu() / fixed.cpu(),
        );
        if !passes(&day, &fixed) {
            failures.push(seed);
        }
        totals.push((day, fixed));
    }
    let kept = totals.iter().map(|(day, _)| day.kept()).fold(1.0, f64::min);
    let ratios = || totals.iter().map(|(day, fixed)| day.cpu() / fixed.cpu());
    let mean = ratios().sum::<f64>() / totals.len() as f64;
    println!(
        "{} days: kept at least {:.2} % of each; CPU {mean:.3} times the best fixed settings' on average, {:.3} at most",
        totals.len(),
        kept * 100.0,
        ratios().fold(0.0, f64::max)
    );
    assert!(failures.is_empty(), "these days fail: {failures:?}");
    constant::swings_at_most_twice_an_hour(&bounds, &mut slices);
    canaries(&bounds, &mut slices, seed);
}

/// Checks that the test can fail: a controller that never moves back misses the goal, one that never changes costs too
/// much.
fn canaries(bounds: &Bounds, slices: &mut Slices, seed: u64) {
    let (mut misses, mut costs) = (0, 0);
    for seed in seed..seed + 2 {
        let curve = Curve::random(seed, 1e9 / INTERVAL.as_nanos() as f64);
        let (_, fixed) = best_fixed(&bounds.settings(), slices, &curve);
        let start = tuner(bounds, &curve);
        let reckless = run_day(&mut NeverBack(start.clone(), start.settings()), slices, &curve);
        misses += u32::from(reckless.kept() < LEAST_KEPT);
        let timid = run_day(&mut NeverForward(bounds.settings()[1]), slices, &curve);
        costs += u32::from(timid.cpu() > MOST_CPU * fixed.cpu());
        println!(
            "canaries of day {seed}: never back keeps {:.2} %, never forward costs {:.3} times as much",
            reckless.kept() * 100.0,
            timid.cpu() / fixed.cpu()
        );
    }
    assert!(misses > 0 && costs > 0, "{misses} of 2 miss, {costs} of 2 cost too much");
}
