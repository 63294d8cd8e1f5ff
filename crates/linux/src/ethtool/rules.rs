//! Rules by which a NIC steers flows to a queue or an RSS context (ntuple; `ETHTOOL_GRXCLSRLALL` and related commands).
//! Source: Linux `linux/ethtool.h` and `Documentation/networking/scaling.rst`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::ioctl::{Ethtool, Operation, put_u32, u32_at, u32s};
use crate::device::DeviceId;
use crate::machine::MachineError;

/// The protocols whose ports a rule can match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlowProtocol {
    /// TCP over IPv4.
    Tcp4,
    /// UDP over IPv4.
    Udp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over IPv6.
    Udp6,
}

impl FlowProtocol {
    const ALL: [Self; 4] = [Self::Tcp4, Self::Udp4, Self::Tcp6, Self::Udp6];

    /// Returns the flow type: `TCP_V4_FLOW` and so on.
    const fn number(self) -> u32 {
        match self {
            Self::Tcp4 => 1,
            Self::Udp4 => 2,
            Self::Tcp6 => 5,
            Self::Udp6 => 6,
        }
    }

    /// Returns the offset of the destination port in the match of such a flow: after the addresses and the source port.
    const fn port_offset(self) -> usize {
        match self {
            Self::Tcp4 | Self::Udp4 => 10,
            Self::Tcp6 | Self::Udp6 => 34,
        }
    }

    /// Returns its name in `ethtool -N`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp4 => "tcp4",
            Self::Udp4 => "udp4",
            Self::Tcp6 => "tcp6",
            Self::Udp6 => "udp6",
        }
    }
}

/// The packets to one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PortFlow {
    /// The protocol.
    pub protocol: FlowProtocol,
    /// The destination port.
    pub port: u16,
}

impl fmt::Display for PortFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.protocol.name(), self.port)
    }
}

/// The destination of the packets of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlowTarget {
    /// One receive queue.
    Queue(u32),
    /// The queues of an RSS context.
    Context(u32),
    /// None: the packets are dropped.
    Drop,
    /// Another one: a virtual function, or waking the machine.
    Other,
}

impl fmt::Display for FlowTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue(queue) => write!(f, "queue {queue}"),
            Self::Context(id) => write!(f, "RSS context {id}"),
            Self::Drop => f.write_str("dropped"),
            Self::Other => f.write_str("elsewhere"),
        }
    }
}

/// A rule in the kernel's binary form, so that a rule that matches more than a port can be restored exactly.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RuleRecord", into = "RuleRecord")]
pub struct FlowRule {
    spec: [u8; layout::SPEC_SIZE],
    context: u32,
}

/// `struct ethtool_rxnfc`, and within it `struct ethtool_rx_flow_spec`.
mod layout {
    pub(super) const GET_RULE_COUNT: u32 = 0x2e;
    pub(super) const GET_RULE: u32 = 0x2f;
    pub(super) const GET_ALL_RULES: u32 = 0x30;
    pub(super) const DELETE: u32 = 0x31;
    pub(super) const INSERT: u32 = 0x32;

    pub(super) const DATA: usize = 8;
    pub(super) const SPEC: usize = 16;
    pub(super) const RULE_COUNT: usize = 184;
    /// At the same offset: the context of a rule that uses one.
    pub(super) const CONTEXT: usize = 184;
    pub(super) const LOCATIONS: usize = 188;
    pub(super) const SIZE: usize = 192;

    pub(super) const SPEC_SIZE: usize = 168;
    pub(super) const MATCH: usize = 4;
    pub(super) const MATCH_END: usize = 76;
    pub(super) const MASK: usize = 76;
    pub(super) const MASK_END: usize = 148;
    pub(super) const COOKIE: usize = 152;
    pub(super) const LOCATION: usize = 160;

