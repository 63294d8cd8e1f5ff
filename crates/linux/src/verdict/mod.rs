//! The verdict: which delivery mode is configured, whether it is active for a process, and if not, why.
//!
//! Pure: facts in, verdict out. [`crate::overview`] gathers the facts. A mode is active if the counters show that the right
//! context polled (softirq, a NAPI thread, the process itself); the settings alone never prove that. What each mode needs
//! follows Linux `Documentation/networking/napi.rst`.

mod judge;
mod reason;
mod recognise;
#[cfg(test)]
mod tests;

pub use judge::judge;
pub use reason::{NoNapi, Reason};
pub use recognise::{Configured, recognise, recognise_napi};

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use abey_delivery::NapiSettings;

use crate::polls::PollCounts;
use crate::process::ProcessView;

/// The input of a verdict on one device and one process tree.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The device.
    pub device: DeviceFacts,
    /// How long polls were counted.
    pub interval: Duration,
    /// The polls of the device in that time, or why they could not be counted.
    pub polls: Result<PollCounts, String>,
    /// How often deferral timers fired in that time, on the whole machine; `None` where that cannot be counted.
    pub timer_expiries: Option<u64>,
    /// The requested process first, then its descendants.
    pub processes: Vec<ProcessFacts>,
}

/// What a verdict depends on of one device.
#[derive(Clone, Debug, Default)]
pub struct DeviceFacts {
    /// Its name.
    pub name: String,
    /// The inode number of its network namespace.
    pub network_namespace: u64,
    /// Whether it is the loopback device.
    pub loopback: bool,
    /// Whether it is one end of a veth pair.
    pub veth: bool,
    /// Whether generic receive offload is on; `None` if it could not be read.
    pub gro: Option<bool>,
    /// The peer of a veth device, if its TCP segmentation offload is on: its name and a description of its namespace.
    pub tso_peer: Option<(String, String)>,
    /// Whether the TCP segmentation offload of a veth device's peer is off; false if it is unknown.
    pub tso_peer_off: bool,
    /// Its NAPI instances: ID and settings.
    pub napis: Vec<(u32, NapiSettings)>,
}

/// One process of the tree.
#[derive(Clone, Debug)]
pub struct ProcessFacts {
    /// Its threads, sockets and epoll instances.
    pub view: ProcessView,
    /// The polls its threads made on the device from within system calls; `None` where that cannot be counted.
    pub own_polls: Option<OwnPolls>,
    /// The CPU time it used in the interval; `None` if unknown.
    pub cpu: Option<Duration>,
    /// How many of its connected sockets receive through each other device.
    pub by_other_device: BTreeMap<String, usize>,
    /// Its calls of `epoll_wait` and `epoll_pwait`; `None` where that cannot be counted.
    pub waits: Option<Waits>,
}

/// Busy polls by the threads of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnPolls {
    /// All polls.
    pub all: u64,
    /// Polls that processed at least one packet.
    pub with_work: u64,
}

/// Calls that wait for events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// All calls.
    pub all: u64,
    /// Calls with a timeout of zero, which return without polling.
    pub zero: u64,
}

/// Whether the mode is active for one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The counters show that it is.
    Active,
    /// The process receives packets, but not as configured, or that cannot be proved.
    NotActive,
    /// The process has no traffic of its own (a parent of workers, a worker without connections).
    Idle,
}

/// The verdict on one process.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessVerdict {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// What its NAPI instances and epoll instances are set to.
    pub configured: Configured,
    /// Whether that mode is active.
    pub state: State,
    /// Why it is not active; if it is, what limits its effect.
    pub reasons: Vec<Reason>,
}

/// The verdict on a process tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The device.
    pub device: String,
    /// The only process with traffic, or else the requested one.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// What is configured.
    pub configured: Configured,
    /// Whether it is active for every process of the tree that has traffic.
    pub active: bool,
    /// The counters that prove it, in words; empty if it is not active.
    pub evidence: String,
    /// Why it is not active, the most important reason first; if it is, what limits its effect.
    pub reasons: Vec<Reason>,
    /// The verdict on each process.
    pub processes: Vec<ProcessVerdict>,
}

impl Verdict {
    /// Returns whether the mode could not be judged for lack of counters.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        !self.active && self.reasons.iter().any(|reason| matches!(reason, Reason::CannotCount { .. }))
    }

    /// Returns the verdict as one sentence, without the reasons.
    #[must_use]
    pub fn sentence(&self) -> String {
        let Self { device, pid, name, evidence, .. } = self;
        let configured = match &self.configured {
            no_mode @ Configured::Like { .. } => format!("what is configured ({no_mode})"),
            mode => mode.to_string(),
        };
        if self.active {
            format!("{configured} is active for {name} (pid {pid}): {evidence}")
        } else {
            format!("{configured} is not active for {name} (pid {pid}) on {device}")
        }
    }
}

impl fmt::Display for Verdict {
    /// Writes the sentence, then one line for each reason.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence())?;
        for reason in &self.reasons {
            write!(f, "\n  - {reason}")?;
        }
        Ok(())
    }
}

/// Describes a device without a process: the mode of each of its NAPI instances, and the contexts that polled them.
#[must_use]
pub fn describe_device(device: &DeviceFacts, polls: &Result<PollCounts, String>) -> String {
    let DeviceFacts { name, napis, .. } = device;
    if let Some(why) = judge::no_napi(device) {
        return format!("{name}: {}", Reason::NoNapi { device: name.clone(), why });
    }
    let mut by_mode = BTreeMap::<String, Vec<String>>::new();
    for (id, settings) in napis {
        by_mode.entry(recognise_napi(settings).to_string()).or_default().push(id.to_string());
    }
    let one = by_mode.len() == 1;
    let modes: Vec<String> = by_mode
        .into_iter()
        .map(|(mode, ids)| if one { mode } else { format!("{mode} (NAPI {})", ids.join(", ")) })
        .collect();
    let pollers = match polls {
        Err(_) => String::new(),
        Ok(polls) if polls.total() == 0 => "; it was not polled in this interval".to_owned(),
        Ok(polls) => format!(
            "; polls in this interval: {} in softirq, {} by processes, {} by NAPI threads",
            polls.softirq, polls.busy, polls.kthread
        ),
    };
    format!(
        "{name}: {} is configured; whether it is active depends on the server (give its process with --pid){pollers}",
        modes.join(", ")
    )
}
