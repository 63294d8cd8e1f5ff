//! The reason of a step, in one line of text.

use std::fmt;

use abey_delivery::{ModeSettings, Nanos, describe};

use crate::goal::Goal;

/// The rule by which a controller made a step.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Why {
    /// No sample has been taken yet.
    Started,
    /// The sample has too little traffic to judge by.
    Quiet,
    /// Requests came, but their latency is missing for a few samples.
    Unseen,
    /// The first sample after a change mixes both sets of settings.
    Settling,
    /// The goal holds, and no better choice is known.
    Holds,
    /// A cheaper (or faster) choice may exist, but it was tried too recently, or failed.
    Restrained,
    /// The load has changed. The new settings come from knowledge this many load regions away (four regions to a factor
    /// of two).
    LoadChanged {
        /// 0: the controller has used these settings at this load before.
        away: usize,
    },
    /// The load has changed, and the current settings still suit.
    LoadChangedKept,
    /// The goal was missed: back to settings that are known or expected to keep it.
    Missed,
    /// The goal still holds, but with so little margin that noise would break it.
    RoomTooThin,
    /// The margin allows this share less CPU, or less latency under a goal for CPU.
    Gain(f64),
    /// Nothing is known of this family at this load: a short trial.
    Trial,
    /// The trial improved the price by this share.
    TrialPaid(f64),
    /// The trial did not improve the price, or left no margin.
    TrialOver,
    /// No settings within the bounds keep the goal: the nearest are chosen.
    OutOfReach,
    /// The application takes so long for a batch that the safety timer would interrupt it.
    LongerSuspension,
    /// The caller could not apply the chosen settings.
    Rejected,
}

/// The reason of a step. [`Display`](fmt::Display) writes it as one line of text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reason {
    /// The rule that decided.
    pub why: Why,
    /// The controller's goal.
    pub goal: Goal,
    /// Packets per second in the sample; `None` if unknown.
    pub load: Option<f64>,
    /// The 99th percentile of latency: of the sample or, if [estimated](Self::is_estimated), of the model.
    pub latency: Option<Nanos>,
    /// CPU time as a share of one CPU.
    pub cpu: Option<f64>,
    /// The settings in effect during the sample.
    pub from: ModeSettings,
    /// The settings from now on.
    pub to: ModeSettings,
    pub(crate) estimated: bool,
}

impl Reason {
    /// Whether the latency was estimated by the model of polls and timers, because it was not measured.
    pub const fn is_estimated(&self) -> bool {
        self.estimated
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Started => "nothing was seen yet",
            Self::Quiet => "too little traffic to judge by",
            Self::Unseen => "no latency was seen for a moment",
            Self::Settling => "waiting for the change to settle",
            Self::Holds => "the goal holds",
            Self::Restrained => "the goal holds; better may be there, but was tried lately",
            Self::LoadChanged { away: 0 } => "what is known to suit this load",
            Self::LoadChanged { .. } => "this load is new: a cautious choice",
            Self::LoadChangedKept => "the load changed, the settings still suit",
            Self::Missed => "the goal was missed: back to what keeps it",
            Self::RoomTooThin => "the room below the goal is too thin",
            Self::Gain(share) => return write!(f, "there is room: {} better expected", percent(*share)),
            Self::Trial => "never tried at this load: a trial",
            Self::TrialPaid(share) => return write!(f, "the trial paid: {} better", percent(*share)),
            Self::TrialOver => "the trial did not pay: back",
            Self::OutOfReach => "nothing within the bounds keeps the goal: the nearest",
            Self::LongerSuspension => "batches take so long that the safety timer would interrupt them",
            Self::Rejected => "the last choice could not be applied: back",
        };
        f.write_str(text)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(load) = self.load {
            write!(f, "{load:.0} packets/s, ")?;
        }
        if let Some(latency) = self.latency {
            let word = if self.estimated { "p99 here estimated " } else { "p99 " };
            write!(f, "{word}{:.0}us, ", latency.as_nanos() as f64 / 1e3)?;
        }
        if let Some(cpu) = self.cpu {
            write!(f, "CPU {}, ", percent(cpu))?;
        }
        write!(f, "goal {}: {}", self.goal, describe(&self.from))?;
        if self.to != self.from {
            write!(f, " -> {}", describe(&self.to))?;
        }
        write!(f, ": {}", self.why)
    }
}

fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}