    /// Flags in the flow type: the rule uses a context, or matches more than the protocol's own header.
    pub(super) const USES_CONTEXT: u32 = 0x2000_0000;
    pub(super) const MATCHES_MORE: u32 = 0xc000_0000;
    pub(super) const DROP: u64 = u64::MAX;
    /// In the answer to a count: the driver chooses locations itself. As a location: any.
    pub(super) const DRIVER_CHOOSES: u32 = 0x8000_0000;
    pub(super) const ANYWHERE: u32 = u32::MAX;
}

impl FlowRule {
    /// Returns the rule that sends a flow to a queue or context. Its location is chosen when it is inserted.
    ///
    /// # Panics
    /// If the target is neither.
    #[must_use]
    pub fn to_port(flow: PortFlow, target: FlowTarget) -> Self {
        let mut rule = Self { spec: [0; layout::SPEC_SIZE], context: 0 };
        let offset = flow.protocol.port_offset();
        let mut kind = flow.protocol.number();
        rule.spec[layout::MATCH + offset..][..2].copy_from_slice(&flow.port.to_be_bytes());
        rule.spec[layout::MASK + offset..][..2].fill(0xff);
        match target {
            FlowTarget::Queue(queue) => rule.put_cookie(queue.into()),
            FlowTarget::Context(id) => {
                kind |= layout::USES_CONTEXT;
                rule.context = id;
            }
            FlowTarget::Drop | FlowTarget::Other => panic!("a rule is made for a queue or a context"),
        }
        put_u32(&mut rule.spec, 0, kind);
        put_u32(&mut rule.spec, layout::LOCATION, layout::ANYWHERE);
        rule
    }

    /// Returns its location in the driver's table. If several rules match, the lowest location takes precedence.
    #[must_use]
    pub fn location(&self) -> u32 {
        u32_at(&self.spec, layout::LOCATION)
    }

    /// Returns the flow, if the rule matches a destination port and nothing else.
    #[must_use]
    pub fn port(&self) -> Option<PortFlow> {
        let kind = self.kind() & !layout::USES_CONTEXT;
        let protocol = FlowProtocol::ALL.into_iter().find(|protocol| protocol.number() == kind)?;
        let offset = protocol.port_offset();
        let mut only_port = [0; layout::MASK_END - layout::MASK];
        only_port[offset..][..2].fill(0xff);
        if self.spec[layout::MASK..layout::MASK_END] != only_port {
            return None;
        }
        let port = &self.spec[layout::MATCH..layout::MATCH_END][offset..][..2];
        Some(PortFlow { protocol, port: u16::from_be_bytes([port[0], port[1]]) })
    }

    /// Returns the destination of the packets.
    #[must_use]
    pub fn target(&self) -> FlowTarget {
        let cookie = self.cookie();
        match (self.kind() & layout::USES_CONTEXT != 0, u32::try_from(cookie)) {
            _ if cookie == layout::DROP => FlowTarget::Drop,
            // With a context and a queue, the queue is added to the entry of the context's table.
            (true, Ok(0)) => FlowTarget::Context(self.context),
            (false, Ok(queue)) => FlowTarget::Queue(queue),
            _ => FlowTarget::Other,
        }
    }

    /// Returns whether it does the same as the other, whatever their locations.
    #[must_use]
    pub fn does_same(&self, other: &Self) -> bool {
        match (self.port(), other.port()) {
            // Drivers return the fields that they ignore in another form.
            (Some(flow), Some(of_other)) => flow == of_other && self.target() == other.target(),
            _ => self.at(0) == other.at(0),
        }
    }

    /// Returns the flow in words.
    #[must_use]
    pub fn flow_name(&self) -> String {
        let kind = self.kind() & !(layout::MATCHES_MORE | layout::USES_CONTEXT);
        self.port().map_or_else(|| format!("of flow type {kind:#x}"), |flow| flow.to_string())
    }

    /// Returns the same rule with another context: for a rule whose context was created again.
    #[must_use]
    pub fn with_context(mut self, context: u32) -> Self {
        self.context = context;
        self
    }

