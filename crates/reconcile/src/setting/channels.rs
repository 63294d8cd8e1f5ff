//! The numbers of queues of a device.

use abey_linux::device::DeviceId;
use abey_linux::ethtool::ChannelCounts;
use abey_linux::machine::MachineError;
use serde::{Deserialize, Serialize};

use super::{Claim, Edit, Reversal, SavedQueues, SettingChange, edit_of, not_kept};
use crate::host::Host;
use crate::step::Step;

/// A change of the numbers of queues. Most drivers recreate all queues for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelsEdit {
    /// The device.
    pub device: DeviceId,
    /// The numbers before, of every kind that changes.
    pub before: ChannelCounts,
    /// The numbers after.
    pub after: ChannelCounts,
    /// The settings of the queues before, which recreating them may lose.
    #[serde(rename = "held")]
    pub saved: SavedQueues,
}

/// Returns the step to `counts`; none if the device has these already.
pub(crate) fn steps_to(
    host: &mut dyn Host,
    device: &DeviceId,
    counts: &ChannelCounts,
) -> Result<Vec<Step>, MachineError> {
    let now = host.channels(device)?;
    let after = counts.beyond(&now);
    if after.is_empty() {
        return Ok(Vec::new());
    }
    let same_kinds = |all: ChannelCounts| ChannelCounts {
        rx: after.rx.and(all.rx),
        tx: after.tx.and(all.tx),
        combined: after.combined.and(all.combined),
    };
    // A kind that the driver does not have has no number to go back to; the driver refuses the change itself.
    let before = same_kinds(now.counts());
    let saved = SavedQueues::read(host, device, now.tx.now + now.combined.now);
    Ok(vec![ChannelsEdit { device: device.clone(), before, after, saved }.into()])
}

impl Edit for ChannelsEdit {
    fn device(&self) -> Option<&str> {
        Some(&self.device.name)
    }

    fn claim(&self) -> Claim<'_> {
        Claim::Queues
    }

    fn describe(&self) -> Vec<SettingChange> {
        let before = |kind| self.before.each().find(|(known, _)| *known == kind).map_or(0, |(_, count)| count);
        let change = |(kind, after): (&'static str, u32)| {
            let (before, after) = (before(kind).to_string(), after.to_string());
            SettingChange::of_part(&self.device.name, "channels", kind, before, after)
        };
        self.after.each().map(change).collect()
    }

    fn write(&self, host: &mut dyn Host) -> Result<Option<u32>, MachineError> {
        host.set_channels(&self.device, &self.after).map(|()| None)
    }

    fn verify(&self, host: &mut dyn Host) -> Result<(), MachineError> {
        if self.after.beyond(&host.channels(&self.device)?).is_empty() {
            return Ok(());
        }
        let action = format!("set the channels of {} to {}", self.device, self.after);
        Err(not_kept(&self.device.name, &action, "other numbers"))
    }

    fn reversal(&self, host: &mut dyn Host) -> Result<Reversal, MachineError> {
        let now = host.channels(&self.device)?;
        let changed_since = !self.before.beyond(&now).is_empty() && !self.after.beyond(&now).is_empty();
        if changed_since {
            return Ok(Reversal { changed_since, ..Reversal::default() });
        }
        let steps = steps_to(host, &self.device, &self.before)?;
        Ok(Reversal { steps, changed_since, saved: Some(self.saved.clone()) })
    }

    fn to_step(&self) -> Step {
        self.clone().into()
    }

    fn joined_to(&self, first: &Step) -> Option<Step> {
        let first = edit_of::<Self>(first)?;
        let joined = |kept: ChannelCounts, added: ChannelCounts| ChannelCounts {
            rx: kept.rx.or(added.rx),
            tx: kept.tx.or(added.tx),
            combined: kept.combined.or(added.combined),
        };
        let before = joined(first.before, self.before);
        let after = joined(self.after, first.after);
        Some(Self { before, after, ..first.clone() }.into())
    }

    fn is_nothing(&self) -> bool {
        self.before == self.after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_of_different_kinds_are_both_kept() {
        let device = DeviceId { name: "eth0".into(), ifindex: 2 };
        let edit =
            |before, after| ChannelsEdit { device: device.clone(), before, after, saved: SavedQueues::default() };
        let rx = |count| ChannelCounts { rx: Some(count), ..ChannelCounts::default() };
        let tx = |count| ChannelCounts { tx: Some(count), ..ChannelCounts::default() };
        let both = |rx, tx| ChannelCounts { rx: Some(rx), tx: Some(tx), combined: None };

        let joined = edit(tx(4), tx(2)).joined_to(&edit(rx(4), rx(1)).into());
        assert_eq!(joined, Some(edit(both(4, 4), both(1, 2)).into()));
        let again = edit(rx(1), rx(3)).joined_to(&joined.expect("a step"));
        assert_eq!(again, Some(edit(both(4, 4), both(3, 2)).into()));
    }
}
