//! Fitting of host profiles to measurements, with a built-in CMA-ES on the logarithms of the figures.
//!
//! [`search`] fits any figures of a profile to anything that can be simulated; [`fit`] fits to the rows of the IRQ
//! suspension study.

use abey_delivery::Nanos;
use cmaes::{CMAESOptions, DVector};
use toml_edit::{DocumentMut, Item, value};

use crate::input::InputError;
use crate::profile::Profile;
use crate::reference::{IrqSuspension, Row, run_all};

/// Figure of the profile to be fitted, and its range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// Section and name, separated by a dot.
    pub key: &'static str,
    /// Lower bound, greater than 0.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

const fn parameter(key: &'static str, low: f64, high: f64) -> Parameter {
    Parameter { key, low, high }
}

/// Parameters that are fitted to the IRQ suspension study. The rest of the profile is known.
const PARAMETERS: [Parameter; 29] = [
    parameter("processor.warm_cycles_per_1000_instructions", 650.0, 1_000.0),
    parameter("processor.recovery_instructions", 500.0, 50_000.0),
    parameter("idle.enter.instructions", 300.0, 10_000.0),
    parameter("idle.enter.stall_cycles", 300.0, 20_000.0),
    parameter("idle.cold_cycles", 100.0, 20_000.0),
    parameter("interrupt.nic.instructions", 200.0, 8_000.0),
    parameter("interrupt.nic.stall_cycles", 100.0, 15_000.0),
    parameter("interrupt.timer.instructions", 200.0, 5_000.0),
    parameter("interrupt.cold_cycles", 50.0, 10_000.0),
    parameter("softirq.poll.instructions", 200.0, 5_000.0),
    parameter("softirq.poll.stall_cycles", 50.0, 6_000.0),
    parameter("softirq.request.instructions", 2_000.0, 12_000.0),
    parameter("softirq.ack.instructions", 1_000.0, 8_000.0),
    parameter("disturbance.packet_cycles", 50.0, 5_000.0),
    parameter("disturbance.request_cycles", 100.0, 10_000.0),
    parameter("thread.wake.instructions", 500.0, 15_000.0),
    parameter("thread.wake.stall_cycles", 50.0, 15_000.0),
    parameter("epoll.wait.instructions", 200.0, 6_000.0),
    parameter("busy_poll.iteration.instructions", 100.0, 4_000.0),
    parameter("busy_poll.iteration.stall_cycles", 50.0, 8_000.0),
    parameter("server.request.instructions", 6_000.0, 18_000.0),
    parameter("server.backlog_cycles", 10.0, 10_000.0),
    parameter("nic.adaptation_noise_percent", 2.0, 90.0),
    parameter("nic.tx_usecs", 5.0, 128.0),
    parameter("client.base_ns", 10_000.0, 60_000.0),
    parameter("client.jitter_ns", 500.0, 40_000.0),
    parameter("client.late_millionths", 20_000.0, 500_000.0),
    parameter("client.late_ns", 30_000.0, 300_000.0),
    parameter("client.late_ns_per_connection_rps", 1.0, 2_000.0),
];

/// Effort of a fit.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Number of candidate profiles.
    pub evaluations: usize,
    /// Simulated answers per row and candidate.
    pub requests: f64,
    /// Seed of the arrivals, which are the same for every candidate, and of the candidates.
    pub seed: u64,
    /// Initial spread of the candidates' figures, relative to each.
    pub spread: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self { evaluations: 1_500, requests: 30_000.0, seed: 7, spread: 0.2 }
    }
}

/// Fitted profile.
#[derive(Clone, Debug)]
pub struct Fitted {
    /// Text of the given profile, including its notes, with the fitted figures.
    pub text: String,
    /// Error of the given profile.
    pub before: f64,
    /// Error of the fitted profile.
    pub after: f64,
}

/// Fits a profile to the rows of `base`, `defer20` and `fullbusy` of the IRQ suspension study.
///
/// `progress` is called after every candidate with their number and the least error so far.
///
/// # Errors
/// If the profile is invalid.
pub fn fit(text: &str, options: &Options, progress: &mut dyn FnMut(usize, f64)) -> Result<Fitted, InputError> {
    let study = IrqSuspension::new().fitted_rows();
    search(text, &PARAMETERS, options, &mut |profile| study_cost(&study, profile, options), progress)
}

