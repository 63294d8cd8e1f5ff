//! Flow rules, and the device feature that enables them.

use std::collections::BTreeMap;

use abey_linux::device::DeviceId;
use abey_linux::ethtool::{FlowRule, FlowTarget};
use abey_linux::kernel::NTUPLE;
use abey_linux::machine::MachineError;
use serde::{Deserialize, Serialize};

use super::{Claim, Edit, Reversal, Setting, SettingChange, edit_of};
use crate::host::Host;
use crate::step::Step;

/// The feature without which a driver accepts no rules (`ntuple`). A device without the feature reads as off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ntuple {
    /// The device.
    pub device: DeviceId,
}

impl Setting for Ntuple {
    type Value = bool;

    fn device(&self) -> Option<&str> {
        Some(&self.device.name)
    }

    fn read(&self, host: &mut dyn Host) -> Result<bool, MachineError> {
        Ok(host.ntuple(&self.device)?.unwrap_or(false))
    }

    fn write(&self, host: &mut dyn Host, on: &bool) -> Result<(), MachineError> {
        host.set_ntuple(&self.device, *on)
    }

    fn describe(&self, before: &bool, after: &bool) -> Vec<SettingChange> {
        let word = |on: &bool| if *on { "on" } else { "off" }.to_owned();
        vec![SettingChange::of_part(&self.device.name, "flow rules", NTUPLE, word(before), word(after))]
    }

    fn claim(&self) -> Claim<'_> {
        Claim::Nothing
    }
}

/// The serialised form of an assignment of [`Ntuple`]: the value after it, from which the value before follows.
pub(crate) mod ntuple_record {
    use abey_linux::device::DeviceId;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Ntuple;
    use crate::setting::Assignment;

    #[derive(Serialize, Deserialize)]
    struct Record {
        device: DeviceId,
        on: bool,
    }

    pub(crate) fn serialize<S: Serializer>(ntuple: &Assignment<Ntuple>, to: S) -> Result<S::Ok, S::Error> {
        Record { device: ntuple.setting.device.clone(), on: ntuple.after }.serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Assignment<Ntuple>, D::Error> {
        let Record { device, on } = Record::deserialize(from)?;
        Ok(Assignment { setting: Ntuple { device }, before: !on, after: on })
    }
}

/// A new rule that steers a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleInserted {
    /// The device.
    pub device: DeviceId,
    /// The rule.
    pub rule: FlowRule,
    /// The locations that were taken before: the driver may choose the new one's location.
    pub others: Vec<u32>,
}

impl RuleInserted {
    /// Whether `rule` may be the one that was inserted.
    pub(crate) fn matches(&self, rule: &FlowRule) -> bool {
        rule.does_same(&self.rule) && !self.others.contains(&rule.location())
    }
}

impl Edit for RuleInserted {
    fn device(&self) -> Option<&str> {
        Some(&self.device.name)
    }

    fn claim(&self) -> Claim<'_> {
        claim(&self.rule)
    }

    fn describe(&self) -> Vec<SettingChange> {
        let (none, target) = ("none".to_owned(), self.rule.target().to_string());
        vec![SettingChange::of_part(&self.device.name, "flow rule", &self.rule.flow_name(), none, target)]
    }

    fn write(&self, host: &mut dyn Host) -> Result<Option<u32>, MachineError> {
        host.insert_rule(&self.device, &self.rule).map(|_| None)
    }

    fn reversal(&self, host: &mut dyn Host) -> Result<Reversal, MachineError> {
        let inserted = host.rules(&self.device)?.into_iter().filter(|rule| self.matches(rule));
        let delete = |rule| RuleDeleted { device: self.device.clone(), rule }.into();
        Ok(Reversal::of(inserted.map(delete).collect()))
    }

    fn to_step(&self) -> Step {
        self.clone().into()
    }

    fn undoes(&self, earlier: &Step) -> bool {
        edit_of::<RuleDeleted>(earlier).is_some_and(|deleted| self.rule.does_same(&deleted.rule))
    }
}

/// A deleted rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleDeleted {
    /// The device.
    pub device: DeviceId,
    /// The rule before it was deleted.
    pub rule: FlowRule,
}

impl RuleDeleted {
    /// Returns the step with the number of the RSS context that replaces the one the rule pointed at, if it was recreated.
    pub(crate) fn with_contexts(&self, recreated: &BTreeMap<(DeviceId, u32), u32>) -> Self {
        let rule = match self.rule.target() {
            FlowTarget::Context(id) => recreated.get(&(self.device.clone(), id)),
            _ => None,
        };
        let rule = rule.map_or_else(|| self.rule.clone(), |id| self.rule.clone().with_context(*id));
        Self { device: self.device.clone(), rule }
    }
}

impl Edit for RuleDeleted {
    fn device(&self) -> Option<&str> {
        Some(&self.device.name)
    }

    fn claim(&self) -> Claim<'_> {
        claim(&self.rule)
    }

    fn describe(&self) -> Vec<SettingChange> {
        let (target, none) = (self.rule.target().to_string(), "none".to_owned());
        vec![SettingChange::of_part(&self.device.name, "flow rule", &self.rule.flow_name(), target, none)]
    }

    fn write(&self, host: &mut dyn Host) -> Result<Option<u32>, MachineError> {
        host.delete_rule(&self.device, self.rule.location()).map(|()| None)
    }

    fn reversal(&self, host: &mut dyn Host) -> Result<Reversal, MachineError> {
        let present = host.rules(&self.device)?;
        if let Some(found) = present.iter().find(|rule| rule.location() == self.rule.location()) {
            let changed_since = !found.does_same(&self.rule);
            return Ok(Reversal { changed_since, ..Reversal::default() });
        }
        let others = present.iter().map(FlowRule::location).collect();
        let insert = RuleInserted { device: self.device.clone(), rule: self.rule.clone(), others };
        Ok(Reversal::of(vec![insert.into()]))
    }

    fn to_step(&self) -> Step {
        self.clone().into()
    }

    fn undoes(&self, earlier: &Step) -> bool {
        edit_of::<RuleInserted>(earlier).is_some_and(|inserted| inserted.matches(&self.rule))
    }
}

fn claim(rule: &FlowRule) -> Claim<'static> {
    rule.port().map_or(Claim::Nothing, Claim::Flow)
}
