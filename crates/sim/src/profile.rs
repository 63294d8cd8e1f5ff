//! Host profiles: what every operation costs on a machine, in TOML.

use std::path::Path;

use abey_input::{FileError, read_text};
use serde::{Deserialize, Serialize};

pub use crate::input::InputError;
use crate::input::check_limits;

/// The price of an operation on an undisturbed processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Instructions retired; each takes the profile's warm cycles per instruction.
    pub instructions: u64,
    /// Cycles on top of that in which nothing retires: device registers, cache misses that every call has.
    #[serde(default)]
    pub stall_cycles: u64,
}

impl Cost {
    /// Nothing.
    pub const NONE: Self = Self { instructions: 0, stall_cycles: 0 };

    /// Whether it is nothing.
    fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// As much of it as `part` is of `whole`.
    pub(crate) fn share(self, part: u64, whole: u64) -> Self {
        Self { instructions: self.instructions * part / whole, stall_cycles: self.stall_cycles * part / whole }
    }

    /// `n` times this.
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

/// The costs of one kind of host, with its NIC and the clients at the other end of the wire.
///
/// All keys are required, unless a default is given, and unknown keys are refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// One sentence: which machine, and where the figures come from.
    pub description: String,
    /// Of a profile that `abey calibrate` wrote: what it was measured with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibrated: Option<Calibrated>,
    /// The clock and the undisturbed pipeline.
    pub processor: Processor,
    /// Having nothing to do.
    pub idle: Idle,
    /// Hardware interrupts.
    pub interrupt: Interrupt,
    /// Polling and the stack below the sockets.
    pub softirq: SoftirqCosts,
    /// What interrupted work loses.
    pub disturbance: Disturbance,
    /// The scheduler.
    pub thread: ThreadCosts,
    /// Who stands for interrupts and timers while no server waits, where delivery is in user space; with the kernel's it is
    /// not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_thread: Option<ServiceThread>,
    /// Waiting for events.
    pub epoll: EpollCosts,
    /// Busy polling on top of the polls themselves.
    pub busy_poll: BusyPollCosts,
    /// The application.
    pub server: ServerCosts,
    /// The NIC's receive side.
    pub nic: Nic,
    /// Everything beyond the server's NIC.
    pub client: Client,
}

/// What a profile was measured with, which a plan is made for unless it is told otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibrated {
    /// Whose delivery it was.
    pub world: Delivery,
    /// Receive queues, each with its CPU and its server thread.
    pub queues: u32,
    /// Connections to all of them.
    pub connections: u32,
}

/// Whose delivery a calibrated profile is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Delivery {
    /// The kernel's NAPI.
    Linux,
    /// Abey's, in user space.
    Datapath,
}

/// The clock and the undisturbed pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Processor {
    /// The clock while not halted.
    pub frequency_mhz: u64,
    /// Cycles for 1000 instructions of undisturbed work.
    pub warm_cycles_per_1000_instructions: u64,
    /// After this many instructions half of what a disturbance costs has been paid.
    pub recovery_instructions: u64,
}

/// Having nothing to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Idle {
    /// The idle loop before the halt and after it; counts as cycles, but not as CPU use.
    pub enter: Cost,
    /// From an interrupt to its first instruction, when halted.
    pub exit_ns: u64,
    /// Half of that after a halt of so long: the longer, the deeper the state that the hardware, or a hypervisor that polls for
    /// a while before it gives the CPU away, has gone into. All of it after any unless given.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub exit_half_ns: u64,
    /// Disturbance of the thread that runs next.
    pub cold_cycles: u64,
    /// Half of that after a halt of so long: the longer, the more of the caches is somebody else's. All of it after any unless
    /// given.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cold_half_ns: u64,
    /// Deeper states than the one that `exit_ns` belongs to, the deepest last. A CPU goes into the deepest that would have
    /// paid the last time it was halted; at a tick (4 ms) into the one that pays by then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deeper: Vec<CState>,
}

/// A processor's idle state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CState {
    /// It pays if the CPU is halted for at least this long.
    pub residency_ns: u64,
    /// From an interrupt to its first instruction.
    pub exit_ns: u64,
}

/// A tick of 250 Hz.
const TICK_NS: u64 = 4_000_000;

impl Idle {
    /// What is lost in a halt of so long.
    pub(crate) fn cold_cycles(&self, halted_ns: u64) -> u64 {
        after(halted_ns, self.cold_cycles, self.cold_half_ns)
    }

    /// From an interrupt to its first instruction, for a CPU that was halted for so long the last time, and now.
    pub(crate) fn exit_ns(&self, last_ns: u64, now_ns: u64) -> u64 {
        let expected_ns = if now_ns >= TICK_NS { now_ns } else { last_ns };
        let pays = |state: &&CState| state.residency_ns <= expected_ns;
        let exit_ns = self.deeper.iter().rev().find(pays).map_or(self.exit_ns, |state| state.exit_ns);
        after(now_ns, exit_ns, self.exit_half_ns)
    }
}

