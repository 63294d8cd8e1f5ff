//! Kinds of settings. One type per kind implements how the setting is read, written, described and serialised; the
//! [journal](crate::Transaction), the undo and the [applied state](crate::AppliedState) use nothing else.
//!
//! A setting with a single value implements [`Setting`]; an [`Assignment`] of it, from the value before to the value
//! after, is one step. What has no single value (NAPI settings of which some change, numbers of queues, RSS contexts, flow
//! rules, the threads of a process) implements `Edit` itself.

pub(crate) mod channels;
mod cpus;
mod file;
mod flow;
mod napi;
mod process;
mod rss;
mod saved;
mod thread;

use std::any::Any;
use std::fmt::{self, Debug};
use std::path::Path;

use abey_linux::ethtool::PortFlow;
use abey_linux::machine::{Capability, MachineError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use self::channels::ChannelsEdit;
pub use self::cpus::{IrqAffinity, Xps};
pub use self::file::{DeviceFile, DropIn};
pub(crate) use self::flow::ntuple_record;
pub use self::flow::{Ntuple, RuleDeleted, RuleInserted};
pub use self::napi::NapiEdit;
pub use self::process::ProcessEdit;
pub use self::rss::{ContextCreated, ContextDeleted, RssTable};
pub use self::saved::{SavedQueue, SavedQueues};
pub use self::thread::NapiThread;
use crate::host::Host;
use crate::step::Step;

/// A setting with a value that can be read and written.
///
/// The fields of the type identify the setting: a device and a queue, for example.
pub trait Setting: Clone + Debug + PartialEq + Eq + Serialize + DeserializeOwned + 'static {
    /// The type of the value.
    type Value: Clone + Debug + PartialEq + Eq + Serialize + DeserializeOwned + 'static;

    /// Returns the device that the setting belongs to, if any.
    fn device(&self) -> Option<&str>;

    /// Reads the value.
    ///
    /// # Errors
    /// When it cannot be read; [`MachineError::Gone`] when the device, queue, interrupt or thread no longer exists.
    fn read(&self, host: &mut dyn Host) -> Result<Self::Value, MachineError>;

    /// Writes the value.
    ///
    /// # Errors
    /// When the kernel or the driver refuses it.
    fn write(&self, host: &mut dyn Host, value: &Self::Value) -> Result<(), MachineError>;

    /// Describes a change of the value, one entry for each part that a user sets separately.
    fn describe(&self, before: &Self::Value, after: &Self::Value) -> Vec<SettingChange>;

    /// Returns what no other process may change while this one holds the setting.
    fn claim(&self) -> Claim<'_>;

    /// Returns the name of the setting in a message about another process that holds it.
    fn subject(&self) -> String {
        self.device().unwrap_or_default().to_owned()
    }

    /// Returns the words for writing `value`, if the value is to be read back: a driver may accept one value and keep
    /// another.
    fn verified_action(&self, value: &Self::Value) -> Option<String> {
        let _ = value;
        None
    }

    /// Formats a value that was read back.
    fn format(&self, value: &Self::Value) -> String {
        format!("{value:?}")
    }

    /// Returns the value to write to undo a change from `before` to `after` when the value is `now`: `before` if `now`
    /// still equals `after`. A value that was changed by another program since stays.
    ///
    /// # Errors
    /// [`MachineError::Gone`] when `now` belongs to a successor of what was changed.
    fn reverted(
        &self,
        now: &Self::Value,
        before: &Self::Value,
        after: &Self::Value,
    ) -> Result<Self::Value, MachineError> {
        Ok(if now == after { before.clone() } else { now.clone() })
    }

    /// Whether `later` changes what `first` changed, so that both can be joined to one assignment. The applied state
    /// compares the device and the queue itself.
    fn continues(first: &Assignment<Self>, later: &Assignment<Self>) -> bool {
        first.setting == later.setting
    }

    /// Splits an assignment into parts that can be undone separately.
    fn parts(assignment: &Assignment<Self>) -> Vec<Assignment<Self>> {
        vec![assignment.clone()]
    }

    /// Returns the value that the setting's queue had according to `saved`, before a change of the channels recreated the
    /// queue.
    fn saved_value(&self, saved: &SavedQueue) -> Option<Self::Value> {
        let _ = saved;
        None
    }

    /// Returns the NAPI instance that the setting belongs to, by which its queue is found.
    fn instance(&self) -> Option<Instance> {
        None
    }

    /// Returns the capability that undoing this assignment takes; `root` is whether the effective user is root.
    fn capability(assignment: &Assignment<Self>, root: bool) -> Option<Capability> {
        let _ = (assignment, root);
        Some(Capability::NetAdmin)
    }
}

