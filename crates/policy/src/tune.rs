//! The goals and bounds for tuning settings while the machine runs.

use std::path::PathBuf;

use abey_delivery::{Family, NapiSettings};
use abey_tune::{Bounds, Goal};

/// A goal, and the bounds for reaching it.
#[derive(Clone, Debug, PartialEq)]
pub struct Tune {
    /// The goal.
    pub goal: Goal,
    /// The settings that may be chosen.
    pub bounds: Bounds,
    /// Whether the policy names the families of modes. Without names the default families are allowed where supported.
    pub names_modes: bool,
    /// The file or FIFO to which a client writes the latencies of these queues.
    pub latencies: Option<PathBuf>,
}

impl Tune {
    /// Whether the bounds allow these NAPI settings, in a mode with any epoll parameters.
    pub fn allows(&self, napi: &NapiSettings) -> bool {
        self.bounds.families().iter().any(|family| {
            let mut settings = family.example().settings();
            settings.napi = *napi;
            self.bounds.contains(&settings)
        })
    }

    /// Whether the bounds allow modes in which programs busy poll.
    pub fn busy_polls(&self) -> bool {
        self.bounds.families().iter().any(|family| busy_polls(*family))
    }
}

/// Whether programs busy poll in modes of this family.
pub(crate) fn busy_polls(family: Family) -> bool {
    family.example().settings().epoll.is_some()
}