    /// Returns the same rule at this location.
    #[must_use]
    pub fn at(&self, location: u32) -> Self {
        let mut moved = self.clone();
        put_u32(&mut moved.spec, layout::LOCATION, location);
        moved
    }

    /// Returns the flow type with its flags.
    fn kind(&self) -> u32 {
        u32_at(&self.spec, 0)
    }

    fn cookie(&self) -> u64 {
        u64::from_ne_bytes(self.spec[layout::COOKIE..][..8].try_into().expect("eight bytes"))
    }

    fn put_cookie(&mut self, cookie: u64) {
        self.spec[layout::COOKIE..][..8].copy_from_slice(&cookie.to_ne_bytes());
    }
}

impl fmt::Display for FlowRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.flow_name(), self.target())
    }
}

impl fmt::Debug for FlowRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FlowRule({self} at {:#x})", self.location())
    }
}

/// The serialised form of a rule: the kernel's structure in hexadecimal digits.
#[derive(Serialize, Deserialize)]
struct RuleRecord {
    spec: String,
    context: u32,
}

impl From<FlowRule> for RuleRecord {
    fn from(rule: FlowRule) -> Self {
        Self { spec: rule.spec.iter().map(|byte| format!("{byte:02x}")).collect(), context: rule.context }
    }
}

impl FromStr for FlowRule {
    type Err = String;