/// A setting that changes from one value to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Assignment<S: Setting> {
    /// The setting.
    #[serde(flatten)]
    pub setting: S,
    /// The value before the change.
    pub before: S::Value,
    /// The value after the change.
    pub after: S::Value,
}

/// What a process holds while it may still have to undo a step. Claims of the same thing conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim<'a> {
    /// All queues of the device, with everything that is set on them.
    Queues,
    /// The settings of every NAPI instance of the device.
    EveryNapi,
    /// The settings of a NAPI instance.
    Napi(u32),
    /// The thread of a NAPI instance.
    NapiThread(u32),
    /// An interrupt.
    Irq(u32),
    /// The threads of a process.
    Process(u32),
    /// A drop-in of a unit.
    DropIn(&'a Path),
    /// The indirection table of an RSS context of the device.
    RssTable(u32),
    /// A transmit queue of the device.
    TransmitQueue(u32),
    /// The rules of a flow on the device.
    Flow(PortFlow),
    /// Nothing but the existence of the device's queues.
    Nothing,
}

impl Claim<'_> {
    /// Whether it is a claim of something that belongs to the machine rather than to a network namespace.
    pub(crate) fn is_machine_wide(&self) -> bool {
        matches!(self, Self::Irq(_) | Self::NapiThread(_) | Self::Process(_) | Self::DropIn(_))
    }

    /// Whether two claims, of the same device or not, conflict.
    pub(crate) fn conflicts(self, other: Claim<'_>, same_device: bool) -> bool {
        match (self, other) {
            // New queues replace the old ones with everything that was set on them.
            (Claim::Queues, _) | (_, Claim::Queues) => same_device,
            (Claim::EveryNapi, Claim::EveryNapi | Claim::Napi(_)) | (Claim::Napi(_), Claim::EveryNapi) => same_device,
            (Claim::Nothing, _) => false,
            (Claim::RssTable(_) | Claim::TransmitQueue(_) | Claim::Flow(_), _) => same_device && self == other,
            _ => self == other,
        }
    }
}

/// How the NAPI instance of a step is identified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instance {
    /// By its ID.
    Napi(u32),
    /// By its interrupt.
    Irq(u32),
}

/// The steps that lead back from a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reversal {
    /// The steps to take; none where the value is the one before already.
    pub steps: Vec<Step>,
    /// Whether something stays because another program has changed it since.
    pub changed_since: bool,
    /// What to set on the queues after the steps recreated them.
    pub(crate) saved: Option<SavedQueues>,
}

impl Reversal {
    pub(crate) fn of(steps: Vec<Step>) -> Self {
        Self { steps, ..Self::default() }
    }
}

/// A change of one kind of setting: what a step does.
pub(crate) trait Edit: Any {
    /// Returns the device that is changed, if any.
    fn device(&self) -> Option<&str>;

    /// Returns what no other process may change meanwhile.
    fn claim(&self) -> Claim<'_>;

    /// Returns the name of the setting in a message about another process that holds it.
    fn subject(&self) -> String {
        self.device().unwrap_or_default().to_owned()
    }

    /// Describes the change.
    fn describe(&self) -> Vec<SettingChange>;

    /// Makes the change. Returns the number of a new RSS context.
    fn write(&self, host: &mut dyn Host) -> Result<Option<u32>, MachineError>;

    /// Fails if the driver accepted the change and reports something else.
    fn verify(&self, host: &mut dyn Host) -> Result<(), MachineError> {
        let _ = host;
        Ok(())
    }

    /// Returns the steps that lead back, without those for what another program has changed since.
    fn reversal(&self, host: &mut dyn Host) -> Result<Reversal, MachineError>;

    /// Returns the step with this edit.
    fn to_step(&self) -> Step;

    /// Joins `first` and this later edit of the same setting: from the value before `first` to the value after this one.
    fn joined_to(&self, first: &Step) -> Option<Step> {
        let _ = first;
        None
    }

    /// Whether the edit ends with the values it began with.
    fn is_nothing(&self) -> bool {
        false
    }

    /// Whether it removes what the earlier step created, or creates what that one removed.
    fn undoes(&self, earlier: &Step) -> bool {
        let _ = earlier;
        false
    }

    /// Splits the edit into steps that can be undone separately.
    fn parts(&self) -> Vec<Step> {
        vec![self.to_step()]
    }

    /// Returns the step from the value that its queue had before a change of the channels recreated the queue.
    fn since(&self, saved: &SavedQueue) -> Step {
        let _ = saved;
        self.to_step()
    }

    /// Returns the NAPI instance that the step belongs to.
    fn instance(&self) -> Option<Instance> {
        None
    }

    /// Returns the capability that undoing the step takes; `root` is whether the effective user is root.
    fn capability(&self, root: bool) -> Option<Capability> {
        let _ = root;
        Some(Capability::NetAdmin)
    }
}

