//! The reasons why a mode is not active. Each is one sentence that ends with what to do.

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
    /// It has none, or its driver does not link them to the device.
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
        /// Why it has none.
        why: NoNapi,
    },
    /// The process is in another network namespace than the device.
    OtherNamespace {
        /// The device.
        device: String,
        /// Whether the user gave the namespace of the device. Otherwise it is that of the requested process, and this is one of
        /// its descendants.
        is_netns_given: bool,
    },
    /// The peer of a veth device sends unsegmented packets, which take the per-CPU backlog instead of NAPI.
    TsoAtPeer {
        /// The device.
        device: String,
        /// The peer.
        peer: String,
        /// A description of the network namespace of the peer.
        netns: String,
    },
    /// The connections received through no NAPI instance, for an unknown reason.
    NoNapiId {
        /// The device.
        device: String,
        /// How many.
        sockets: usize,
        /// Of a veth: whether the TCP segmentation offload of its peer may be on.
        tso: Option<bool>,
    },
    /// The connections use other devices.
    OtherDevice {
        /// The device.
        device: String,
        /// How many sockets use each other device.
        others: BTreeMap<String, usize>,
        /// Whether other connections use this device.
        some_here: bool,
    },
    /// Busy polling is configured without deferral.
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
        /// How many instances with sockets have none.
        unset: usize,
        /// How many instances have sockets.
        of: usize,
    },
    /// The kernel has no parameters per epoll instance.
    ParametersUnsupported,
    /// Prefer-busy-poll is off.
    PreferNotSet,
    /// Almost all waits of the event loop have timeout zero.
    ZeroTimeout {
        /// Waits with timeout zero.
        zero: u64,
        /// All waits.
        of: u64,
    },
    /// The counters cannot be read.
    CannotCount {
        /// The error.
        why: String,
    },
    /// The process has no TCP or UDP socket.
    NoSocket,
    /// No poll of the device found a packet.
    NothingReceived {
        /// The device.
        device: String,
    },
    /// The process received nothing.
    ProcessIdle,
    /// The process polled and found no packets.
    OwnPollsEmpty {
        /// How often it polled.
        own: u64,
        /// Polls with packets in softirq.
        softirq: u64,
    },
    /// Every packet was polled in softirq.
    AllInSoftirq {
        /// Polls with packets in softirq.
        softirq: u64,
    },
    /// NAPI is threaded but its threads did not poll.
    ThreadsDidNotPoll {
        /// Polls with packets in softirq.
        softirq: u64,
    },
    /// Deferral is set but no deferral timer fired.
    TimerNeverFired,
    /// Mode `base` is set but no packet was polled in softirq.
    NotInSoftirq {
        /// Polls with packets by processes.
        busy: u64,
    },
    /// Sockets of one epoll instance receive through several NAPI instances.
    SeveralNapis {
        /// The descriptor of the epoll instance.
        epoll: i32,
        /// The NAPI instances, with the number of sockets of each.
        napis: BTreeMap<u32, usize>,
    },
    /// The NAPI instances of the process are set differently.
    SettingsDiffer {
        /// The mode of each.
        configured: BTreeMap<u32, String>,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNapi { device, why } => no_napi(f, device, *why),
            Self::OtherNamespace { device, is_netns_given } => {
                let advice = if *is_netns_given {
                    "leave --netns out, then the namespace of the process is read"
                } else {
                    "give the process in that namespace with --pid"
                };
                write!(f, "it is in another network namespace than {device}: {advice}")
            }
            Self::TsoAtPeer { device, peer, netns } => write!(
                f,
                "the veth peer {peer} in {netns} has TCP segmentation offload on, so packets to {device} bypass its NAPI: \
                 turn it off there (`ethtool -K {peer} tso off`)"
            ),
            Self::OtherDevice { device, others, some_here } => {
                let list: Vec<String> = others.iter().map(|(name, n)| format!("{n} through {name}")).collect();
                let list = list.join(", ");
                let some = if *some_here { "some of its" } else { "its" };
                write!(
                    f,
                    "{some} connections do not use {device} ({list}): connect through {device}, or give the other device"
                )
            }
            Self::NoNapiId { device, sockets, tso } => {
                let check = match tso {
                    Some(true) => {
                        "turn TCP segmentation offload off at its peer (`ethtool -K PEER tso off` in the peer's namespace)"
                    }
                    Some(false) => {
                        "send requests over them, if the last ones came before GRO was turned on here and TSO off at the \
                         peer; otherwise check whether they pass a bridge or tunnel on the way"
                    }
                    None => "check whether they pass a bridge, tunnel or other virtual device on the way",
                };
                write!(f, "{sockets} connections received through no NAPI instance of {device}: {check}")
            }
            Self::NoDeferral { device } => write!(
                f,
                "interrupts are not deferred, so busy polling cannot replace them: set both defer-hard-irqs and \
                 gro-flush-timeout (`abey set {device} --mode suspend20`)"
            ),
            Self::SuspendNotAboveFlush { suspend, flush } => write!(
                f,
                "irq-suspend-timeout {suspend} is not longer than gro-flush-timeout {flush}, so interrupts are not \
                 suspended: make it longer"
            ),
            Self::NoEpoll => f.write_str(
                "it uses no epoll (but poll, select, io_uring or a thread for each connection), so the \
                 kernel does not busy poll for it: choose a mode without busy polling (defer50, threaded)",
            ),
            Self::ParametersNotSet { unset, of } => write!(
                f,
                "{unset} of its {of} epoll instances with sockets {have} no busy-poll parameters: start it with `abey run` \
                 (a statically linked program has to set them itself, with the ioctl EPIOCSPARAMS)",
                have = if *unset == 1 { "has" } else { "have" }
            ),
            Self::ParametersUnsupported => f.write_str(
                "this kernel has no busy-poll parameters per epoll instance (Linux 6.9): use a newer kernel, or a mode \
                 without busy polling (defer50, threaded)",
            ),
            Self::PreferNotSet => f.write_str(
                "prefer-busy-poll is off on its epoll instances, so interrupts and timers poll before it can: start it \
                 with `abey run`, which turns it on",
            ),
            Self::ZeroTimeout { zero, of } => write!(
                f,
                "{zero} of its {of} waits had timeout 0, with which the kernel returns without polling: make the event \
                 loop wait, or start it with `abey run --poll-on-zero-timeout`"
            ),
            Self::NoSocket => {
                f.write_str("it has no TCP or UDP socket: give the server's process, or its parent, with --pid")
            }
            Self::SeveralNapis { epoll, napis } => {
                let list: Vec<String> = napis.iter().map(|(id, n)| format!("{n} on NAPI {id}")).collect();
                write!(
                    f,
                    "the sockets of epoll instance {epoll} receive through {} NAPI instances ({}), of which the kernel \
                     polls only that of the last ready socket: give each event loop the connections of one queue (start it \
                     with `abey run --steer`, which needs SO_REUSEPORT listeners), or use one queue",
                    napis.len(),
                    list.join(", ")
                )
            }
            Self::SettingsDiffer { configured } => {
                let list: Vec<String> = configured.iter().map(|(id, mode)| format!("NAPI {id}: {mode}")).collect();
                write!(f, "its NAPI instances are set differently ({}): give them the same settings", list.join("; "))
            }
            counted => counted.fmt_counted(f),
        }
    }
}

