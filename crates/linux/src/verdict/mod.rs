//! Says in words which delivery mode is configured, whether it is active for a process, and if not, why.
//!
//! Pure: facts in, verdict out; [`crate::overview`] gathers the facts. A mode counts as active because of who polled,
//! never because of how things are set. What each mode needs follows Linux `Documentation/networking/napi.rst`.

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

/// Everything a verdict on one device and one process tree is drawn from.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The device.
    pub device: DeviceFacts,
    /// How long was counted.
    pub interval: Duration,
    /// The polls of the device in that time, or why they could not be counted.
    pub polls: Result<PollCounts, String>,
    /// How often deferral timers fired in that time, on the whole machine; `None` where that cannot be counted.
    pub timer_expiries: Option<u64>,
    /// The processes: the one that was asked about first, then its descendants.
    pub processes: Vec<ProcessFacts>,
}

/// One device, as far as the verdict depends on it.
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
    /// Whether generic receive offload is on; `None` when it could not be read.
    pub gro: Option<bool>,
    /// The other end of a veth pair, when it has TCP segmentation offload on: its name and where it is.
    pub tso_peer: Option<(String, String)>,
    /// Its NAPI instances: ID and settings.
    pub napis: Vec<(u32, NapiSettings)>,
}

/// One process of the tree.
#[derive(Clone, Debug)]
pub struct ProcessFacts {
    /// What it looks like: threads, sockets, epoll instances.
    pub view: ProcessView,
    /// The polls its threads did on the device from within system calls; `None` where that cannot be counted.
    pub own: Option<OwnPolls>,
    /// The CPU time it used while counting; `None` when unknown.
    pub cpu: Option<Duration>,
    /// Sockets with a peer that do not receive through the device: how many, by the device they use.
    pub elsewhere: BTreeMap<String, usize>,
    /// Its calls of `epoll_wait` and `epoll_pwait`; `None` where that cannot be counted.
    pub waits: Option<Waits>,
}

/// Busy polls by the threads of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnPolls {
    /// All of them.
    pub all: u64,
    /// Those that processed at least one packet.
    pub with_work: u64,
}

/// Calls that wait for events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// All of them.
    pub all: u64,
    /// Those with a timeout of zero, which return without polling.
    pub zero: u64,
}

/// Whether the mode is at work for one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The counters show it.
    Active,
    /// The process receives, but not in the way that is configured, or that cannot be shown.
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
    /// Whether that is at work.
    pub state: State,
    /// Why not; or, if it is, what keeps it from being better.
    pub reasons: Vec<Reason>,
}

/// The verdict on a process tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The device it is about.
    pub device: String,
    /// The process: the only one with traffic, or the one that was asked about.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// What is configured.
    pub configured: Configured,
    /// Whether it is active for every process of the tree that has traffic.
    pub active: bool,
    /// The counters that show it, in words; empty when it is not active.
    pub evidence: String,
    /// Why it is not active, the most important first; if it is, what keeps it from being better.
    pub reasons: Vec<Reason>,
    /// One by one.
    pub processes: Vec<ProcessVerdict>,
}

impl Verdict {
    /// Whether it could not be found out, for lack of counters.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        !self.active && self.reasons.iter().any(|reason| matches!(reason, Reason::CannotCount { .. }))
    }

    /// The first sentence.
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
    /// The sentence, then one line a reason.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence())?;
        for reason in &self.reasons {
            write!(f, "\n  - {reason}")?;
        }
        Ok(())
    }
}

/// What can be said of a device without a process: which mode each of its NAPI instances is set to, and who polls.
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
    let who = match polls {
        Err(_) => String::new(),
        Ok(polls) if polls.total() == 0 => "; nobody polled it while Abey looked".to_owned(),
        Ok(polls) => format!(
            "; polls while Abey looked: {} in softirq, {} by processes, {} by NAPI threads",
            polls.softirq, polls.busy, polls.kthread
        ),
    };
    format!(
        "{name}: {} is configured; whether it is active depends on the server (give its process with --pid){who}",
        modes.join(", ")
    )
}
