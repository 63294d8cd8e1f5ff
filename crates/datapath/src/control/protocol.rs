//! What is said over a control socket: the documents, and how the delivery core's types are written in them.

use std::collections::BTreeMap;

use abey_delivery::{EpollBusyPoll, Hold, Mode, ModeSettings, Nanos, NapiSettings, PollContext};
use serde::{Deserialize, Serialize};

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

/// The settings of a runtime, or those that a mode stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Of the instances.
    pub napi: Napi,
    /// Of the epolls; `null` never busy polls.
    pub busy_poll: Option<BusyPoll>,
    /// The longest that one wait of an epoll may block.
    pub max_wait_ns: Option<u64>,
    /// How long a blocking call polls its own queue before it sleeps.
    pub socket_busy_poll_ns: Option<u64>,
}

/// The settings of one instance ([`NapiSettings`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Napi {
    /// See [`NapiSettings::defer_hard_irqs`].
    pub defer_hard_irqs: u32,
    /// See [`NapiSettings::gro_flush_timeout`].
    pub gro_flush_timeout_ns: u64,
    /// See [`NapiSettings::irq_suspend_timeout`].
    pub irq_suspend_timeout_ns: u64,
    /// Who polls.
    pub threaded: Threaded,
    /// Whether it stays in poll mode after the last packet.
    pub hold: Option<HoldFor>,
}

/// Who polls, in the words of `abey set --threaded`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Threaded {
    /// The softirq.
    No,
    /// A thread per instance.
    Yes,
    /// A thread per instance that never sleeps.
    Busy,
    /// A shared pool of workers.
    Workqueue,
}

/// For how long to stay in poll mode, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HoldFor {
    /// For how long after the last packet.
    pub ns: u64,
    /// By a timer, rather than by spinning.
    pub timer: bool,
}

/// Busy-poll parameters of an epoll ([`EpollBusyPoll`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BusyPoll {
    /// How long a wait polls before it sleeps, in microseconds.
    pub usecs: u32,
    /// Packets of one poll.
    pub budget: u16,
    /// Keep the softirq away as long as the application polls.
    pub prefer: bool,
}

/// Everything about a datapath. Counters count since the runtime was built.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The process, as it sees itself.
    pub pid: u32,
    /// The process's name.
    pub program: String,
    /// The version of Abey it runs.
    pub abey: String,
    /// The NIC, as it was named when it was opened.
    pub nic: String,
    /// The host's addresses with their prefixes.
    pub addresses: Vec<String>,
    /// For how long the runtime has been there.
    pub uptime_ns: u64,
    /// The mode, if every setting is that mode's.
    pub mode: Option<String>,
    /// For epolls to come; `null` never busy polls.
    pub busy_poll: Option<BusyPoll>,
    /// The longest that one wait of an epoll may block.
    pub max_wait_ns: Option<u64>,
    /// How long a blocking call polls its own queue before it sleeps.
    pub socket_busy_poll_ns: Option<u64>,
    /// The shards, in the order of the queues.
    pub shards: Vec<Shard>,
    /// What the TCP/IP stacks counted, together.
    pub stack: BTreeMap<String, u64>,
    /// The epolls that have sockets or waiting threads first, at most [`MOST_EPOLLS`].
    pub epolls: Vec<Epoll>,
    /// How many epolls there are.
    pub epoll_count: usize,
    /// The runtime's own threads. The application's are what is left of the process.
    pub threads: Vec<Thread>,
    /// CPU time of the whole process.
    pub process_cpu_ns: u64,
}

/// Most epolls that a status lists.
pub const MOST_EPOLLS: usize = 256;

/// One shard: a queue pair, its NAPI instance and the sockets there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shard {
    /// The instance's ID, as its sockets have it (SO_INCOMING_NAPI_ID).
    pub napi: u32,
    /// The queue pair's number.
    pub queue: u32,
    /// The mode that has the settings of this instance, and the runtime's others.
    pub mode: Option<String>,
    /// The instance's settings.
    pub settings: Napi,
    /// Whether the interrupt is masked at the moment.
    pub masked: bool,
    /// What the shard counted ([`crate::Counters`]).
    pub counters: BTreeMap<String, u64>,
    /// Sockets, those included that finish without their application.
    pub sockets: usize,
    /// Connections in TIME-WAIT.
    pub time_waits: usize,
    /// Sockets that an application holds.
    pub held: usize,
    /// The queue pair.
    pub nic: Queue,
    /// Why nothing works any more, where that is so.
    pub failed: Option<String>,
}

/// A queue pair of the NIC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// Whether anybody is at the other end.
    pub up: bool,
    /// Longest packet, without the Ethernet header.
    pub mtu: usize,
    /// What it counted ([`abey_nic::Counters`]); a counter that this NIC does not have is left out.
    pub counters: BTreeMap<String, u64>,
    /// Frames it dropped, by reason ([`abey_nic::Drops`]).
    pub drops: BTreeMap<String, u64>,
    /// What the operator should put right.
    pub warning: Option<String>,
}

/// An epoll.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Epoll {
    /// Its busy-poll parameters; `null` never busy polls.
    pub busy_poll: Option<BusyPoll>,
    /// How many sockets it has.
    pub sockets: usize,
    /// The instances that these are on.
    pub napis: Vec<u32>,
    /// Threads that sleep in a wait.
    pub sleeping: usize,
}

/// A thread of the runtime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// Its ID.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// The instance it belongs to.
    pub napi: Option<u32>,
    /// Its CPU time; `null` where the kernel does not say.
    pub cpu_ns: Option<u64>,
    /// The CPUs it may run on.
    pub cpus: Option<String>,
}

