//! Host profiles: costs of the operations of a machine, in TOML.

use std::path::Path;

use abey_config::{FileError, read_text};
use serde::{Deserialize, Serialize};

pub use crate::input::InputError;
use crate::input::check_limits;

/// Cost of an operation on an undisturbed processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Retired instructions; each takes the profile's warm cycles per instruction.
    pub instructions: u64,
    /// Additional cycles without retired instructions, for device registers and unavoidable cache misses.
    #[serde(default)]
    pub stall_cycles: u64,
}

impl Cost {
    /// No cost.
    pub const NONE: Self = Self { instructions: 0, stall_cycles: 0 };

    /// Returns whether this is no cost.
    fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// Returns `part / whole` of this cost.
    pub(crate) fn share(self, part: u64, whole: u64) -> Self {
        Self { instructions: self.instructions * part / whole, stall_cycles: self.stall_cycles * part / whole }
    }

    /// Returns `n` times this cost.
    pub(crate) fn times(self, n: u64) -> Self {
        Self { instructions: self.instructions * n, stall_cycles: self.stall_cycles * n }
    }
}

impl std::ops::Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            instructions: self.instructions + other.instructions,
            stall_cycles: self.stall_cycles + other.stall_cycles,
        }
    }
}

/// Costs of one kind of host, its NIC, and the clients.
///
/// All keys without a default are required; unknown keys are rejected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Description of the machine and the source of the figures, in one sentence.
    pub description: String,
    /// Setup of the measurement, in a profile that `abey calibrate` wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibrated: Option<Calibrated>,
    /// Clock and undisturbed pipeline.
    pub processor: Processor,
    /// Idle CPUs.
    pub idle: Idle,
    /// Hardware interrupts.
    pub interrupt: Interrupt,
    /// Polls and the stack below the sockets.
    pub softirq: SoftirqCosts,
    /// Losses of interrupted work.
    pub disturbance: Disturbance,
    /// Scheduler.
    pub thread: ThreadCosts,
    /// Thread that handles interrupts and timers while no server waits, if delivery is in user space. Absent for the
    /// kernel's delivery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_thread: Option<ServiceThread>,
    /// Waits for events.
    pub epoll: EpollCosts,
    /// Busy polling, in addition to the polls.
    pub busy_poll: BusyPollCosts,
    /// Application.
    pub server: ServerCosts,
    /// Receive side of the NIC.
    pub nic: Nic,
    /// Everything beyond the server's NIC.
    pub client: Client,
}

/// Setup of the measurement of a profile, which is the default of plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibrated {
    /// Delivery that was measured.
    pub world: Delivery,
    /// Receive queues, each with its CPU and server thread.
    pub queues: u32,
    /// Connections over all queues.
    pub connections: u32,
}

/// Implementation of delivery that a calibrated profile describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Delivery {
    /// NAPI of the kernel.
    Linux,
    /// Abey's datapath in user space.
    Datapath,
}

impl std::fmt::Display for Delivery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Linux => "linux",
            Self::Datapath => "datapath",
        })
    }
}

/// Clock and undisturbed pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Processor {
    /// Clock frequency while not halted.
    pub frequency_mhz: u64,
    /// Cycles per 1000 instructions of undisturbed work.
    pub warm_cycles_per_1000_instructions: u64,
    /// Instructions after which half of the cost of a disturbance has been added.
    pub recovery_instructions: u64,
}

/// Idle CPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Idle {
    /// Idle loop before and after the halt. It counts as cycles, but not as CPU use.
    pub enter: Cost,
    /// Time from an interrupt to its first instruction, when halted.
    pub exit_ns: u64,
    /// Duration of a halt after which half of `exit_ns` applies. A longer halt lets the hardware, or a hypervisor
    /// that polls before it releases the CPU, reach deeper states. By default all of `exit_ns` applies after any
    /// halt.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub exit_half_ns: u64,
    /// Disturbance of the thread that runs next.
    pub cold_cycles: u64,
    /// Duration of a halt after which half of `cold_cycles` applies. The longer the halt, the more of the caches
    /// others use. By default all of it applies after any halt.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cold_half_ns: u64,
    /// Deeper idle states than that of `exit_ns`, the deepest last. A CPU enters the deepest one that would have paid
    /// off in its previous halt; at a tick (4 ms) the one that pays off by then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deeper: Vec<CState>,
}