    fn from_str(digits: &str) -> Result<Self, String> {
        let wrong = || format!("a flow rule has {} hexadecimal digits", 2 * layout::SPEC_SIZE);
        if digits.len() != 2 * layout::SPEC_SIZE || !digits.is_ascii() {
            return Err(wrong());
        }
        let mut spec = [0; layout::SPEC_SIZE];
        for (byte, offset) in spec.iter_mut().zip((0..digits.len()).step_by(2)) {
            *byte = u8::from_str_radix(&digits[offset..offset + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Self { spec, context: 0 })
    }
}

impl TryFrom<RuleRecord> for FlowRule {
    type Error = String;

    fn try_from(record: RuleRecord) -> Result<Self, String> {
        Ok(record.spec.parse::<Self>()?.with_context(record.context))
    }
}

impl Ethtool {
    /// Lists the rules of a device, by location.
    ///
    /// # Errors
    /// The driver has none, or the device does not exist any more.
    pub fn rules(&self, device: &DeviceId) -> Result<Vec<FlowRule>, MachineError> {
        let action = format!("list the flow rules of {device}");
        let operation = Operation { device, action: &action };
        let (mut locations, _) = self.rule_locations(operation)?;
        locations.sort_unstable();
        let mut rules = Vec::new();
        for location in locations {
            let mut request = request(layout::GET_RULE);
            put_u32(&mut request, layout::SPEC + layout::LOCATION, location);
            match self.call(operation, &mut request) {
                Ok(()) => rules.push(decode(&request)),
                // It was deleted since.
                Err(MachineError::Refused { errno: Some(libc::ENOENT | libc::EINVAL), .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(rules)
    }

    /// Inserts a rule: at its own location if it has one, else where the driver chooses, or at the highest free location.
    /// Returns the location.
    ///
    /// # Errors
    /// The driver refuses, the caller lacks `CAP_NET_ADMIN`, or the device does not exist any more.
    pub fn insert_rule(&self, device: &DeviceId, rule: &FlowRule) -> Result<u32, MachineError> {
        let action = format!("steer {rule} on {device}");
        let operation = Operation { device, action: &action };
        let mut rule = rule.clone();
        if rule.location() == layout::ANYWHERE && !self.driver_chooses(operation)? {
            let (taken, size) = self.rule_locations(operation)?;
            let free = (0..size).rev().find(|location| !taken.contains(location));
            let full = || MachineError::Refused {
                device: device.name.clone(),
                action: action.clone(),
                reason: format!("its table of {size} rules is full"),
                errno: None,
            };
            rule = rule.at(free.ok_or_else(full)?);
        }
        let mut request = encode(&rule);
        self.call(operation, &mut request)?;
        Ok(u32_at(&request, layout::SPEC + layout::LOCATION))
    }

    /// Deletes the rule at a location.
    ///
    /// # Errors
    /// There is none, the caller lacks `CAP_NET_ADMIN`, or the device does not exist any more.
    pub fn delete_rule(&self, device: &DeviceId, location: u32) -> Result<(), MachineError> {
        let action = format!("delete flow rule {location} of {device}");
        let mut request = request(layout::DELETE);
        put_u32(&mut request, layout::SPEC + layout::LOCATION, location);
        self.call(Operation { device, action: &action }, &mut request)
    }

    fn driver_chooses(&self, operation: Operation<'_>) -> Result<bool, MachineError> {
        let mut count = request(layout::GET_RULE_COUNT);
        self.call(operation, &mut count)?;
        // 64 bits, of which the low half holds the flag.
        let data = u64::from_ne_bytes(count[layout::DATA..][..8].try_into().expect("eight bytes"));
        Ok(data & u64::from(layout::DRIVER_CHOOSES) != 0)
    }

    /// Returns the used locations and the size of the table.
    fn rule_locations(&self, operation: Operation<'_>) -> Result<(Vec<u32>, u32), MachineError> {
        let mut count = request(layout::GET_RULE_COUNT);
        self.call(operation, &mut count)?;
        let rules = u32_at(&count, layout::RULE_COUNT);
        let mut all = request(layout::GET_ALL_RULES);
        all.resize(layout::SIZE + 4 * rules as usize, 0);
        put_u32(&mut all, layout::RULE_COUNT, rules);
        self.call(operation, &mut all)?;
        let found = u32_at(&all, layout::RULE_COUNT).min(rules) as usize;
        let size = u64::from_ne_bytes(all[layout::DATA..][..8].try_into().expect("eight bytes"));
        let locations = u32s(&all[layout::LOCATIONS..][..4 * found]);
        Ok((locations, u32::try_from(size).unwrap_or(u32::MAX)))
    }
}

fn request(command: u32) -> Vec<u8> {
    let mut bytes = vec![0; layout::SIZE];
    put_u32(&mut bytes, 0, command);
    bytes
}

fn encode(rule: &FlowRule) -> Vec<u8> {
    let mut bytes = request(layout::INSERT);
    bytes[layout::SPEC..][..layout::SPEC_SIZE].copy_from_slice(&rule.spec);
    put_u32(&mut bytes, layout::CONTEXT, rule.context);
    bytes
}

fn decode(answer: &[u8]) -> FlowRule {
    let spec: [u8; layout::SPEC_SIZE] =
        answer[layout::SPEC..][..layout::SPEC_SIZE].try_into().expect("the size of a specification");
    let uses_context = u32_at(&spec, 0) & layout::USES_CONTEXT != 0;
    FlowRule { spec, context: if uses_context { u32_at(answer, layout::CONTEXT) } else { 0 } }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct ethtool_rx_flow_spec` and `struct ethtool_rxnfc` of `linux/ethtool.h`, to hold the offsets against.
    #[repr(C)]
    struct FlowSpec {
        flow_type: u32,
        matched: [u8; 52],
        matched_more: [u8; 20],
        mask: [u8; 52],
        mask_more: [u8; 20],
        ring_cookie: u64,
        location: u32,
    }

    #[repr(C)]
    struct Rxnfc {
        command: u32,
        flow_type: u32,
        data: u64,
        spec: FlowSpec,
        rule_count: u32,
        locations: [u32; 0],
    }

    #[test]
    fn the_offsets_are_those_of_the_kernels_structures() {
        use std::mem::offset_of;
        assert_eq!(size_of::<FlowSpec>(), layout::SPEC_SIZE);
        assert_eq!(offset_of!(FlowSpec, matched), layout::MATCH);
        assert_eq!(offset_of!(FlowSpec, mask), layout::MASK);
        assert_eq!(offset_of!(FlowSpec, mask_more) + 20, layout::MASK_END);
        assert_eq!(offset_of!(FlowSpec, ring_cookie), layout::COOKIE);
        assert_eq!(offset_of!(FlowSpec, location), layout::LOCATION);
        assert_eq!(size_of::<Rxnfc>(), layout::SIZE);
        assert_eq!(offset_of!(Rxnfc, data), layout::DATA);
        assert_eq!(offset_of!(Rxnfc, spec), layout::SPEC);
        assert_eq!(offset_of!(Rxnfc, rule_count), layout::RULE_COUNT);
        assert_eq!(offset_of!(Rxnfc, locations), layout::LOCATIONS);
    }

    #[test]
    fn a_rule_is_encoded_byte_by_byte() {
        let flow = PortFlow { protocol: FlowProtocol::Tcp4, port: 11211 };
        let bytes = encode(&FlowRule::to_port(flow, FlowTarget::Queue(3)));
        let mut expected = vec![0; 192];
        expected[..4].copy_from_slice(&0x32_u32.to_ne_bytes());
        expected[16..20].copy_from_slice(&1_u32.to_ne_bytes());
        // 4 for the flow type, two addresses, a source port; ports are in network order: 11211 = 0x2bcb.
        expected[16 + 4 + 10..][..2].copy_from_slice(&[0x2b, 0xcb]);
        expected[16 + 76 + 10..][..2].fill(0xff);
        expected[16 + 152..][..8].copy_from_slice(&3_u64.to_ne_bytes());
        expected[16 + 160..][..4].fill(0xff);
        assert_eq!(bytes, expected);

        let flow = PortFlow { protocol: FlowProtocol::Udp6, port: 53 };
        let bytes = encode(&FlowRule::to_port(flow, FlowTarget::Context(7)));
        assert_eq!(u32_at(&bytes, 16), 0x2000_0006);
        assert_eq!(bytes[16 + 4 + 34..][..2], [0, 53]);
        assert_eq!(u32_at(&bytes, 184), 7);
        assert_eq!(bytes[16 + 152..][..8], [0; 8]);
    }

    #[test]
    fn rules_are_read_back() {
        for protocol in FlowProtocol::ALL {
            for target in [FlowTarget::Queue(0), FlowTarget::Queue(63), FlowTarget::Context(2)] {
                let flow = PortFlow { protocol, port: 443 };
                let rule = FlowRule::to_port(flow, target);
                let read = decode(&encode(&rule));
                assert_eq!((read.port(), read.target()), (Some(flow), target), "{rule}");
                let text = serde_json::to_string(&rule).expect("written");
                assert_eq!(serde_json::from_str::<FlowRule>(&text).expect("read"), rule);
                assert!(rule.does_same(&rule.at(5)) && rule.at(5).location() == 5);
            }
        }
        assert!(serde_json::from_str::<FlowRule>(r#"{"spec":"00","context":0}"#).is_err());
    }

    #[test]
    fn a_rule_that_says_more_than_a_port_is_not_taken_for_one() {
        let flow = PortFlow { protocol: FlowProtocol::Tcp4, port: 443 };
        let plain = FlowRule::to_port(flow, FlowTarget::Queue(1));
        for place in [layout::MASK, layout::MASK + 8, layout::MASK_END - 1] {
            let mut narrow = plain.clone();
            narrow.spec[place] = 0xff;
            assert_eq!(narrow.port(), None);
            assert!(!narrow.does_same(&plain));
        }
        let mut part = plain.clone();
        part.spec[layout::MASK + 11] = 0xf0;
        assert_eq!(part.port(), None, "a range of ports");
        let mut extended = plain.clone();
        put_u32(&mut extended.spec, 0, 1 | 0x8000_0000);
        assert_eq!(extended.port(), None, "a VLAN as well");
        let mut dropped = plain;
        dropped.put_cookie(u64::MAX);
        assert_eq!(dropped.target(), FlowTarget::Drop);
        dropped.put_cookie(1 << 32);
        assert_eq!(dropped.target(), FlowTarget::Other, "a virtual function");
    }
}