/// What comes of a halt of so long, where it is `whole` after the longest and half of that after `half_ns`.
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
    /// One of the NIC's.
    pub nic: Cost,
    /// One of a timer's.
    pub timer: Cost,
    /// From a timer's deadline to its interrupt: the clock event device, and a hypervisor's emulation of it. None unless
    /// given.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub timer_late_ns: u64,
    /// Disturbance of the thread that was interrupted, by the interrupt alone.
    pub cold_cycles: u64,
}

/// Polling and the stack below the sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SoftirqCosts {
    /// Entering and leaving a softirq run.
    pub enter: Cost,
    /// One poll, without its packets.
    pub poll: Cost,
    /// A packet with a request, up to its socket. Of a message in several segments: what was received together, once.
    pub request: Cost,
    /// Every other segment of a message; as `request` unless given. Receive offload (GRO) makes it much less: segments that
    /// were received together pass through the stack once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<Cost>,
    /// A pure acknowledgement, with the completion of the transmission that it acknowledges.
    pub ack: Cost,
    /// Unmasking the queue's interrupt.
    pub unmask: Cost,
    /// While the CPU's softirq thread is awake, all softirqs are left to it, as in Linux 4.9 to 6.3. Otherwise an interrupt
    /// does not wait for the scheduler.
    #[serde(default)]
    pub yields_to_thread: bool,
}

/// What interrupted work loses.
///
/// The softirq's packets and the thread's requests displace each other's working set. It costs both sides when packets are
/// processed in the middle of a thread's work; it does not when the thread polls between two waits, or sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disturbance {
    /// Per packet that a softirq processes on top of a thread.
    pub packet_cycles: u64,
    /// Per request that arrived in such a packet, when the thread comes to it.
    pub request_cycles: u64,
}

/// The scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThreadCosts {
    /// Waking a thread and switching to it.
    pub wake: Cost,
    /// Disturbance of a thread that another one made way for.
    pub cold_cycles: u64,
    /// How long a thread runs while others wait.
    pub slice_ns: u64,
    /// By how much less a woken thread must have run, to make the running one give way at once.
    #[serde(default)]
    pub wakeup_granularity_ns: u64,
    /// A thread that slept is put at most this far ahead of those that ran meanwhile; half a slice unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleeper_credit_ns: Option<u64>,
    /// How many other CPUs are looked at for an idle one when an unpinned thread wakes, and neither its last CPU nor the
    /// waking one looks idle; all of them unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake_scan_cpus: Option<u32>,
    /// What it costs the waking CPU to look at each of them: its run queue is in another CPU's cache.
    #[serde(default)]
    pub wake_scan: Cost,
    /// What it costs the waking CPU that the thread is to run on another one: the inter-processor interrupt.
    #[serde(default)]
    pub remote_wake: Cost,
    /// How often unpinned threads that wait are moved to idle CPUs.
    #[serde(default = "default_balance_ns")]
    pub balance_ns: u64,
    /// A CPU that becomes idle fetches a waiting thread at once if it is idle for at least this long on average.
    #[serde(default = "default_newly_idle_ns")]
    pub newly_idle_ns: u64,
    /// Disturbance of a thread that was moved to another CPU.
    #[serde(default)]
    pub migration_cycles: u64,
    /// A worker of the pool takes a queue to poll: its list and its lock, and starting the work item.
    #[serde(default)]
    pub work_item: Cost,
}

/// Every tick of 250 Hz, at which Linux looks whether a busy CPU has somebody for an idle one.
const fn default_balance_ns() -> u64 {
    TICK_NS
}

/// Linux' `sched_migration_cost_ns`.
const fn default_newly_idle_ns() -> u64 {
    500_000
}

/// Delivery in user space (the datapath): a server that sleeps in a wait has its queue's interrupt and deadline in its own
/// sleep, and what wakes it polls in its thread, for `interrupt.nic` or `interrupt.timer`. While no server waits, a service
/// thread on the same CPU is woken for either.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceThread {
    /// Waking it, and the switch to it and back.
    pub wake: Cost,
    /// A server's falling asleep with a deadline: a timer is armed, and the CPU given away. The deferral runs meanwhile.
    pub sleep: Cost,
    /// Setting its timer to an earlier time: for every deadline that a server leaves behind when it goes to work, unless the
    /// timer goes off before that anyway. It is never stopped, and goes off for nothing if the server is back in time.
    pub arm: Cost,
    /// The interrupt of its timer, of a CPU that is awake: in a virtual machine an exit to the host, which puts the interrupt
    /// in, and another one for programming the timer again. A CPU that is halted, or not quite out of that, sees to all timers
    /// that have expired by then in the interrupt that ends the halt, which is `interrupt.timer`. Nothing unless given.
    #[serde(default, skip_serializing_if = "Cost::is_none")]
    pub interrupt: Cost,
}

/// Waiting for events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpollCosts {
    /// One call, without its events.
    pub wait: Cost,
    /// One event, delivered.
    pub event: Cost,
}

/// Busy polling on top of the polls themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BusyPollCosts {
    /// One iteration, in addition to the poll.
    pub iteration: Cost,
    /// Ending a loop: the timer is armed, and the instance let go.
    pub end: Cost,
}

