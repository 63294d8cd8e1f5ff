//! Intervals of a day as slices of a simulated host: one run of the simulator at that load, with those settings.
//!
//! A run is made once for each combination of settings, load and seed, and reused: a day has hundreds of thousands of
//! intervals. Loads are rounded to the nearest of a geometric series; each interval has a random seed, so that figures
//! vary from interval to interval as they do on a host.

use std::collections::HashMap;

use abey_delivery::{ModeSettings, Nanos, nearest_mode};
use abey_sim::reference::run_all;
use abey_sim::{Load, Profile, Scenario};
use abey_tune::Sample;

use crate::curve::LOADS;
use crate::host::sample;

pub(crate) const INTERVAL: Nanos = Nanos::from_millis(250);

/// Resolution of the simulated hosts.
#[derive(Clone, Copy)]
pub(crate) struct Grid {
    /// Factor from one load to the next.
    pub(crate) factor: f64,
    /// Runs of each load.
    pub(crate) seeds: u64,
}

impl Grid {
    pub(crate) fn loads(self) -> usize {
        ((LOADS.1 / LOADS.0).ln() / self.factor.ln()).round() as usize + 1
    }

    pub(crate) fn nearest(self, load: f64) -> usize {
        ((load / LOADS.0).ln() / self.factor.ln()).round() as usize
    }
}

pub(crate) struct Slices {
    pub(crate) grid: Grid,
    profile: Profile,
    known: HashMap<ModeSettings, Vec<Sample>>,
}

impl Slices {
    /// Returns all slices of these settings.
    pub(crate) fn new(profile: &str, grid: Grid, settings: &[ModeSettings]) -> Self {
        let profile = Profile::load(profile).expect("a profile of the simulator's");
        let mut slices = Self { grid, profile, known: HashMap::new() };
        for one in settings {
            slices.add(one);
        }
        slices
    }

    fn add(&mut self, settings: &ModeSettings) {
        let grid = self.grid;
        let scenario = |load: usize, seed| Scenario {
            settings: *settings,
            linux: true,
            warmup: Nanos::from_millis(20),
            duration: INTERVAL,
            seed,
            ..Scenario::new(nearest_mode(settings), Load::Open(LOADS.0 * grid.factor.powi(load as i32)))
        };
        let all = (0..grid.loads()).flat_map(|load| (1..=grid.seeds).map(move |seed| (load, seed)));
        let scenarios: Vec<Scenario> = all.map(|(load, seed)| scenario(load, seed)).collect();
        let outcomes = run_all(&self.profile, &scenarios).expect("sound scenarios");
        self.known.insert(*settings, outcomes.iter().map(|outcome| sample(outcome, INTERVAL)).collect());
    }

    /// Returns the sample of one interval.
    pub(crate) fn slice(&mut self, settings: &ModeSettings, load: usize, seed: u64) -> Sample {
        if !self.known.contains_key(settings) {
            self.add(settings);
        }
        self.known[settings][load * self.grid.seeds as usize + (seed % self.grid.seeds) as usize]
    }
}
