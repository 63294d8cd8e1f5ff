//! Why a mode is not active, each in one sentence that ends with what to do.

use std::collections::BTreeMap;
use std::fmt;

use abey_delivery::Nanos;

/// Why a device has no NAPI instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoNapi {
    /// It is the loopback device.
    Loopback,
    /// It is a veth with generic receive offload off.
    GroOff,
    /// It has none, or its driver does not show them.
    NoInstance,
}

/// Why a mode is not active, or is worse than it could be.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Reason {
    /// The device has no NAPI instance.
    NoNapi {
        /// The device.
        device: String,
        /// Why.
        why: NoNapi,
    },
    /// The process lives in another network namespace than the device.
    OtherNamespace {
        /// The device.
        device: String,
    },
    /// The peer of a veth sends unsegmented packets, which take the per-CPU backlog instead of NAPI.
    TsoAtPeer {
        /// The device.
        device: String,
        /// The peer.
        peer: String,
        /// Where the peer is.
        place: String,
    },
    /// The connections received through no NAPI instance, and it is not known why.
    NoNapiId {
        /// The device.
        device: String,
        /// How many.
        sockets: usize,
        /// Whether the device is a veth.
        veth: bool,
    },
    /// The connections use other devices.
    OtherDevice {
        /// The device.
        device: String,
        /// Sockets by the device they do use.
        elsewhere: BTreeMap<String, usize>,
        /// Whether some do come through this one.
        some_here: bool,
    },
    /// Busy polling is configured and deferral is not.
    NoDeferral {
        /// The device.
        device: String,
    },
    /// The safety timer is not longer than the deferral timer.
    SuspendNotAboveFlush {
        /// irq-suspend-timeout.
        suspend: Nanos,
        /// gro-flush-timeout.
        flush: Nanos,
    },
    /// The process uses no epoll instance.
    NoEpoll,
    /// Epoll instances have no parameters.
    ParametersNotSet {
        /// How many of those that watch sockets have none.
        unset: usize,
        /// How many watch sockets.
        of: usize,
    },
    /// The kernel has no parameters per epoll instance.
    ParametersUnsupported,
    /// Prefer-busy-poll is off.
    PreferNotSet,
    /// The event loop hardly ever waits with a timeout.
    ZeroTimeout {
        /// Waits with timeout zero.
        zero: u64,
        /// All waits.
        of: u64,
    },
    /// The counters cannot be read.
    CannotCount {
        /// Why.
        why: String,
    },
    /// The process has no TCP or UDP socket.
    NoSocket,
    /// No poll of the device found a packet.
    NothingReceived {
        /// The device.
        device: String,
    },
    /// The process itself had nothing to do.
    ProcessIdle,
    /// The process polls and finds nothing.
    OwnPollsEmpty {
        /// Its polls, all empty.
        own: u64,
        /// Polls with packets in softirq.
        softirq: u64,
    },
    /// Every packet was polled in softirq.
    AllInSoftirq {
        /// Polls with packets in softirq.
        softirq: u64,
    },
    /// NAPI is threaded and its threads did not poll.
    ThreadsDidNotPoll {
        /// Polls with packets in softirq.
        softirq: u64,
    },
    /// Deferral is set and no deferral timer fired.
    TimerNeverFired,
    /// Base is set and nothing was polled in softirq.
    NotInSoftirq {
        /// Polls with packets by processes.
        busy: u64,
    },
    /// Sockets of one epoll instance receive through several NAPI instances.
    SeveralNapis {
        /// The epoll instance's descriptor.
        epoll: i32,
        /// The NAPI instances, with the number of sockets of each.
        napis: BTreeMap<u32, usize>,
    },
    /// The NAPI instances of the process are set differently.
    SettingsDiffer {
        /// What each is set to.
        configured: BTreeMap<u32, String>,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNapi { device, why } => no_napi(f, device, *why),
            Self::OtherNamespace { device } => {
                write!(f, "it lives in another network namespace than {device}: look there (leave --netns out)")
            }
            Self::TsoAtPeer { device, peer, place } => write!(
                f,
                "the veth peer {peer} in {place} has TCP segmentation offload on, so packets to {device} bypass its NAPI: \
                 turn it off there (`ethtool -K {peer} tso off`)"
            ),
            Self::OtherDevice { device, elsewhere, some_here } => {
                let list: Vec<String> = elsewhere.iter().map(|(name, n)| format!("{n} through {name}")).collect();
                let list = list.join(", ");
                let some = if *some_here { "some of its" } else { "its" };
                write!(f, "{some} connections do not come through {device} ({list}): connect through {device}, or look there")
            }
            Self::NoNapiId { device, sockets, veth } => {
                let check = if *veth {
                    "turn TCP segmentation offload off at its peer (`ethtool -K PEER tso off` in the peer's namespace)"
                } else {
                    "look whether they pass a bridge, tunnel or other virtual device on the way"
                };
                write!(f, "{sockets} connections received through no NAPI instance of {device}: {check}")
            }
            Self::NoDeferral { device } => write!(
                f,
                "interrupts are not deferred, so busy polling cannot keep them off: set both defer-hard-irqs and \
                 gro-flush-timeout (`abey set {device} --mode suspend20`)"
            ),
            Self::SuspendNotAboveFlush { suspend, flush } => write!(
                f,
                "irq-suspend-timeout {suspend} is not longer than gro-flush-timeout {flush} and suspends nothing: make \
                 it longer"
            ),
            Self::NoEpoll => f.write_str(
                "it uses no epoll (but poll, select, io_uring or a thread for each connection), so nothing can busy poll \
                 for it: choose a mode without busy polling (defer50, threaded)",
            ),
            Self::ParametersNotSet { unset, of } => write!(
                f,
                "{unset} of its {of} epoll instances with sockets {have} no busy-poll parameters: start it with `abey run` \
                 (if it was, it is statically linked and has to set them itself with EPIOCSPARAMS)",
                have = if *unset == 1 { "has" } else { "have" }
            ),
            Self::ParametersUnsupported => f.write_str(
                "this kernel has no busy-poll parameters per epoll instance (Linux 6.9): use a newer kernel, or a mode \
                 without busy polling (defer50, threaded)",
            ),
            Self::PreferNotSet => f.write_str(
                "prefer-busy-poll is off on its epoll instances, so interrupts and timers poll before it can: turn it on \
                 (`abey run` does)",
            ),
            Self::ZeroTimeout { zero, of } => write!(
                f,
                "{zero} of its {of} waits had timeout 0, with which the kernel returns without polling: let the event \
                 loop wait, or set ABEY_ZERO_TIMEOUT=poll under `abey run`"
            ),
            Self::NoSocket => {
                f.write_str("it has no TCP or UDP socket: give the server's process, or its parent, with --pid")
            }
            Self::SeveralNapis { epoll, napis } => {
                let list: Vec<String> = napis.iter().map(|(id, n)| format!("{n} on NAPI {id}")).collect();
                write!(
                    f,
                    "the sockets of epoll instance {epoll} receive through {} NAPI instances ({}), of which only that of \
                     the last ready one is polled: give each event loop the connections of one queue (ABEY_STEER=queues \
                     with SO_REUSEPORT listeners), or use one queue",
                    napis.len(),
                    list.join(", ")
                )
            }
            Self::SettingsDiffer { configured } => {
                let list: Vec<String> = configured.iter().map(|(id, mode)| format!("NAPI {id}: {mode}")).collect();
                write!(f, "its NAPI instances are set differently ({}): set them all alike", list.join("; "))
            }
            counted => counted.fmt_counted(f),
        }
    }
}

