//! The serde form of settings, with the feature `serde`: that of the datapath's control protocol.
//!
//! Times are numbers of nanoseconds, and their keys end in `_ns`. A context is the value of the setting `threaded`. Settings
//! files, in which times are text with a unit, are read by `abey-config`.

use serde::{Deserialize, Serialize};

use super::Hold;
use crate::Nanos;

/// [`Hold`] as a document.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HoldDocument {
    /// How long after the last packet.
    ns: u64,
    /// Whether a timer polls, rather than a loop.
    timer: bool,
}

impl From<Hold> for HoldDocument {
    fn from(hold: Hold) -> Self {
        Self { ns: hold.span().as_nanos(), timer: matches!(hold, Hold::Timer(_)) }
    }
}

impl From<HoldDocument> for Hold {
    fn from(HoldDocument { ns, timer }: HoldDocument) -> Self {
        let span = Nanos::from_nanos(ns);
        if timer { Self::Timer(span) } else { Self::Spin(span) }
    }
}
