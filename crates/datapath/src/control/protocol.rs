//! The requests and answers of the control socket.

use abey_delivery::{ModeSettings, Nanos, NapiChange, NapiSettings, PollContext};
use serde::{Deserialize, Serialize};

use super::latency::LatencyPage;
use super::sockets::SocketPage;
use super::status::Status;

/// The version of the protocol. It changes when a key is removed or changes its meaning. It does not change when a key is
/// added, so a client must ignore unknown keys of an answer.
pub const VERSION: u32 = 1;

/// The longest request in bytes, including the end of its line.
pub const MAX_REQUEST: usize = 64 << 10;
/// The longest answer in bytes, including the end of its line.
pub const MAX_ANSWER: usize = 16 << 20;

/// A request: one line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// [`VERSION`].
    pub version: u32,
    /// The query.
    pub request: Query,
}

/// The kinds of requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Query {
    /// Returns the status of the datapath.
    Status,
    /// Returns the sockets of each shard.
    Sockets {
        /// The most sockets of a shard; limited to [`MAX_SOCKETS`](super::MAX_SOCKETS).
        most: usize,
    },
    /// Returns request latencies: the time from the arrival of data on a socket to the program's next write on that socket.
    /// Connections that the program opened are not measured.
    ///
    /// The measurement starts with the first query, and ends `watch_ns` after the last. The latency is that of this end of
    /// the wire: the arrival time of a frame is drawn at random from the time between two polls, and neither the wire nor
    /// the wake-up of a thread is included.
    Latency {
        /// How long to measure after this query, in nanoseconds; limited to
        /// [`MAX_LATENCY_WATCH`](super::MAX_LATENCY_WATCH).
        watch_ns: u64,
    },
    /// Changes settings.
    Set(Change),
}

/// An answer: one line of JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// [`VERSION`].
    pub version: u32,
    /// The answer.
    pub answer: Answer,
}

/// The kinds of answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The answer to [`Query::Status`].
    Status(Box<Status>),
    /// The answer to [`Query::Sockets`], a page for each shard.
    Sockets(Vec<SocketPage>),
    /// The answer to [`Query::Latency`], a page for each shard.
    Latency(Vec<LatencyPage>),
    /// The answer to [`Query::Set`]: the settings that changed, read back; in a dry run, those that would change.
    Changes(Vec<SettingChange>),
    /// The request was refused, and nothing was changed.
    Refused(Refusal),
}

/// The reason why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The kind of the reason.
    pub kind: RefusalKind,
    /// One sentence.
    pub message: String,
}

/// The kinds of reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RefusalKind {
    /// The request is invalid in this version of the protocol.
    Malformed,
    /// The request cannot be fulfilled: there is no such instance, or the settings contradict each other.
    Impossible,
    /// The runtime was dropped.
    Gone,
    /// The settings were set, and differ when read back.
    NotTaken,
}

/// A change of settings of the instances in `napis`: those of `all` first, then the single ones. All are changed or none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Change {
    /// The IDs of the instances; `null` for all.
    pub napis: Option<Vec<u32>>,
    /// All settings of a mode. Those of epolls and sockets are set for the whole runtime, and only if `napis` is `null`.
    pub all: Option<ModeSettings>,
    /// See [`NapiSettings::defer_hard_irqs`].
    pub defer_hard_irqs: Option<u32>,
    /// See [`NapiSettings::gro_flush_timeout`].
    pub gro_flush_timeout_ns: Option<u64>,
    /// See [`NapiSettings::irq_suspend_timeout`].
    pub irq_suspend_timeout_ns: Option<u64>,
    /// The context that polls.
    pub threaded: Option<PollContext>,
    /// Validates the change, and returns what would change.
    pub dry_run: bool,
}

/// One setting that changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingChange {
    /// The instance; `null` for a setting of the runtime's epolls or sockets.
    pub napi: Option<u32>,
    /// The setting's name.
    pub setting: String,
    /// Its value before the change.
    pub before: String,
    /// Its value after the change.
    pub after: String,
}

