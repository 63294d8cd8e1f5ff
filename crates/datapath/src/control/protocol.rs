//! What is said over a control socket: requests and answers.

use abey_delivery::{Nanos, NapiSettings, PollContext};
use serde::{Deserialize, Serialize};

use super::latency::LatencyPage;
use super::settings::{Settings, Threaded};
use super::sockets::SocketPage;
use super::status::Status;

/// The version of the protocol. It changes when something is taken away or means something else; what is only added
/// leaves it alone, so whoever reads an answer passes over keys it does not know.
pub const VERSION: u32 = 1;

/// A request: one line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// [`VERSION`].
    pub version: u32,
    /// What is wanted.
    pub request: Wanted,
}

/// What can be asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Wanted {
    /// Everything about the datapath.
    Status,
    /// The sockets, so many of each shard at the most ([`MOST_SOCKETS`](super::MOST_SOCKETS) if it is more than that).
    Sockets {
        /// How many.
        most: usize,
    },
    /// How long requests take: from the arrival of data on a socket to the program's next write on it, connections that the
    /// program opened left out. It is measured from the first question on, and for `watch_ns` after the last
    /// ([`LONGEST_WATCH`](super::LONGEST_WATCH) if it is more than that). Seen from this end: when a frame came to a queue
    /// that was not being looked at is drawn from the time since the last look, and neither the wire nor what it takes to
    /// wake a thread are in it.
    Latency {
        /// For how long after this question, in nanoseconds.
        watch_ns: u64,
    },
    /// Other settings.
    Set(Change),
}

/// An answer: one line of JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// [`VERSION`].
    pub version: u32,
    /// What is answered.
    pub answer: Answer,
}

/// What can be answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To [`Wanted::Status`].
    Status(Box<Status>),
    /// To [`Wanted::Sockets`], a page for each shard.
    Sockets(Vec<SocketPage>),
    /// To [`Wanted::Latency`], a page for each shard.
    Latency(Vec<LatencyPage>),
    /// To [`Wanted::Set`]: what was changed, read back; in a dry run, what would be.
    Changes(Vec<SettingChange>),
    /// What was asked for was not done, and nothing was changed.
    Refused(Refusal),
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// What kind of reason it is.
    pub kind: RefusalKind,
    /// One sentence.
    pub message: String,
}

/// The kinds of reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RefusalKind {
    /// The request is no request of this version of the protocol.
    Malformed,
    /// It asks for what cannot be: an instance that is not there, settings that make no sense together.
    Impossible,
    /// The runtime is gone.
    Gone,
    /// The settings were given and are not there when read back.
    NotTaken,
}

/// A change of settings: those of `all` first, then the single ones, of the instances in `napis`; all or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Change {
    /// The instances, by their IDs; `null` for every one.
    pub napis: Option<Vec<u32>>,
    /// Every setting, as a mode has them. What is the epolls' and the sockets' of it is set for the whole runtime, and
    /// only if `napis` is `null`.
    pub all: Option<Settings>,
    /// See [`NapiSettings::defer_hard_irqs`].
    pub defer_hard_irqs: Option<u32>,
    /// See [`NapiSettings::gro_flush_timeout`].
    pub gro_flush_timeout_ns: Option<u64>,
    /// See [`NapiSettings::irq_suspend_timeout`].
    pub irq_suspend_timeout_ns: Option<u64>,
    /// Who shall poll.
    pub threaded: Option<Threaded>,
    /// Only checks, and answers with what would change.
    pub dry_run: bool,
}

/// One setting that changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingChange {
    /// The instance; `null` for a setting of the runtime's epolls or sockets.
    pub napi: Option<u32>,
    /// The setting's name.
    pub setting: String,
    /// What it was.
    pub before: String,
    /// What it is.
    pub after: String,
}

impl Request {
    /// A request of this version.
    pub fn new(wanted: Wanted) -> Self {
        Self { version: VERSION, request: wanted }
    }
}

impl Refusal {
    pub(super) fn new(kind: RefusalKind, message: impl ToString) -> Self {
        Self { kind, message: message.to_string() }
    }
}

impl Change {
    /// The settings of an instance after the change.
    pub(super) fn applied_to(&self, old: NapiSettings) -> NapiSettings {
        let base = self.all.map_or(old, |all| all.napi.into());
        let span = |wanted: Option<u64>, old| wanted.map_or(old, Nanos::from_nanos);
        NapiSettings {
            defer_hard_irqs: self.defer_hard_irqs.unwrap_or(base.defer_hard_irqs),
            gro_flush_timeout: span(self.gro_flush_timeout_ns, base.gro_flush_timeout),
            irq_suspend_timeout: span(self.irq_suspend_timeout_ns, base.irq_suspend_timeout),
            context: self.threaded.map_or(base.context, PollContext::from),
            hold: base.hold,
        }
    }

    /// Whether it asks for no setting.
    pub fn is_empty(&self) -> bool {
        let single = self.defer_hard_irqs.is_some() || self.threaded.is_some();
        let spans = self.gro_flush_timeout_ns.is_some() || self.irq_suspend_timeout_ns.is_some();
        self.all.is_none() && !single && !spans
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_as_documented_and_nothing_is_passed_over() {
        let set = Wanted::Set(Change { gro_flush_timeout_ns: Some(50_000), ..Change::default() });
        let read = |text: &str| serde_json::from_str::<Request>(text);
        assert_eq!(read(r#"{"version":1,"request":"status"}"#).expect("a request"), Request::new(Wanted::Status));
        let text = r#"{"version":1,"request":{"set":{"gro_flush_timeout_ns":50000}}}"#;
        assert_eq!(read(text).expect("a request"), Request::new(set));
        for wrong in [r#"{"version":1}"#, r#"{"version":1,"request":{"set":{"warp":9}}}"#, r#"{"request":"status"}"#] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
