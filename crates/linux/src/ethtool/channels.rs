//! The number of queues of a device (ethtool netlink `channels-get`, `channels-set`).

use std::fmt;

use netlink_bindings::ethtool::{self, IterableChannels};
use serde::{Deserialize, Serialize};

use super::abi;
use crate::device::DeviceId;
use crate::machine::MachineError;
use crate::netlink::Netlink;

/// The number of channels of one kind. A driver without the kind has a maximum of 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// The current number.
    pub now: u32,
    /// The maximum.
    pub most: u32,
}

/// The channels of a device. A channel is an interrupt with the queues it serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channels {
    /// With receive queues only.
    pub rx: Count,
    /// With transmit queues only.
    pub tx: Count,
    /// For other things, such as link interrupts.
    pub other: Count,
    /// With a receive and a transmit queue.
    pub combined: Count,
}

/// The desired number of channels; `None` leaves a kind unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelCounts {
    /// With receive queues only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx: Option<u32>,
    /// With transmit queues only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx: Option<u32>,
    /// With a receive and a transmit queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub combined: Option<u32>,
}

/// Why a number of queues is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelsError {
    /// More than the maximum.
    #[error("it can have at most {most} receive queues, and {wanted} were requested")]
    TooMany {
        /// The requested number.
        wanted: u32,
        /// The maximum.
        most: u32,
    },
    /// Zero.
    #[error("a device needs at least one receive queue")]
    None,
}

impl Channels {
    /// Returns the current number of receive queues.
    #[must_use]
    pub const fn rx_queues(&self) -> u32 {
        self.rx.now + self.combined.now
    }

    /// Returns the maximum number of receive queues. A driver has either combined or separate channels.
    #[must_use]
    pub const fn most_rx_queues(&self) -> u32 {
        if self.combined.most > 0 { self.combined.most } else { self.rx.most }
    }

    /// Returns the change that gives the device `wanted` receive queues: combined channels if the driver has them, else
    /// receive channels with the same number of transmit channels, up to their maximum.
    ///
    /// # Errors
    /// `wanted` is zero or above the maximum.
    pub fn to_rx_queues(&self, wanted: u32) -> Result<ChannelCounts, ChannelsError> {
        let most = self.most_rx_queues();
        if wanted == 0 {
            return Err(ChannelsError::None);
        }
        if wanted > most {
            return Err(ChannelsError::TooMany { wanted, most });
        }
        if self.combined.most > 0 {
            // Receive channels beside combined ones would be additional receive queues.
            let rx = (self.rx.now > 0).then_some(0);
            return Ok(ChannelCounts { rx, tx: None, combined: Some(wanted) });
        }
        let tx = (self.tx.most > 0).then(|| wanted.min(self.tx.most));
        Ok(ChannelCounts { rx: Some(wanted), tx, combined: None })
    }

    /// Returns the change that restores these numbers.
    #[must_use]
    pub fn counts(&self) -> ChannelCounts {
        let known = |count: &Count| (count.most > 0).then_some(count.now);
        ChannelCounts { rx: known(&self.rx), tx: known(&self.tx), combined: known(&self.combined) }
    }
}

impl ChannelCounts {
    /// Returns the part that differs from the current numbers.
    #[must_use]
    pub fn beyond(&self, now: &Channels) -> Self {
        let differs = |wanted: Option<u32>, now: Count| wanted.filter(|wanted| *wanted != now.now);
        Self {
            rx: differs(self.rx, now.rx),
            tx: differs(self.tx, now.tx),
            combined: differs(self.combined, now.combined),
        }
    }

    /// Returns whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the kinds with their numbers.
    pub fn each(&self) -> impl Iterator<Item = (&'static str, u32)> {
        let all = [("rx", self.rx), ("tx", self.tx), ("combined", self.combined)];
        all.into_iter().filter_map(|(kind, count)| Some((kind, count?)))
    }
}

impl fmt::Display for ChannelCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each: Vec<String> = self.each().map(|(kind, count)| format!("{kind} {count}")).collect();
        f.write_str(&each.join(", "))
    }
}

