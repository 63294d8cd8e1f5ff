//! Why a step is what it is, in one line.

use std::fmt;

use abey_delivery::{ModeSettings, Nanos, describe};

use crate::goal::Goal;

/// Why a controller did what it did.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Why {
    /// Nothing was seen yet.
    Started,
    /// Too little came to say anything.
    Quiet,
    /// Requests came, and for a moment nobody saw how long they took.
    Unseen,
    /// The first sample after a change is of both settings.
    Settling,
    /// The goal holds, and nothing better is known.
    Holds,
    /// Something cheaper (or faster) may be there, but was tried too lately, or failed.
    Restrained,
    /// The load has changed, and what is right for it is known from this many regions of load away (a quarter of a factor of
    /// two each).
    LoadChanged {
        /// 0: it was there before.
        away: usize,
    },
    /// The load has changed, and these settings are still right.
    LoadChangedKept,
    /// The goal was missed: back to what is known or expected to keep it.
    Missed,
    /// The goal still holds, with so little room that chance would break it.
    RoomTooThin,
    /// There is room: this much (a share) less CPU, or less latency under a goal for CPU.
    Gain(f64),
    /// Nothing is known of this family at this load: a short trial.
    Trial,
    /// The trial paid: by this much (a share).
    TrialPaid(f64),
    /// The trial did not pay, or left no room.
    TrialOver,
    /// No settings within the bounds keep the goal: what comes nearest.
    OutOfReach,
    /// The application takes so long for a batch that the safety timer would interrupt it.
    LongerSuspension,
    /// The world could not apply the settings that were chosen.
    Rejected,
}

/// Why a step is what it is: [`Display`](fmt::Display) is one line for a person.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reason {
    /// Why.
    pub why: Why,
    /// What the controller steers for.
    pub goal: Goal,
    /// Packets per second, as of the sample; `None` if that is not known.
    pub load: Option<f64>,
    /// The 99th percentile of latency: of the sample or, if [estimated](Self::is_estimated), of the model.
    pub latency: Option<Nanos>,
    /// CPU, as a share of one.
    pub cpu: Option<f64>,
    /// The settings that the sample was of.
    pub from: ModeSettings,
    /// The settings from now on.
    pub to: ModeSettings,
    pub(crate) estimated: bool,
}

impl Reason {
    /// Whether nobody saw how long requests took, and a model of polls and timers stood in.
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