impl Reason {
    /// Writes a reason that comes from counters.
    fn fmt_counted(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CannotCount { why } => write!(f, "polls cannot be counted, and nothing else proves that a mode is active: {why}"),
            Self::NothingReceived { device } => write!(
                f,
                "no packet arrived through {device} in this interval, which proves nothing: send it load and try again"
            ),
            Self::ProcessIdle => {
                f.write_str("it received nothing in this interval, which proves nothing: send it load and try again")
            }
            Self::OwnPollsEmpty { own, softirq } => write!(
                f,
                "it polled {own} times and never found a packet, while softirq processed {softirq} batches of them: at this \
                 load it sleeps whenever one arrives; send more load, or make gro-flush-timeout longer"
            ),
            Self::AllInSoftirq { softirq } => write!(
                f,
                "packets arrived in {softirq} polls, all in softirq and none by the process: its next wait comes later \
                 than gro-flush-timeout; make that longer"
            ),
            Self::ThreadsDidNotPoll { softirq } => write!(
                f,
                "no packet was polled by the NAPI threads ({softirq} polls with packets in softirq): turn threaded off and \
                 on again, and check that the threads get CPU time"
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
            write!(f, "packets through {device} never leave this machine and use no NAPI: connect from another machine")
        }
        NoNapi::GroOff => write!(
            f,
            "{device} is a veth device without generic receive offload, and so without NAPI: turn it on (`ethtool -K {device} gro on`)"
        ),
        NoNapi::NoInstance => write!(
            f,
            "{device} shows no NAPI instance: bring it up, use the device below it (of a bridge, bond or VLAN), or a \
             driver that links its instances to its device"
        ),
    }
}
