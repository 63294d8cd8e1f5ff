//! A change that was made or is about to be made, with the value before it.

use abey_linux::ethtool::rss::DEFAULT_CONTEXT;
use abey_linux::machine::{Capability, MachineError};
use serde::{Deserialize, Serialize};

use crate::host::Host;
use crate::setting::{
    Assignment, ChannelsEdit, Claim, ContextCreated, ContextDeleted, DeviceFile, DropIn, Edit, IrqAffinity, NapiEdit,
    NapiThread, Ntuple, ProcessEdit, Reversal, RssTable, RuleDeleted, RuleInserted, SavedQueues, SettingChange, Xps,
};

/// Defines [`Step`] with one variant for each kind of edit, and the only dispatch on the kind.
macro_rules! steps {
    ($($(#[$meta:meta])* $kind:ident($edit:ty),)*) => {
        /// A change of one setting, with the value before it.
        ///
        /// The serialised form is that of journals and state files, which other versions of Abey read.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        #[non_exhaustive]
        pub enum Step {
            $($(#[$meta])* $kind($edit),)*
        }

        impl Step {
            pub(crate) fn edit(&self) -> &dyn Edit {
                match self {
                    $(Self::$kind(edit) => edit,)*
                }
            }
        }

        $(impl From<$edit> for Step {
            fn from(edit: $edit) -> Self {
                Self::$kind(edit)
            }
        })*
    };
}

steps! {
    /// Settings of a NAPI instance.
    Napi(NapiEdit),
    /// A file below `/sys/class/net/DEVICE`.
    DeviceFile(Assignment<DeviceFile>),
    /// The numbers of queues of a device.
    Channels(ChannelsEdit),
    /// The indirection table of an RSS context.
    RssTable(Assignment<RssTable>),
    /// A new RSS context.
    RssContextMade(ContextCreated),
    /// A deleted RSS context.
    RssContextDeleted(ContextDeleted),
    /// The device feature that enables flow rules.
    #[serde(with = "crate::setting::ntuple_record")]
    Ntuple(Assignment<Ntuple>),
    /// A new flow rule.
    RuleInserted(RuleInserted),
    /// A deleted flow rule.
    RuleDeleted(RuleDeleted),
    /// The CPUs that use a transmit queue (XPS).
    Xps(Assignment<Xps>),
    /// The CPUs that an interrupt may be delivered to.
    Irq(Assignment<IrqAffinity>),
    /// The thread that polls a NAPI instance.
    Thread(Assignment<NapiThread>),
    /// The CPUs of the threads of a process.
    Process(ProcessEdit),
    /// A drop-in of a systemd unit.
    DropIn(Assignment<DropIn>),
}

impl Step {
    /// Describes the changes, one entry for each setting.
    #[must_use]
    pub fn changes(&self) -> Vec<SettingChange> {
        self.edit().describe()
    }

    /// Returns the device that is changed, if any.
    #[must_use]
    pub fn device(&self) -> Option<&str> {
        self.edit().device()
    }

    /// Returns what the process that takes the step holds until it is undone or kept.
    #[must_use]
    pub fn claim(&self) -> Claim<'_> {
        self.edit().claim()
    }

    /// Returns the capability that undoing the step takes; `root` is whether the effective user is root.
    #[must_use]
    pub fn capability(&self, root: bool) -> Option<Capability> {
        self.edit().capability(root)
    }

    /// Makes the change and verifies it. Returns the number of a new RSS context.
    pub(crate) fn take(&self, host: &mut dyn Host) -> Result<Option<u32>, MachineError> {
        let made = self.edit().write(host)?;
        self.edit().verify(host)?;
        Ok(made)
    }

    /// Returns the steps that lead back to the value before. What another program has changed since stays.
    ///
    /// # Errors
    /// When the present value cannot be read; [`MachineError::Gone`] where nothing is left to be restored.
    pub fn reversal(&self, host: &mut dyn Host) -> Result<Reversal, MachineError> {
        self.edit().reversal(host)
    }

    /// Whether both steps claim the same thing, so that two processes cannot hold them at the same time.
    pub(crate) fn conflicts(&self, other: &Self) -> bool {
        self.claim().conflicts(other.claim(), self.device() == other.device())
    }

    /// Returns a step of the default RSS table with the table from before the earlier change of the channels in place of
    /// its own `before`, which names queues that undoing the earlier step removes: the kernel refuses to remove these
    /// while the table names them. `None` for any other pair of steps.
    #[must_use]
    pub fn since_before(&self, earlier: &Self) -> Option<Self> {
        let (Self::RssTable(table), Self::Channels(channels)) = (self, earlier) else { return None };
        let ChannelsEdit { device, saved: SavedQueues { table: Some(first), .. }, .. } = channels else { return None };
        let RssTable { device: own, context } = &table.setting;
        let fits = *context == DEFAULT_CONTEXT && own == device && first.len() == table.before.len();
        fits.then(|| Assignment { before: first.clone(), ..table.clone() }.into())
    }

    /// Returns the name of the setting, for the message that another process holds it.
    pub(crate) fn subject(&self) -> String {
        self.edit().subject()
    }
}