/// Idle state of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CState {
    /// Minimum duration of a halt for which the state pays off.
    pub residency_ns: u64,
    /// Time from an interrupt to its first instruction.
    pub exit_ns: u64,
}

/// A tick of 250 Hz.
const TICK_NS: u64 = 4_000_000;

impl Idle {
    /// Returns the disturbance after a halt of this duration.
    pub(crate) fn cold_cycles(&self, halted_ns: u64) -> u64 {
        after(halted_ns, self.cold_cycles, self.cold_half_ns)
    }

    /// Returns the time from an interrupt to its first instruction, after a previous and a current halt of these
    /// durations.
    pub(crate) fn exit_ns(&self, last_ns: u64, now_ns: u64) -> u64 {
        let expected_ns = if now_ns >= TICK_NS { now_ns } else { last_ns };
        let pays = |state: &&CState| state.residency_ns <= expected_ns;
        let exit_ns = self.deeper.iter().rev().find(pays).map_or(self.exit_ns, |state| state.exit_ns);
        after(now_ns, exit_ns, self.exit_half_ns)
    }
}

/// Returns the part of `whole` that applies after a halt, where half applies after `half_ns`.
fn after(halted_ns: u64, whole: u64, half_ns: u64) -> u64 {
    match half_ns {
        0 => whole,
        half => (u128::from(whole) * u128::from(halted_ns) / u128::from(halted_ns + half)) as u64,
    }
}

/// Hardware interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interrupt {
    /// NIC interrupt.
    pub nic: Cost,
    /// Timer interrupt.
    pub timer: Cost,
    /// Delay of a timer interrupt after its deadline, by the clock event device and its emulation in a hypervisor.
    /// The default is none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub timer_late_ns: u64,
    /// Disturbance of the interrupted thread by the interrupt alone.
    pub cold_cycles: u64,
}

/// Polls and the stack below the sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SoftirqCosts {
    /// Entering and leaving a softirq run.
    pub enter: Cost,
    /// Poll without its packets.
    pub poll: Cost,
    /// Packet with a request, up to its socket. For a message of several segments, once per group received together.
    pub request: Cost,
    /// Each further segment of a message; as `request` by default. Receive offload (GRO) makes it much cheaper,
    /// because segments that were received together pass the stack once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<Cost>,
    /// Pure acknowledgement, with the completion of the transmission that it acknowledges.
    pub ack: Cost,
    /// Unmasking of the queue's interrupt.
    pub unmask: Cost,
    /// Whether all softirqs are left to the CPU's softirq thread while it is awake, as in Linux 4.9 to 6.3. Otherwise
    /// an interrupt does not wait for the scheduler.
    #[serde(default)]
    pub yields_to_thread: bool,
}

/// Losses of interrupted work.
///
/// The packets of a softirq and the requests of a thread displace each other's working set. Both lose when packets
/// are processed in the middle of a thread's work, but not when the thread polls between two waits, or sleeps.
/// processed in the middle of a thread's work; it does not when the thread polls between two waits, or sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disturbance {
    /// Per packet that a softirq processes on top of a thread.
    pub packet_cycles: u64,
    /// Per request that arrived in such a packet, when it is served.
    pub request_cycles: u64,
}

/// Scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThreadCosts {
    /// Waking a thread and switching to it.
    pub wake: Cost,
    /// Disturbance of a preempted thread.
    pub cold_cycles: u64,
    /// Time slice while other threads wait.
    pub slice_ns: u64,
    /// Difference in runtime by which a woken thread preempts the running one.
    #[serde(default)]
    pub wakeup_granularity_ns: u64,
    /// Maximum credit of a thread for its sleep; half a slice by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleeper_credit_ns: Option<u64>,
    /// Number of other CPUs that are searched for an idle one when an unpinned thread wakes, and neither its last CPU
    /// nor the waking one appears idle; all by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake_scan_cpus: Option<u32>,
    /// Cost of examining each of them, whose run queue is in another CPU's cache. Charged to the waking CPU.
    #[serde(default)]
    pub wake_scan: Cost,
    /// Cost of waking a thread on another CPU: the inter-processor interrupt. Charged to the waking CPU.
    #[serde(default)]
    pub remote_wake: Cost,
    /// Interval at which waiting unpinned threads are migrated to idle CPUs.
    #[serde(default = "default_balance_ns")]
    pub balance_ns: u64,
    /// Minimum average idle period of a CPU that migrates a waiting thread as soon as it becomes idle.
    #[serde(default = "default_newly_idle_ns")]
    pub newly_idle_ns: u64,
    /// Disturbance of a migrated thread.
    #[serde(default)]
    pub migration_cycles: u64,
    /// Start of a work item by a worker of the pool, with its list and lock.
    #[serde(default)]
    pub work_item: Cost,
}

/// A tick of 250 Hz, at which Linux balances waiting threads.
const fn default_balance_ns() -> u64 {
    TICK_NS
}

/// Linux' `sched_migration_cost_ns`.
const fn default_newly_idle_ns() -> u64 {
    500_000
}

/// Delivery in user space (the datapath). A server that sleeps in a wait receives its queue's interrupt and deadline
/// itself, and polls in its thread when it wakes, for `interrupt.nic` or `interrupt.timer`. While no server waits,
/// they wake a service thread on the same CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceThread {
    /// Waking the service thread, and the switch to it and back.
    pub wake: Cost,
    /// Falling asleep with a deadline: a timer is armed and the CPU is released. The deferral runs meanwhile.
    pub sleep: Cost,
    /// Setting the service thread's timer to an earlier time, for each deadline that a server leaves behind, unless
    /// the timer fires before it anyway. The timer is never stopped, so it fires in vain if the server waits again in
    /// time.
    pub arm: Cost,
    /// Interrupt of the service thread's timer on a CPU that is awake. In a virtual machine it costs an exit to the
    /// host, which injects the interrupt, and another one to program the timer again. A CPU that is halted, or
    /// leaving the halt, handles all expired timers in the interrupt that ends the halt, which costs
    /// `interrupt.timer`. The default is nothing.
    #[serde(default, skip_serializing_if = "Cost::is_none")]
    pub interrupt: Cost,
}

/// Waits for events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpollCosts {
    /// Call without its events.
    pub wait: Cost,
    /// Delivered event.
    pub event: Cost,
}

/// Busy polling, in addition to the polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BusyPollCosts {
    /// Iteration without its poll.
    pub iteration: Cost,
    /// End of a loop, which arms the timer and releases the instance.
    pub end: Cost,
}

/// Application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerCosts {
    /// Request: reads until empty, the answer and its transmission.
    pub request: Cost,
    /// Copy of 1024 bytes of a request or answer, for scenarios with sizes; nothing by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kilobyte: Option<Cost>,
    /// Additional cycles of a request behind very many others, because its packet has left the cache.
    pub backlog_cycles: u64,
    /// Number of requests at which half of them apply.
    pub backlog_requests: u64,
    /// Maximum number of events per wait.
    pub max_events: u64,
}

/// Start of the moderation time of received packets (`rx_timer`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RxTimer {
    /// Every packet restarts it (CQE mode of `ethtool`).
    Restart,
    /// The first packet since the last interrupt starts it.
    FirstPacket,
    /// The last interrupt starts it: it is the minimum distance of two interrupts, and does not delay one after a
    /// pause.
    Throttle,
}