/// Fits these figures of a profile. `cost` returns the error of a candidate, or infinity if it is invalid.
///
/// `progress` is called after every candidate with their number and the least error so far.
///
/// # Errors
/// If the profile is invalid.
///
/// # Panics
/// If a parameter is not an integer of the profile.
pub fn search(
    text: &str,
    parameters: &[Parameter],
    options: &Options,
    cost: &mut dyn FnMut(&Profile) -> f64,
    progress: &mut dyn FnMut(usize, f64),
) -> Result<Fitted, InputError> {
    Profile::parse("profile", text)?;
    let document: DocumentMut = text.parse().expect("a profile that was read is TOML");
    let start: Vec<f64> =
        parameters.iter().map(|parameter| libm::log(figure(&document, parameter.key).max(1.0))).collect();
    let mut cost = |figures: &[f64]| {
        let text = with_figures(&document, parameters, figures).to_string();
        let Ok(profile) = Profile::parse("candidate", &text) else { return f64::INFINITY };
        let outside: f64 = parameters.iter().zip(figures).map(|(parameter, x)| parameter.overshoot(*x)).sum();
        cost(&profile) + 100.0 * outside
    };
    let before = cost(&start);
    let mut best = (before, start.clone());
    let mut tried = 0;
    let objective = |x: &DVector<f64>| {
        let cost = cost(x.as_slice());
        tried += 1;
        if cost < best.0 {
            best = (cost, x.as_slice().to_vec());
        }
        progress(tried, best.0);
        cost
    };
    let mut search = CMAESOptions::new(start, options.spread)
        .seed(options.seed)
        .max_function_evals(options.evaluations)
        .build(objective)
        .expect("the options are in range");
    let _ = search.run();
    drop(search);
    let (after, figures) = best;
    Ok(Fitted { text: with_figures(&document, parameters, &figures).to_string(), before, after })
}

/// Returns the error of a profile: squared relative errors, in units of a good fit, that grow only linearly when
/// large.
fn study_cost(study: &IrqSuspension, profile: &Profile, options: &Options) -> f64 {
    let queues = 4;
    let mut scenarios = study.scenarios(queues, options.requests, options.seed);
    for scenario in &mut scenarios {
        scenario.warmup = scenario.warmup.min(Nanos::from_millis(40));
    }
    let Ok(outcomes) = run_all(profile, &scenarios) else { return f64::INFINITY };
    study.rows_of(&outcomes, queues).iter().map(row_cost).sum()
}

impl Parameter {
    fn clamp(&self, x: f64) -> f64 {
        libm::exp(x).clamp(self.low, self.high)
    }

    fn overshoot(&self, x: f64) -> f64 {
        (libm::log(self.low) - x).max(0.0) + (x - libm::log(self.high)).max(0.0)
    }
}

/// Error of a good fit for each column: relative, or in points for columns in percent.
const GOOD: [(&str, f64); 9] = [
    ("avg_us", 0.04),
    ("p95_us", 0.06),
    ("p99_us", 0.10),
    ("cpu_percent", 1.5),
    ("cycles_per_query", 0.03),
    ("instructions_per_query", 0.04),
    ("softirq_percent", 4.0),
    ("interrupts_per_query", 0.20),
    ("epoll_waits_per_query", 0.20),
];

fn row_cost(row: &Row) -> f64 {
    let saturated = row.load == "MAX" || (row.load == "1000K" && row.mode != "fullbusy");
    let mut sum = 0.0;
    if saturated && let Some(qps) = row.figures.get("qps").and_then(|f| Some((f.published?, f.predicted))) {
        let good = if row.load == "MAX" { 0.002 } else { 0.04 };
        sum += huber(libm::log(qps.1 / qps.0) / good);
    }
    for (column, good) in GOOD {
        let Some(figure) = row.figures.get(column) else { continue };
        let Some(published) = figure.published else { continue };
        let error = if column.ends_with("_percent") {
            figure.predicted - published
        } else if published > 0.01 {
            libm::log(figure.predicted.max(1e-6) / published)
        } else {
            continue;
        };
        sum += huber(error / good) * weight(row, column, saturated);
    }
    sum
}

/// Saturated rows follow from Little's law, and spinning executes any number of instructions, so neither determines
/// costs. Rows just below saturation do not either: in the study the cycles per query rise there for a reason that
/// the model lacks.
fn weight(row: &Row, column: &str, saturated: bool) -> f64 {
    let published = |column| row.figures.get(column).and_then(|figure| figure.published);
    let nearly_saturated = published("cpu_percent").is_some_and(|percent| percent > 80.0 && percent < 100.0);
    match column {
        _ if nearly_saturated && !saturated => 0.1,
        "avg_us" | "p95_us" | "epoll_waits_per_query" if saturated => 0.05,
        "p99_us" if saturated => 0.2,
        "instructions_per_query" if row.mode == "fullbusy" && row.load != "MAX" => 0.05,
        _ => 1.0,
    }
}

fn huber(error: f64) -> f64 {
    (1.0 + error * error).sqrt() - 1.0
}

fn figure(document: &DocumentMut, key: &str) -> f64 {
    let mut item: &Item = document.as_item();
    for part in key.split('.') {
        item = &item[part];
    }
    item.as_integer().expect("a fitted figure is an integer of the profile") as f64
}

fn with_figures(document: &DocumentMut, parameters: &[Parameter], figures: &[f64]) -> DocumentMut {
    let mut document = document.clone();
    for (parameter, x) in parameters.iter().zip(figures) {
        let mut item: &mut Item = document.as_item_mut();
        for part in parameter.key.split('.') {
            item = &mut item[part];
        }
        let decor = item.as_value().map(|value| value.decor().clone()).unwrap_or_default();
        *item = value(parameter.clamp(*x).round() as i64);
        if let Some(value) = item.as_value_mut() {
            *value.decor_mut() = decor;
        }
    }
    document
}