impl Reason {
    /// The reasons that come from counters.
    fn fmt_counted(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CannotCount { why } => write!(f, "who polls cannot be counted, and without that nothing is shown: {why}"),
            Self::NothingReceived { device } => write!(
                f,
                "no packet arrived through {device} while Abey looked, so nothing can be told: send it load and look again"
            ),
            Self::ProcessIdle => {
                f.write_str("it had nothing to do while Abey looked, so nothing can be told: send it load and look again")
            }
            Self::OwnPollsEmpty { own, softirq } => write!(
                f,
                "it polled {own} times and never found a packet, while softirq took {softirq} batches of them: at so light \
                 a load it sleeps whenever one arrives; send more load, or make gro-flush-timeout longer"
            ),
            Self::AllInSoftirq { softirq } => write!(
                f,
                "packets arrived in {softirq} polls, all in softirq and none by the process: its next wait comes later \
                 than gro-flush-timeout; make that longer"
            ),
            Self::ThreadsDidNotPoll { softirq } => write!(
                f,
                "no packet was polled by the NAPI threads ({softirq} polls with packets in softirq): turn threaded off and \
                 on again, and see that the threads are allowed to run"
            ),
            Self::TimerNeverFired => f.write_str(
                "packets were polled, but no deferral timer fired on this machine, so interrupts are not deferred: check \
                 that the packets use the NAPI instances that are set",
            ),
            Self::NotInSoftirq { busy } => write!(
                f,
                "nothing was polled in softirq ({busy} polls with packets by processes): another program busy polls this \
                 device (SO_BUSY_POLL, net.core.busy_poll); turn that off"
            ),
            other => unreachable!("{other:?} is not counted"),
        }
    }
}

fn no_napi(f: &mut fmt::Formatter<'_>, device: &str, why: NoNapi) -> fmt::Result {
    match why {
        NoNapi::Loopback => {
            write!(f, "packets through {device} never leave this machine and use no NAPI: connect from another one")
        }
        NoNapi::GroOff => write!(
            f,
            "{device} is a veth without generic receive offload and has no NAPI: turn it on (`ethtool -K {device} gro on`)"
        ),
        NoNapi::NoInstance => write!(
            f,
            "{device} shows no NAPI instance: bring it up, use the device below it (of a bridge, bond or VLAN), or a \
             driver that links its instances to its device"
        ),
    }
}