/// Reads the channels of a device.
///
/// # Errors
/// The driver has a fixed number of them, or the device does not exist any more.
pub fn channels(netlink: &mut Netlink, device: &DeviceId) -> Result<Channels, MachineError> {
    let action = format!("read the channels of {device}");
    let mut request = ethtool::Request::new().op_channels_get_do();
    request.header_mut().cmd = abi::CHANNELS_GET;
    let header = request.encode().nested_header().push_dev_index(device.ifindex);
    header.push_dev_name_bytes(device.name.as_bytes()).end_nested();
    let found = netlink.dump(&action, &request, |attrs| Some(decode(&attrs)));
    let mut found = found.map_err(|error| MachineError::from_netlink(&device.name, &action, &error))?;
    let reason = "the kernel gave no answer".to_owned();
    found.pop().ok_or(MachineError::Refused { device: device.name.clone(), action, reason, errno: None })
}

fn decode(attrs: &IterableChannels<'_>) -> Channels {
    let count = |now: Result<u32, _>, most: Result<u32, _>| Count { now: now.unwrap_or(0), most: most.unwrap_or(0) };
    Channels {
        rx: count(attrs.get_rx_count(), attrs.get_rx_max()),
        tx: count(attrs.get_tx_count(), attrs.get_tx_max()),
        other: count(attrs.get_other_count(), attrs.get_other_max()),
        combined: count(attrs.get_combined_count(), attrs.get_combined_max()),
    }
}

/// Changes the number of channels of a device. Most drivers re-create all their queues for it.
///
/// # Errors
/// The number is above the driver's maximum, RSS or a rule still uses a queue that would be removed, the caller lacks
/// `CAP_NET_ADMIN`, or the device does not exist any more.
pub fn set_channels(netlink: &mut Netlink, device: &DeviceId, counts: &ChannelCounts) -> Result<(), MachineError> {
    let action = format!("set the channels of {device} to {counts}");
    let mut request = ethtool::Request::new().op_channels_set_do();
    request.header_mut().cmd = abi::CHANNELS_SET;
    let header = request.encode().nested_header().push_dev_index(device.ifindex);
    let mut attrs = header.push_dev_name_bytes(device.name.as_bytes()).end_nested();
    if let Some(rx) = counts.rx {
        attrs = attrs.push_rx_count(rx);
    }
    if let Some(tx) = counts.tx {
        attrs = attrs.push_tx_count(tx);
    }
    if let Some(combined) = counts.combined {
        attrs = attrs.push_combined_count(combined);
    }
    drop(attrs);
    netlink.change(&action, &request).map_err(|error| MachineError::from_netlink(&device.name, &action, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn count(now: u32, most: u32) -> Count {
        Count { now, most }
    }

    #[test]
    fn receive_queues_are_combined_or_separate_channels() {
        let combined = Channels { combined: count(4, 8), ..Channels::default() };
        assert_eq!((combined.rx_queues(), combined.most_rx_queues()), (4, 8));
        let wanted = combined.to_rx_queues(8).expect("possible");
        assert_eq!(wanted, ChannelCounts { combined: Some(8), ..ChannelCounts::default() });
        assert_eq!(combined.to_rx_queues(9), Err(ChannelsError::TooMany { wanted: 9, most: 8 }));
        assert_eq!(combined.to_rx_queues(0), Err(ChannelsError::None));

        let separate = Channels { rx: count(1, 8), tx: count(1, 4), ..Channels::default() };
        let wanted = separate.to_rx_queues(6).expect("possible");
        assert_eq!(wanted, ChannelCounts { rx: Some(6), tx: Some(4), combined: None });
        assert_eq!(wanted.to_string(), "rx 6, tx 4");

        let both = Channels { rx: count(2, 8), combined: count(4, 8), ..Channels::default() };
        let wanted = both.to_rx_queues(4).expect("possible");
        assert_eq!(wanted.beyond(&both), ChannelCounts { rx: Some(0), ..ChannelCounts::default() });
    }

    #[test]
    fn the_current_numbers_are_no_change() {
        let now = Channels { combined: count(4, 8), ..Channels::default() };
        assert!(now.to_rx_queues(4).expect("possible").beyond(&now).is_empty());
        assert!(now.counts().beyond(&now).is_empty());
    }
}
