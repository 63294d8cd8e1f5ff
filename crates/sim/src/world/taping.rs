//! Recording of a run.

use std::sync::{Arc, Mutex, PoisonError};

use abey_delivery::record::{Recorder, Transition};

use super::World;
use crate::recording::{External, Recording, What};

/// Recording in progress.
#[derive(Debug, Default)]
pub(super) struct Tape {
    events: Vec<External>,
    transitions: Arc<Mutex<Vec<Transition>>>,
}

impl Tape {
    pub(super) fn finish(self) -> Recording {
        let transitions = std::mem::take(&mut *self.transitions.lock().unwrap_or_else(PoisonError::into_inner));
        Recording { events: self.events, transitions }
    }
}

impl World<'_> {
    pub(super) fn recorder(&self) -> Option<Recorder> {
        let transitions = self.recording.as_ref()?.transitions.clone();
        Some(Box::new(move |one| transitions.lock().unwrap_or_else(PoisonError::into_inner).push(one)))
    }

    /// Records an external event.
    #[inline]
    pub(super) fn note(&mut self, what: What) {
        let at = self.clock();
        if let Some(tape) = &mut self.recording {
            tape.events.push(External { at, what });
        }
    }
}