/// The application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerCosts {
    /// One request: reads until empty, the answer, its transmission.
    pub request: Cost,
    /// Copying 1024 bytes of request or answer, for scenarios that give sizes; nothing unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kilobyte: Option<Cost>,
    /// Extra cycles of a request with very many others in front of it: what its packet had put in the cache is gone.
    pub backlog_cycles: u64,
    /// Half of that with this many.
    pub backlog_requests: u64,
    /// Events per wait at most.
    pub max_events: u64,
}

/// From when the moderation of received packets counts (`rx_timer`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RxTimer {
    /// Every packet starts it anew (`ethtool`'s CQE mode).
    Restart,
    /// The first packet since the last interrupt starts it.
    FirstPacket,
    /// It runs from the last interrupt: two are at least that far apart, and one after a pause is not delayed.
    Throttle,
}

/// Who takes a queue's interrupts, and runs its softirq.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InterruptedCpu {
    /// A CPU of the server's, as with every NIC.
    #[default]
    Server,
    /// The CPU that sent the packet, as on a veth: it puts the packet into the receiver's ring, raises the receiver's softirq
    /// on itself, and wakes the server's thread on another CPU. It is awake, since it has just sent, and its time is not the
    /// server's. A timer runs on the CPU that armed it, which is the one that polled last.
    Sender,
}

impl InterruptedCpu {
    fn is_server(&self) -> bool {
        *self == Self::Server
    }
}

/// The NIC's receive side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// Who is interrupted; the server unless given.
    #[serde(default, skip_serializing_if = "InterruptedCpu::is_server")]
    pub interrupts: InterruptedCpu,
    /// Size of a receive ring; further packets are dropped.
    pub ring_packets: usize,
    /// Moderation adapts itself; then `rx_usecs` and `rx_frames` are ignored.
    pub adaptive: bool,
    /// How much the rate that adaptation sees differs at most, up or down, from that of the simulated packets: real
    /// traffic varies in bytes and bursts that the simulated one does not have.
    pub adaptation_noise_percent: u64,
    /// From when `rx_usecs` counts.
    pub rx_timer: RxTimer,
    /// An interrupt waits this long (0: not at all), in microseconds.
    pub rx_usecs: u64,
    /// An interrupt comes at once after this many packets.
    pub rx_frames: u32,
    /// From handing a packet to the NIC to its completed transmission.
    pub tx_complete_ns: u64,
    /// A completed transmission interrupts at the latest this long after it, in microseconds.
    pub tx_usecs: u64,
    /// An interrupt comes at once after this many completed transmissions.
    pub tx_frames: u32,
    /// The wire, in megabits per second, each way.
    pub wire_mbits_per_s: u64,
    /// The largest packet, with its IP and TCP headers but without Ethernet's; 1500 unless given.
    #[serde(default = "default_mtu")]
    pub mtu_bytes: u64,
}

/// Everything beyond the server's NIC, as the client measures it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    /// Both ways through the wire, the NICs and the client's stack, at least.
    pub base_ns: u64,
    /// Mean of an exponential addition.
    pub jitter_ns: u64,
    /// Share of answers that find the client asleep or busy.
    pub late_millionths: u64,
    /// Those wait up to this long, uniformly.
    pub late_ns: u64,
    /// And in the queues of the client: the mean of an exponential addition for every request per second that a connection
    /// sends.
    pub late_ns_per_connection_rps: u64,
    /// From an answer to the acknowledgement's arrival.
    pub ack_ns: u64,
    /// In a closed loop the next request acknowledges the answer, and there is no acknowledgement of its own.
    #[serde(default)]
    pub piggybacked_acks: bool,
    /// Nor is there one in an open loop: the client delays its acknowledgements (RFC 1122, section 4.2.3.2), and the next
    /// request of the connection comes before they are due, which is 40 ms in Linux.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub delayed_acks: bool,
    /// Share of requests sent back to back on a connection that stall in the client.
    pub stall_millionths: u64,
    /// For this long.
    pub stall_ns: u64,
    /// A due request that waited longer than this for its connection is not sent at all.
    pub skip_ns: u64,
    /// Bytes of a request with its headers.
    pub request_bytes: u64,
    /// Bytes of an answer with its headers.
    pub response_bytes: u64,
    /// Segments of an answer that are acknowledged at once; 45 unless given, which is what receive offload (GRO, 64 KiB)
    /// makes of a burst. Without offload it is 2 (RFC 5681, section 4.2).
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
    /// The profiles that come with Abey: name and text.
    pub const SHIPPED: [(&'static str, &'static str); 4] = [
        ("epyc-7662", include_str!("../profiles/epyc-7662.toml")),
        ("e5-2680", include_str!("../profiles/e5-2680.toml")),
        ("e100-2007", include_str!("../profiles/e100-2007.toml")),
        ("xeon-56ht-2020", include_str!("../profiles/xeon-56ht-2020.toml")),
    ];

    /// A shipped profile by name, or one from a file.
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

    /// A profile from its text; `name` is for messages.
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