/// CPU that handles a queue's interrupts and runs its softirq.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InterruptedCpu {
    /// CPU of the server, as with every physical NIC.
    #[default]
    Server,
    /// CPU that sent the packet, as on a veth: it puts the packet into the receiver's ring, raises the receiver's
    /// softirq on itself, and wakes the server's thread on another CPU. It is awake because it has just sent, and its
    /// time is not counted as the server's. A timer runs on the CPU that armed it, which is the one that polled last.
    Sender,
}

impl InterruptedCpu {
    fn is_server(&self) -> bool {
        *self == Self::Server
    }
}

/// Receive side of the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// CPU that handles the interrupts; the server's by default.
    #[serde(default, skip_serializing_if = "InterruptedCpu::is_server")]
    pub interrupts: InterruptedCpu,
    /// Size of a receive ring in packets; further packets are dropped.
    pub ring_packets: usize,
    /// Whether moderation adapts to the traffic. `rx_usecs` and `rx_frames` are then ignored.
    pub adaptive: bool,
    /// Maximum deviation of the rate that adaptation measures from that of the simulated packets. Real traffic varies
    /// in bytes and bursts that are not simulated.
    pub adaptation_noise_percent: u64,
    /// Start of `rx_usecs`.
    pub rx_timer: RxTimer,
    /// Maximum delay of an interrupt in microseconds; 0 disables it.
    pub rx_usecs: u64,
    /// Packets after which the NIC interrupts at once.
    pub rx_frames: u32,
    /// Time from passing a packet to the NIC to its completed transmission.
    pub tx_complete_ns: u64,
    /// Maximum delay of the interrupt for a completed transmission, in microseconds.
    pub tx_usecs: u64,
    /// Completed transmissions after which the NIC interrupts at once.
    pub tx_frames: u32,
    /// Speed of the wire in megabits per second, in each direction.
    pub wire_mbits_per_s: u64,
    /// Largest packet with its IP and TCP headers, without those of Ethernet; 1500 by default.
    #[serde(default = "default_mtu")]
    pub mtu_bytes: u64,
}

/// Everything beyond the server's NIC, as measured by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    /// Minimum time of both directions through the wire, the NICs and the client's stack.
    pub base_ns: u64,
    /// Mean of an exponential addition.
    pub jitter_ns: u64,
    /// Share of answers that arrive while the client sleeps or is busy.
    pub late_millionths: u64,
    /// Maximum of their uniform delay.
    pub late_ns: u64,
    /// Mean of their exponential delay in the client's queues, per request per second of a connection.
    pub late_ns_per_connection_rps: u64,
    /// Time from an answer to the arrival of its acknowledgement.
    pub ack_ns: u64,
    /// Whether the next request of a closed loop acknowledges the answer, without a separate acknowledgement.
    #[serde(default)]
    pub piggybacked_acks: bool,
    /// Whether that is also so in an open loop: the client delays acknowledgements (RFC 1122, section 4.2.3.2), by 40
    /// ms in Linux, and the next request of the connection is sent before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub delayed_acks: bool,
    /// Share of requests sent back to back on a connection that are delayed by the client.
    pub stall_millionths: u64,
    /// Duration of that delay.
    pub stall_ns: u64,
    /// Maximum time that a due request waits for its connection; after that it is not sent.
    pub skip_ns: u64,
    /// Length of a request with its headers.
    pub request_bytes: u64,
    /// Length of an answer with its headers.
    pub response_bytes: u64,
    /// Segments of an answer that are acknowledged together; 45 by default, which is a burst of receive offload (GRO,
    /// 64 KiB). Without offload it is 2 (RFC 5681, section 4.2).
    #[serde(default = "default_segments_per_ack")]
    pub segments_per_ack: u32,
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

const fn default_mtu() -> u64 {
    1_500
}

const fn default_segments_per_ack() -> u32 {
    45
}