/// What a thread is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Hardirq, softirq, timers and threaded polls of one instance.
    Service,
    /// A worker of the pool.
    Worker,
    /// The control socket.
    Control,
    /// Neighbours and ports of a device that is shared with the kernel.
    Kernel,
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

impl From<PollContext> for Threaded {
    fn from(context: PollContext) -> Self {
        match context {
            PollContext::Softirq => Self::No,
            PollContext::Thread => Self::Yes,
            PollContext::BusyThread => Self::Busy,
            PollContext::Workqueue => Self::Workqueue,
        }
    }
}

impl From<Threaded> for PollContext {
    fn from(threaded: Threaded) -> Self {
        match threaded {
            Threaded::No => Self::Softirq,
            Threaded::Yes => Self::Thread,
            Threaded::Busy => Self::BusyThread,
            Threaded::Workqueue => Self::Workqueue,
        }
    }
}

impl std::fmt::Display for Threaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::No => "no",
            Self::Yes => "yes",
            Self::Busy => "busy",
            Self::Workqueue => "workqueue",
        })
    }
}

impl std::fmt::Display for HoldFor {
    /// As in a settings file: `50us`, `50us-timer`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let behind = if self.timer { "-timer" } else { "" };
        write!(f, "{}{behind}", Nanos::from_nanos(self.ns))
    }
}

impl std::fmt::Display for BusyPoll {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} us, budget {}{}", self.usecs, self.budget, if self.prefer { ", prefer" } else { "" })
    }
}

impl From<EpollBusyPoll> for BusyPoll {
    fn from(busy: EpollBusyPoll) -> Self {
        Self { usecs: busy.usecs, budget: busy.budget, prefer: busy.prefer }
    }
}

impl From<BusyPoll> for EpollBusyPoll {
    fn from(busy: BusyPoll) -> Self {
        Self { usecs: busy.usecs, budget: busy.budget, prefer: busy.prefer }
    }
}

impl From<NapiSettings> for Napi {
    fn from(settings: NapiSettings) -> Self {
        let hold = settings.hold.map(|hold| match hold {
            Hold::Spin(span) => HoldFor { ns: span.as_nanos(), timer: false },
            Hold::Timer(span) => HoldFor { ns: span.as_nanos(), timer: true },
        });
        Self {
            defer_hard_irqs: settings.defer_hard_irqs,
            gro_flush_timeout_ns: settings.gro_flush_timeout.as_nanos(),
            irq_suspend_timeout_ns: settings.irq_suspend_timeout.as_nanos(),
            threaded: settings.context.into(),
            hold,
        }
    }
}

impl From<Napi> for NapiSettings {
    fn from(napi: Napi) -> Self {
        let hold = napi.hold.map(|HoldFor { ns, timer }| {
            let span = Nanos::from_nanos(ns);
            if timer { Hold::Timer(span) } else { Hold::Spin(span) }
        });
        Self {
            defer_hard_irqs: napi.defer_hard_irqs,
            gro_flush_timeout: Nanos::from_nanos(napi.gro_flush_timeout_ns),
            irq_suspend_timeout: Nanos::from_nanos(napi.irq_suspend_timeout_ns),
            context: napi.threaded.into(),
            hold,
        }
    }
}

impl From<ModeSettings> for Settings {
    fn from(settings: ModeSettings) -> Self {
        Self {
            napi: settings.napi.into(),
            busy_poll: settings.epoll.map(BusyPoll::from),
            max_wait_ns: settings.max_wait.map(Nanos::as_nanos),
            socket_busy_poll_ns: settings.socket_busy_poll.map(Nanos::as_nanos),
        }
    }
}

impl From<Settings> for ModeSettings {
    fn from(settings: Settings) -> Self {
        Self {
            napi: settings.napi.into(),
            epoll: settings.busy_poll.map(EpollBusyPoll::from),
            max_wait: settings.max_wait_ns.map(Nanos::from_nanos),
            socket_busy_poll: settings.socket_busy_poll_ns.map(Nanos::from_nanos),
        }
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

/// The mode that stands for exactly these settings.
pub(super) fn mode_of(settings: &ModeSettings) -> Option<Mode> {
    let flush = settings.napi.gro_flush_timeout;
    let plain = [Mode::Base, Mode::NapiBusy, Mode::FullBusy, Mode::Threaded, Mode::ThreadedBusy, Mode::Workqueue];
    let with_figure = [
        Some(Mode::Suspend(flush)),
        Some(Mode::Defer(flush)),
        settings.napi.hold.map(Mode::Hold),
        settings.socket_busy_poll.map(Mode::SockBusy),
    ];
    plain.into_iter().chain(with_figure.into_iter().flatten()).find(|mode| mode.settings() == *settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_survives_the_wire_and_keeps_its_name() {
        for name in Mode::EXAMPLES {
            let settings = name.parse::<Mode>().expect("a mode").settings();
            let text = serde_json::to_string(&Settings::from(settings)).expect("JSON");
            let read: Settings = serde_json::from_str(&text).expect("what was written");
            assert_eq!(ModeSettings::from(read), settings, "{name}");
            assert_eq!(mode_of(&settings).map(|mode| mode.to_string()).as_deref(), Some(name));
        }
        let mut none = "suspend20".parse::<Mode>().expect("a mode").settings();
        none.napi.defer_hard_irqs = 7;
        assert_eq!(mode_of(&none), None);
    }

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
