//! Values that are strings in the file: lists of queues and CPUs, ports, globs, addresses.

use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;

use abey_delivery::{Family, Mode};
use abey_linux::cpu::{CpuList, SchedulingPolicy};
use abey_linux::ethtool::{FlowProtocol, PortFlow};
use abey_tune::Goal;
use glob::Pattern;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};

/// A value that is written as a string.
pub(crate) trait Written: Sized {
    /// The expected form, for the error if the value is no string.
    const EXPECTED: &'static str;

    fn read(text: &str) -> Result<Self, String>;
}

/// A value that was parsed from a string.
#[derive(Clone, Debug)]
pub(crate) struct Text<T>(pub(crate) T);

impl<'de, T: Written> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader<T>(PhantomData<T>);
        impl<T: Written> Visitor<'_> for Reader<T> {
            type Value = Text<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(T::EXPECTED)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Text<T>, E> {
                T::read(text).map(Text).map_err(E::custom)
            }
        }
        from.deserialize_str(Reader(PhantomData))
    }
}

/// Queues of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Queues {
    /// The queues with these numbers.
    These(BTreeSet<u32>),
    /// The queues that no other rule of the device names.
    Rest,
}

/// The highest queue number that is accepted, far above what any NIC has.
const HIGHEST_QUEUE: u32 = 4_095;

/// Parses a list of queue numbers, which has the form of a list of CPUs.
fn numbers(text: &str) -> Result<BTreeSet<u32>, String> {
    let advice = "write a list of queues such as 0-3,8";
    let list: CpuList = text.parse().map_err(|_| format!("{text:?} is no list of queues: {advice}"))?;
    match list.iter().last() {
        None => Err(format!("no queue is named: {advice}")),
        Some(last) if last > HIGHEST_QUEUE => {
            Err(format!("{last} is too high for a queue: the highest is {HIGHEST_QUEUE}"))
        }
        Some(_) => Ok(list.iter().collect()),
    }
}

impl Written for BTreeSet<u32> {
    const EXPECTED: &'static str = "a list of queues in quotes, such as \"0-3,8\"";

    fn read(text: &str) -> Result<Self, String> {
        numbers(text)
    }
}

impl Written for Queues {
    const EXPECTED: &'static str = "a list of queues in quotes, such as \"0-3,8\", or \"rest\"";

    fn read(text: &str) -> Result<Self, String> {
        if text == "rest" {
            return Ok(Self::Rest);
        }
        numbers(text).map(Self::These).map_err(|error| format!("{error}, or \"rest\""))
    }
}

impl Written for CpuList {
    const EXPECTED: &'static str = "a list of CPUs in quotes, such as \"0-3,8\"";

    fn read(text: &str) -> Result<Self, String> {
        let list: Self = text.parse().map_err(|error| format!("{error}"))?;
        if list.is_empty() { Err("no CPU is named: write a list such as 0-3,8".to_owned()) } else { Ok(list) }
    }
}

impl Written for SchedulingPolicy {
    const EXPECTED: &'static str = "a scheduling policy in quotes: other, batch, idle, fifo or rr";

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: abey_linux::cpu::SchedulingError| error.to_string())
    }
}

impl Written for Goal {
    const EXPECTED: &'static str = "a goal in quotes: \"p99=250us\" or \"cpu=50%\"";

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: abey_tune::ParseGoalError| error.to_string())
    }
}

impl Written for Family {
    const EXPECTED: &'static str = "a family of modes in quotes, such as \"suspend\"";

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: abey_delivery::ParseFamilyError| error.to_string())
    }
}

/// How CPUs are assigned to queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CpuChoice {
    /// One CPU for each queue, in turn.
    InTurn(CpuList),
    /// All CPUs for each queue.
    All(CpuList),
}

