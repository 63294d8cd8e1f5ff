//! How far, and to which end, settings may be tuned while the machine runs.

use abey_delivery::NapiSettings;
use abey_tune::{Bounds, Goal};

/// A goal and the bounds within which it is to be reached.
#[derive(Clone, Debug, PartialEq)]
pub struct Tune {
    /// What is wanted.
    pub goal: Goal,
    /// What may be chosen for it.
    pub bounds: Bounds,
}

impl Tune {
    /// Whether a controller may have chosen these, whatever the epoll instances of the program have.
    pub fn allows(&self, napi: &NapiSettings) -> bool {
        self.bounds.families().iter().any(|family| {
            let mut settings = family.example().settings();
            settings.napi = *napi;
            self.bounds.contains(&settings)
        })
    }
}
