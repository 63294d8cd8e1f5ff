//! RSS indirection tables, and additional RSS contexts.

use abey_linux::device::DeviceId;
use abey_linux::ethtool::RssContext;
use abey_linux::ethtool::rss::{DEFAULT_CONTEXT, queue_list};
use abey_linux::machine::MachineError;
use serde::{Deserialize, Serialize};

use super::{Claim, Edit, Reversal, Setting, SettingChange, edit_of};
use crate::host::Host;
use crate::step::Step;

/// The indirection table of an RSS context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RssTable {
    /// The device.
    pub device: DeviceId,
    /// The context; 0 is the default one.
    pub context: u32,
}

impl Setting for RssTable {
    type Value = Vec<u32>;

    fn device(&self) -> Option<&str> {
        Some(&self.device.name)
    }

    fn read(&self, host: &mut dyn Host) -> Result<Vec<u32>, MachineError> {
        Ok(host.rss(&self.device, self.context)?.table)
    }

    fn write(&self, host: &mut dyn Host, table: &Vec<u32>) -> Result<(), MachineError> {
        host.set_rss_table(&self.device, self.context, table)
    }

    fn describe(&self, before: &Vec<u32>, after: &Vec<u32>) -> Vec<SettingChange> {
        let part = match self.context {
            DEFAULT_CONTEXT => "RSS".to_owned(),
            context => context_name(context),
        };
        vec![SettingChange::of_part(&self.device.name, &part, "queues", queue_list(before), queue_list(after))]
    }

    fn claim(&self) -> Claim<'_> {
        Claim::RssTable(self.context)
    }

    fn verified_action(&self, _: &Vec<u32>) -> Option<String> {
        Some(format!("change the RSS table of {}", self.device))
    }

    fn format(&self, table: &Vec<u32>) -> String {
        format!("queues {}", queue_list(table))
    }
}

/// A new RSS context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextCreated {
    /// The device.
    pub device: DeviceId,
    /// Its indirection table.
    pub table: Vec<u32>,
    /// The numbers of the contexts that existed before: the kernel chooses the new one's number.
    pub others: Vec<u32>,
    /// The hash key to create it with; empty for the driver's default. Undoing the step does not need it.
    #[serde(skip)]
    pub key: Vec<u8>,
}

impl ContextCreated {
    /// Whether `context` may be the one that was created.
    pub(crate) fn matches(&self, context: &RssContext) -> bool {
        context.table == self.table && !self.others.contains(&context.id)
    }
}

impl Edit for ContextCreated {
    fn device(&self) -> Option<&str> {
        Some(&self.device.name)
    }

    fn claim(&self) -> Claim<'_> {
        Claim::Nothing
    }

    fn describe(&self) -> Vec<SettingChange> {
        let (none, queues) = ("none".to_owned(), queue_list(&self.table));
        vec![SettingChange::of_part(&self.device.name, "new RSS context", "queues", none, queues)]
    }

    fn write(&self, host: &mut dyn Host) -> Result<Option<u32>, MachineError> {
        host.create_rss_context(&self.device, &self.table, &self.key).map(Some)
    }

    fn reversal(&self, host: &mut dyn Host) -> Result<Reversal, MachineError> {
        let created = host.rss_contexts(&self.device)?.into_iter().filter(|context| self.matches(context));
        let delete = |context| ContextDeleted { device: self.device.clone(), context }.into();
        Ok(Reversal::of(created.map(delete).collect()))
    }

    fn to_step(&self) -> Step {
        self.clone().into()
    }
}

/// A deleted RSS context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextDeleted {
    /// The device.
    pub device: DeviceId,
    /// The context before it was deleted.
    pub context: RssContext,
}

impl Edit for ContextDeleted {
    fn device(&self) -> Option<&str> {
        Some(&self.device.name)
    }

    fn claim(&self) -> Claim<'_> {
        Claim::Nothing
    }

    fn describe(&self) -> Vec<SettingChange> {
        let (queues, none) = (queue_list(&self.context.table), "none".to_owned());
        vec![SettingChange::of_part(&self.device.name, &context_name(self.context.id), "queues", queues, none)]
    }

    fn write(&self, host: &mut dyn Host) -> Result<Option<u32>, MachineError> {
        host.delete_rss_context(&self.device, self.context.id).map(|()| None)
    }

    fn reversal(&self, host: &mut dyn Host) -> Result<Reversal, MachineError> {
        let RssContext { id, table, key, .. } = &self.context;
        let present = host.rss_contexts(&self.device)?;
        if present.iter().any(|context| context.id == *id && context.table == *table) {
            return Ok(Reversal::default());
        }
        let others = present.iter().map(|context| context.id).collect();
        let (device, table, key) = (self.device.clone(), table.clone(), key.clone());
        Ok(Reversal::of(vec![ContextCreated { device, table, others, key }.into()]))
    }

    fn to_step(&self) -> Step {
        self.clone().into()
    }

    fn undoes(&self, earlier: &Step) -> bool {
        edit_of::<ContextCreated>(earlier).is_some_and(|created| created.matches(&self.context))
    }
}

fn context_name(id: u32) -> String {
    format!("RSS context {id}")
}