impl Profile {
    /// Names and texts of the shipped profiles.
    pub const SHIPPED: [(&'static str, &'static str); 4] = [
        ("epyc-7662", include_str!("../profiles/epyc-7662.toml")),
        ("e5-2680", include_str!("../profiles/e5-2680.toml")),
        ("e100-2007", include_str!("../profiles/e100-2007.toml")),
        ("xeon-56ht-2020", include_str!("../profiles/xeon-56ht-2020.toml")),
    ];

    /// Loads a shipped profile by its name, or a profile from a file.
    ///
    /// # Errors
    /// If there is none, it cannot be read, or it has keys or values that are not allowed.
    pub fn load(name: &str) -> Result<Self, InputError> {
        if let Some((name, text)) = Self::SHIPPED.into_iter().find(|(shipped, _)| *shipped == name) {
            return Self::parse(name, text);
        }
        if !name.ends_with(".toml") {
            return Err(InputError::Unknown(name.to_owned()));
        }
        Self::parse(name, &read_text(Path::new(name))?)
    }

    /// Parses a profile. `name` is used in error messages.
    ///
    /// # Errors
    /// If it has keys or values that are not allowed.
    pub fn parse(name: &str, text: &str) -> Result<Self, InputError> {
        let profile: Self = toml::from_str(text).map_err(|error| FileError::toml(name, text, &error))?;
        check_limits(text).and_then(|()| profile.validate()).map_err(|error| error.at(name, text))?;
        Ok(profile)
    }

    pub(crate) fn validate(&self) -> Result<(), InputError> {
        let at_least = |key, value: u64, min: u64, allowed| {
            if value >= min { Ok(()) } else { Err(InputError::Value { key, value: value.to_string(), allowed }) }
        };
        let share = |key, value: u64| {
            let allowed = "a share is at most 1000000 millionths";
            if value <= 1_000_000 { Ok(()) } else { Err(InputError::Value { key, value: value.to_string(), allowed }) }
        };
        at_least("processor.frequency_mhz", self.processor.frequency_mhz, 1, "a clock has at least 1 MHz")?;
        at_least(
            "processor.warm_cycles_per_1000_instructions",
            self.processor.warm_cycles_per_1000_instructions,
            1,
            "instructions take at least 1 cycle in 1000",
        )?;
        at_least(
            "processor.recovery_instructions",
            self.processor.recovery_instructions,
            1,
            "recovery takes at least 1 instruction",
        )?;
        let increasing =
            |pair: &[CState]| pair[0].residency_ns < pair[1].residency_ns && pair[0].exit_ns <= pair[1].exit_ns;
        if !self.idle.deeper.windows(2).all(increasing) {
            let (value, allowed) =
                (format!("{:?}", self.idle.deeper), "deeper states come later and take longer to leave");
            return Err(InputError::Value { key: "idle.deeper", value, allowed });
        }
        at_least("nic.ring_packets", self.nic.ring_packets as u64, 1, "a ring holds at least 1 packet")?;
        at_least("nic.wire_mbits_per_s", self.nic.wire_mbits_per_s, 1, "a wire carries at least 1 Mbit/s")?;
        if !(576..=65_535).contains(&self.nic.mtu_bytes) {
            let (value, allowed) = (self.nic.mtu_bytes.to_string(), "a packet may have 576 to 65535 bytes");
            return Err(InputError::Value { key: "nic.mtu_bytes", value, allowed });
        }
        at_least("client.segments_per_ack", self.client.segments_per_ack.into(), 1, "at least 1 segment")?;
        at_least("server.max_events", self.server.max_events, 1, "a wait delivers at least 1 event")?;
        at_least("thread.slice_ns", self.thread.slice_ns, 1_000, "a slice is at least 1000 ns")?;
        at_least("thread.balance_ns", self.thread.balance_ns, 1_000, "threads are moved at most every 1000 ns")?;
        share("client.late_millionths", self.client.late_millionths)?;
        share("client.stall_millionths", self.client.stall_millionths)
    }
}