impl CpuChoice {
    /// Returns the CPUs of the queue at index `at` of its rule, counted from 0.
    pub fn of(&self, at: usize) -> CpuList {
        match self {
            Self::All(cpus) => cpus.clone(),
            Self::InTurn(cpus) => cpus.iter().nth(at % cpus.len()).into_iter().collect(),
        }
    }

    /// Returns all CPUs of the choice.
    pub fn cpus(&self) -> &CpuList {
        match self {
            Self::All(cpus) | Self::InTurn(cpus) => cpus,
        }
    }
}

impl Written for CpuChoice {
    const EXPECTED: &'static str = "CPUs in quotes: \"2-5\" for one to each queue in turn, \"2-5:all\" for all to each";

    fn read(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None => CpuList::read(text).map(Self::InTurn),
            Some((list, "all")) => CpuList::read(list).map(Self::All),
            Some((_, other)) => Err(format!(
                "`:{other}` is not known: write \"2-5\" for one CPU to each queue in turn, \"2-5:all\" for all to each"
            )),
        }
    }
}

/// The flows to one destination port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    /// Whether the protocol is UDP rather than TCP.
    pub udp: bool,
    /// The destination port.
    pub port: u16,
}

impl Port {
    /// Returns the flows to the port over IPv4 and IPv6.
    pub fn flows(self) -> [PortFlow; 2] {
        let protocols =
            if self.udp { [FlowProtocol::Udp4, FlowProtocol::Udp6] } else { [FlowProtocol::Tcp4, FlowProtocol::Tcp6] };
        protocols.map(|protocol| PortFlow { protocol, port: self.port })
    }

    /// Returns the port of a flow.
    pub(crate) fn of(flow: &PortFlow) -> Self {
        Self { udp: matches!(flow.protocol, FlowProtocol::Udp4 | FlowProtocol::Udp6), port: flow.port }
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", if self.udp { "udp" } else { "tcp" }, self.port)
    }
}

impl Written for Port {
    const EXPECTED: &'static str = "a port in quotes, such as \"tcp/11211\" or \"udp/53\"";

    fn read(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is no port: write tcp/ or udp/ and a number from 1 to 65535, such as tcp/11211");
        let (protocol, port) = text.split_once('/').ok_or_else(wrong)?;
        let udp = match protocol {
            "tcp" => false,
            "udp" => true,
            _ => return Err(wrong()),
        };
        let digits = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|port| digits && *port > 0).ok_or_else(wrong)?;
        Ok(Self { udp, port })
    }
}

impl Written for Pattern {
    const EXPECTED: &'static str = "a name in quotes, or a glob such as \"eth*\"";

    fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("an empty name matches nothing: leave the line out".to_owned());
        }
        Self::new(text).map_err(|error| format!("{text:?} is no glob: {}", error.msg))
    }
}

/// A hardware address, in the form of `ip link`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mac(pub(crate) String);

impl Written for Mac {
    const EXPECTED: &'static str = "a hardware address in quotes, such as \"aa:bb:cc:dd:ee:ff\"";

    fn read(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(':').collect();
        let is_byte = |part: &&str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        if parts.len() == 6 && parts.iter().all(is_byte) {
            return Ok(Self(text.to_ascii_lowercase()));
        }
        Err(format!(
            "{text:?} is no hardware address: write six pairs of hexadecimal digits, such as aa:bb:cc:dd:ee:ff"
        ))
    }
}

/// A mode that the kernel supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelMode(pub(crate) Mode);

impl Written for KernelMode {
    const EXPECTED: &'static str = "a mode in quotes, such as \"suspend20\"";

    fn read(text: &str) -> Result<Self, String> {
        let mode: Mode = text.parse().map_err(|error: abey_delivery::ParseModeError| error.to_string())?;
        match mode.settings().only_ours() {
            None => Ok(Self(mode)),
            Some(_) => {
                Err(format!("the Linux kernel has no mode `{mode}`: it exists in the datapath and sim worlds only"))
            }
        }
    }
}