impl Request {
    /// Creates a request of this version.
    pub fn new(query: Query) -> Self {
        Self { version: VERSION, request: query }
    }
}

impl Refusal {
    pub(super) fn new(kind: RefusalKind, message: impl ToString) -> Self {
        Self { kind, message: message.to_string() }
    }
}

impl From<NapiChange> for Change {
    /// Returns the change of these settings in every instance.
    fn from(change: NapiChange) -> Self {
        let NapiChange { defer_hard_irqs, gro_flush_timeout, irq_suspend_timeout, context } = change;
        Self {
            defer_hard_irqs,
            gro_flush_timeout_ns: gro_flush_timeout.map(Nanos::as_nanos),
            irq_suspend_timeout_ns: irq_suspend_timeout.map(Nanos::as_nanos),
            threaded: context,
            ..Self::default()
        }
    }
}

impl Change {
    /// Returns the change of single settings, without [`Change::all`].
    fn single(&self) -> NapiChange {
        let Self { defer_hard_irqs, gro_flush_timeout_ns, irq_suspend_timeout_ns, threaded, .. } = *self;
        NapiChange {
            defer_hard_irqs,
            gro_flush_timeout: gro_flush_timeout_ns.map(Nanos::from_nanos),
            irq_suspend_timeout: irq_suspend_timeout_ns.map(Nanos::from_nanos),
            context: threaded,
        }
    }

    /// Returns the settings of an instance after the change.
    pub(super) fn applied_to(&self, old: NapiSettings) -> NapiSettings {
        self.single().applied_to(&self.all.map_or(old, |all| all.napi))
    }

    /// Returns whether the change names no setting.
    pub fn is_empty(&self) -> bool {
        self.all.is_none() && self.single().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_the_keys_of_the_protocol() {
        for name in abey_delivery::Mode::EXAMPLES {
            let settings = name.parse::<abey_delivery::Mode>().expect("a mode").settings();
            let text = serde_json::to_string(&settings).expect("JSON");
            assert_eq!(serde_json::from_str::<ModeSettings>(&text).expect("what was written"), settings, "{name}");
        }
        let mut settings = "suspend20".parse::<abey_delivery::Mode>().expect("a mode").settings();
        settings.napi.hold = Some(abey_delivery::Hold::Timer(Nanos::from_micros(50)));
        settings.napi.context = PollContext::BusyThread;
        settings.max_wait = Some(Nanos::from_millis(1));
        let expected = r#"{"napi":{"defer_hard_irqs":100,"gro_flush_timeout_ns":20000,"irq_suspend_timeout_ns":20000000,"threaded":"busy","hold":{"ns":50000,"timer":true}},"busy_poll":{"usecs":0,"budget":64,"prefer":true},"max_wait_ns":1000000,"socket_busy_poll_ns":null}"#;
        assert_eq!(serde_json::to_string(&settings).expect("JSON"), expected);
        let unknown = expected.replacen("\"hold\"", "\"warp\":1,\"hold\"", 1);
        assert!(serde_json::from_str::<ModeSettings>(&unknown).is_err());
    }

    #[test]
    fn requests_are_as_documented_and_unknown_keys_are_errors() {
        let set = Query::Set(Change { gro_flush_timeout_ns: Some(50_000), ..Change::default() });
        let read = |text: &str| serde_json::from_str::<Request>(text);
        assert_eq!(read(r#"{"version":1,"request":"status"}"#).expect("a request"), Request::new(Query::Status));
        let text = r#"{"version":1,"request":{"set":{"gro_flush_timeout_ns":50000}}}"#;
        assert_eq!(read(text).expect("a request"), Request::new(set));
        for wrong in [r#"{"version":1}"#, r#"{"version":1,"request":{"set":{"warp":9}}}"#, r#"{"request":"status"}"#] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