/// Returns the edit of a step if it is of type `E`.
pub(crate) fn edit_of<E: Edit>(step: &Step) -> Option<&E> {
    (step.edit() as &dyn Any).downcast_ref()
}

impl<S: Setting> Edit for Assignment<S>
where
    Step: From<Self>,
{
    fn device(&self) -> Option<&str> {
        self.setting.device()
    }

    fn claim(&self) -> Claim<'_> {
        self.setting.claim()
    }

    fn subject(&self) -> String {
        self.setting.subject()
    }

    fn describe(&self) -> Vec<SettingChange> {
        self.setting.describe(&self.before, &self.after)
    }

    fn write(&self, host: &mut dyn Host) -> Result<Option<u32>, MachineError> {
        self.setting.write(host, &self.after).map(|()| None)
    }

    fn verify(&self, host: &mut dyn Host) -> Result<(), MachineError> {
        let Some(action) = self.setting.verified_action(&self.after) else { return Ok(()) };
        let now = self.setting.read(host)?;
        if now == self.after {
            return Ok(());
        }
        Err(not_kept(self.device().unwrap_or_default(), &action, &self.setting.format(&now)))
    }

    fn reversal(&self, host: &mut dyn Host) -> Result<Reversal, MachineError> {
        let now = self.setting.read(host)?;
        let back = self.setting.reverted(&now, &self.before, &self.after)?;
        let changed_since = back != self.before;
        let step = Self { setting: self.setting.clone(), before: now, after: back };
        let steps = if step.is_nothing() { Vec::new() } else { vec![step.into()] };
        Ok(Reversal { steps, changed_since, saved: None })
    }

    fn to_step(&self) -> Step {
        self.clone().into()
    }

    fn joined_to(&self, first: &Step) -> Option<Step> {
        let first = edit_of::<Self>(first).filter(|first| S::continues(first, self))?;
        Some(Self { before: first.before.clone(), ..self.clone() }.into())
    }

    fn is_nothing(&self) -> bool {
        self.before == self.after
    }

    fn parts(&self) -> Vec<Step> {
        S::parts(self).into_iter().map(Step::from).collect()
    }

    fn since(&self, saved: &SavedQueue) -> Step {
        let before = self.setting.saved_value(saved).unwrap_or_else(|| self.before.clone());
        Self { before, ..self.clone() }.into()
    }

    fn instance(&self) -> Option<Instance> {
        self.setting.instance()
    }

    fn capability(&self, root: bool) -> Option<Capability> {
        S::capability(self, root)
    }
}

/// The error of a driver that accepted a change and reports `found` afterwards.
pub(crate) fn not_kept(device: &str, action: &str, found: &str) -> MachineError {
    let (device, action) = (device.to_owned(), action.to_owned());
    let reason = format!("the driver accepted it, but reports {found} now");
    MachineError::Refused { device, action, reason, errno: None }
}

/// A change of one setting, as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SettingChange {
    /// The device; empty for a process or a unit.
    pub device: String,
    /// The NAPI instance; `None` for a setting of something else.
    pub napi: Option<u32>,
    /// Another part of the device that the setting belongs to, such as `queue 3`; `None` for a NAPI instance, or for the
    /// whole device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// The setting's name.
    pub setting: String,
    /// The value before.
    pub before: String,
    /// The value after.
    pub after: String,
}

impl SettingChange {
    /// A change of the whole device.
    pub(crate) fn of_device(device: &str, setting: &str, before: String, after: String) -> Self {
        let (device, setting) = (device.to_owned(), setting.to_owned());
        Self { device, napi: None, part: None, setting, before, after }
    }

    /// A change of a part of a device, or of a process or unit if `device` is empty.
    pub(crate) fn of_part(device: &str, part: &str, setting: &str, before: String, after: String) -> Self {
        Self { part: Some(part.to_owned()), ..Self::of_device(device, setting, before, after) }
    }

    /// A change of a NAPI instance.
    pub(crate) fn of_napi(device: &str, id: u32, setting: &str, before: String, after: String) -> Self {
        Self { napi: Some(id), ..Self::of_device(device, setting, before, after) }
    }

    /// Returns the words for the NAPI instance or part of a device, or for all NAPI instances of the device.
    #[must_use]
    pub fn subject(&self) -> String {
        let part = match (self.napi, &self.part) {
            (Some(id), _) => format!("NAPI {id}"),
            (None, Some(part)) => part.clone(),
            (None, None) => "every NAPI".to_owned(),
        };
        format!("{} {part}", self.device).trim().to_owned()
    }
}

impl fmt::Display for SettingChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The comma separates the device's name from "every".
        let subject = match (self.napi, &self.part) {
            (None, None) => format!("{}, every NAPI", self.device),
            _ => self.subject(),
        };
        write!(f, "{subject}: {} {} -> {}", self.setting, self.before, self.after)
    }
}
