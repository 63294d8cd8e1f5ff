//! Offload features of a device, over ethtool netlink (Linux `Documentation/networking/ethtool-netlink.rst`).

use std::collections::BTreeMap;

use netlink_bindings::ethtool;

use crate::ethtool::abi;
use crate::netlink::{Netlink, NetlinkError};

/// Generic receive offload. A veth device has a NAPI instance only with it.
pub const RX_GRO: &str = "rx-gro";
/// Transmit checksums left to the device: packets over a veth pair then have none.
pub const TX_CHECKSUMS: &str = "tx-checksum-ip-generic";
/// TCP segmentation offload. Unsegmented packets of a veth peer bypass the receiver's NAPI instance.
pub const TX_TCP_SEGMENTATION: &str = "tx-tcp-segmentation";
/// The features that `ethtool -K DEV tso off` turns off.
pub const TX_TCP_SEGMENTATION_FAMILY: [&str; 4] =
    [TX_TCP_SEGMENTATION, "tx-tcp-ecn-segmentation", "tx-tcp-mangleid-segmentation", "tx-tcp6-segmentation"];

/// Reads the features of the device, by their ethtool names, and whether each is active.
///
/// # Errors
/// There is no such device or no ethtool netlink.
pub fn features(netlink: &mut Netlink, device: &str) -> Result<BTreeMap<String, bool>, NetlinkError> {
    let mut request = ethtool::Request::new().op_features_get_do();
    request.header_mut().cmd = abi::FEATURES_GET;
    request.encode().nested_header().push_dev_name_bytes(device.as_bytes()).end_nested();
    let action = format!("read the offload features of {device}");
    let mut found = netlink.dump(&action, &request, |attrs| {
        let names = |set: ethtool::IterableBitset<'_>| -> Vec<String> {
            let bits = set.get_bits().into_iter().flatten();
            bits.filter_map(|bit| match bit {
                Ok(ethtool::BitsetBits::Bit(bit)) => Some(bit.get_name().ok()?.to_string_lossy().into_owned()),
                _ => None,
            })
            .collect()
        };
        let mut features = BTreeMap::new();
        for name in attrs.get_hw().map(names).unwrap_or_default() {
            features.insert(name, false);
        }
        for name in attrs.get_active().map(names).unwrap_or_default() {
            features.insert(name, true);
        }
        Some(features)
    })?;
    Ok(found.pop().unwrap_or_default())
}

/// Turns features on or off.
///
/// # Errors
/// There is no such device or feature, the caller lacks `CAP_NET_ADMIN`, or the driver does not change the feature.
pub fn set_features(netlink: &mut Netlink, device: &str, wanted: &[(&str, bool)]) -> Result<(), NetlinkError> {
    let mut request = ethtool::Request::new().op_features_set_do();
    request.header_mut().cmd = abi::FEATURES_SET;
    let mut bits = request
        .encode()
        .nested_header()
        .push_dev_name_bytes(device.as_bytes())
        .end_nested()
        .nested_wanted()
        .nested_bits();
    for (name, on) in wanted {
        let bit = bits.nested_bit().push_name_bytes(name.as_bytes());
        bits = if *on { bit.push_value(()).end_nested() } else { bit.end_nested() };
    }
    bits.end_nested().end_nested();
    // The kernel may answer with the difference between wanted and active before it acknowledges.
    netlink.dump(&format!("change the offload features of {device}"), &request, |_| None::<()>)?;
    let active = features(netlink, device)?;
    match wanted.iter().find(|(name, on)| active.get(*name).is_some_and(|active| active != on)) {
        None => Ok(()),
        Some((name, on)) => Err(NetlinkError::Refused {
            action: format!("turn {name} {} on {device}", if *on { "on" } else { "off" }),
            reason: "its driver does not change it".to_owned(),
            errno: None,
        }),
    }
}
