//! The capabilities of this kernel, probed rather than derived from its version, because distributions backport features.

use netlink_bindings::nlctrl;
use netlink_bindings::utils::IterableChunks;

use crate::netlink::{Netlink, NetlinkError};

/// The settings that this kernel has per NAPI instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NapiCapabilities {
    /// NAPI instances can be listed (Linux 6.8).
    pub list: bool,
    /// defer-hard-irqs and gro-flush-timeout can be set per instance (Linux 6.13).
    pub deferral: bool,
    /// irq-suspend-timeout can be set (Linux 6.13).
    pub suspend: bool,
    /// Threaded polling can be set per instance (Linux 6.17).
    pub threaded: bool,
    /// Threaded polling without sleep can be set (Linux 6.19).
    pub threaded_busy: bool,
}

/// Numbers of the netdev family's uapi (`linux/netdev.h`).
mod netdev_abi {
    pub(super) const CMD_NAPI_SET: u32 = 14;
    pub(super) const NAPI_DEFER_HARD_IRQS: u16 = 5;
    pub(super) const NAPI_GRO_FLUSH_TIMEOUT: u16 = 6;
    pub(super) const NAPI_IRQ_SUSPEND_TIMEOUT: u16 = 7;
    pub(super) const NAPI_THREADED: u16 = 8;
    pub(super) const THREADED_BUSY_POLL: u64 = 2;
}

/// Numbers of the generic netlink controller's policy dump (`linux/genetlink.h`, `linux/netlink.h`).
mod policy_abi {
    pub(super) const ATTR_POLICY: u16 = 8;
    pub(super) const TYPE_MAX_VALUE_U: u16 = 5;
    pub(super) const TYPE_MASK: u16 = 12;
}

/// Reads which attributes and values the kernel's `napi-set` operation accepts.
///
/// The generic netlink controller publishes the validation policy of each operation, so no setting has to be tried out.
///
/// # Errors
/// The kernel refuses for another reason than the lack of the interface.
pub fn napi_capabilities(netlink: &mut Netlink) -> Result<NapiCapabilities, NetlinkError> {
    let list = match crate::napi::napis(netlink, None) {
        Ok(_) => true,
        Err(NetlinkError::Missing { .. }) => return Ok(NapiCapabilities::default()),
        // Listing exists but napi-get does not: a kernel between netdev-genl (6.3) and napi-get (6.8).
        Err(NetlinkError::Refused { errno: Some(libc::EOPNOTSUPP), .. }) => return Ok(NapiCapabilities::default()),
        Err(error) => return Err(error),
    };
    let mut request = nlctrl::Request::new().op_getpolicy_dump();
    request.encode().push_family_name_bytes(b"netdev").push_op(netdev_abi::CMD_NAPI_SET);
    let accepted = netlink.dump("read the policy of napi-set", &request, |attrs| Some(attributes(attrs.get_buf())));
    let accepted: Vec<Attribute> = match accepted {
        Ok(lists) => lists.into_iter().flatten().collect(),
        // The operation does not exist: nothing can be set per instance.
        Err(NetlinkError::Refused { errno: Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODATA), .. }) => Vec::new(),
        Err(error) => return Err(error),
    };
    let takes = |number| accepted.iter().find(|attribute| attribute.number == number);
    Ok(NapiCapabilities {
        list,
        deferral: takes(netdev_abi::NAPI_DEFER_HARD_IRQS).is_some()
            && takes(netdev_abi::NAPI_GRO_FLUSH_TIMEOUT).is_some(),
        suspend: takes(netdev_abi::NAPI_IRQ_SUSPEND_TIMEOUT).is_some(),
        threaded: takes(netdev_abi::NAPI_THREADED).is_some(),
        threaded_busy: takes(netdev_abi::NAPI_THREADED)
            .is_some_and(|attribute| attribute.accepts(netdev_abi::THREADED_BUSY_POLL)),
    })
}

/// One attribute that an operation accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Attribute {
    number: u16,
    largest: Option<u64>,
    mask: Option<u64>,
}

impl Attribute {
    fn accepts(&self, value: u64) -> bool {
        self.largest.is_some_and(|largest| value <= largest) || self.mask.is_some_and(|mask| value & !mask == 0)
    }
}

/// Reads one message of a policy dump: policy { index { attribute { property } } }.
fn attributes(message: &[u8]) -> Vec<Attribute> {
    let mut found = Vec::new();
    let policies = IterableChunks::new(message).filter(|(header, _)| header.r#type == policy_abi::ATTR_POLICY);
    for (_, policy) in policies {
        for (_, of_index) in IterableChunks::new(policy) {
            for (header, properties) in IterableChunks::new(of_index) {
                let property = |number| {
                    let (_, value) = IterableChunks::new(properties).find(|(header, _)| header.r#type == number)?;
                    value.try_into().ok().map(u64::from_ne_bytes)
                };
                let largest = property(policy_abi::TYPE_MAX_VALUE_U);
                found.push(Attribute { number: header.r#type, largest, mask: property(policy_abi::TYPE_MASK) });
            }
        }
    }
    found
}
