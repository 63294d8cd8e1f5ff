//! Changes of NAPI settings, planned and checked before anything is written.

use std::path::Path;

use abey_delivery::{Nanos, PollContext, SettingValue, SettingsError};
use abey_linux::device::Device;
use abey_linux::kernel::{Kernel, NetnsHandle};
use abey_linux::machine::MachineError;
use abey_linux::napi::{LONGEST_TIMEOUT, Napi, NapiChange, napis, rx_queues};
use abey_linux::netlink::NetlinkError;
use abey_linux::probe::NapiCapabilities;

use crate::bounds::{DEFER_HARD_IRQS, GRO_FLUSH_TIMEOUT, THREADED};
use crate::error::JournalError;
use crate::setting::{Assignment, Claim, DeviceFile, NapiEdit};
use crate::step::Step;
use crate::transaction::{Applied, Transaction};

/// The NAPI instances of a device that a change applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// All of the device.
    Device,
    /// Those that serve these receive queues.
    Queues(Vec<u32>),
    /// One, by its ID.
    Napi(u32),
}

/// Why settings cannot be applied, or were not.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// The settings contradict each other.
    #[error("{device}: {source}")]
    Settings {
        /// The device.
        device: String,
        /// The rule that they break.
        source: SettingsError,
    },
    /// A timeout exceeds the 32 bits of nanoseconds that the kernel's interface has for it.
    #[error("{setting} {timeout} is out of range: it goes from 0 to {LONGEST_TIMEOUT}")]
    TooLong {
        /// The setting.
        setting: &'static str,
        /// The requested time.
        timeout: Nanos,
    },
    /// The kernel refused a request.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// Something about a device could not be read or changed.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The journal could not be written, so nothing was changed.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The device has no NAPI instance.
    #[error("{device} has no NAPI instance, so no delivery mode can have an effect there{hint}")]
    NoNapi {
        /// The device.
        device: String,
        /// What to do about it, if anything; follows the sentence.
        hint: &'static str,
    },
    /// The device has no such queue.
    #[error("{device} has no receive queue {queue}: its queues are {known}")]
    NoQueue {
        /// The device.
        device: String,
        /// The requested queue.
        queue: u32,
        /// The queues that the device has.
        known: String,
    },
    /// The kernel does not have a setting.
    #[error("this kernel cannot set {setting}: {advice}")]
    Unsupported {
        /// The setting.
        setting: &'static str,
        /// What to do instead.
        advice: &'static str,
    },
    /// Only the whole device can be changed, and a part was requested.
    #[error(
        "this kernel has {setting} only for a whole device, and {device} has {instances} NAPI instances: ask for the whole \
         device, or use a kernel with settings per NAPI"
    )]
    OnlyWholeDevice {
        /// The setting.
        setting: &'static str,
        /// The device.
        device: String,
        /// The number of its instances.
        instances: usize,
    },
    /// Another Abey process holds the same settings.
    #[error("abey (process {pid}) has changed {what} and will restore it: end that process first")]
    Held {
        /// The other process.
        pid: u32,
        /// The setting that it holds.
        what: String,
    },
}

/// Changes of NAPI settings that were checked and have not been made yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    steps: Vec<Step>,
    warnings: Vec<String>,
    device: String,
    napis: Vec<u32>,
}

impl Plan {
    /// Plans the change of the target to the settings in `wanted`; `None` leaves a setting alone.
    ///
    /// # Errors
    /// Everything that can be known in advance to make the change fail or have no effect.
    pub fn new(
        netns: &mut NetnsHandle,
        device: &Device,
        target: &Target,
        wanted: &NapiChange,
        capabilities: NapiCapabilities,
    ) -> Result<Self, ApplyError> {
        let all = napis(netns.netlink(), Some(device.ifindex))?;
        let chosen = choose(netns, device, target, &all)?;
        let napis = chosen.iter().map(|napi| napi.id).collect();
        let mut plan = Self { device: device.name.clone(), napis, ..Self::default() };
        for (setting, value) in wanted.settings() {
            if let SettingValue::Time(timeout) = value
                && timeout > LONGEST_TIMEOUT
            {
                return Err(ApplyError::TooLong { setting: setting.name(), timeout });
            }
        }
        let mut wide = NapiChange::default();
        for napi in &chosen {
            let before = napi.settings();
            let after = wanted.applied_to(&before);
            after.validate().map_err(|source| ApplyError::Settings { device: device.name.clone(), source })?;
            let change = NapiChange::between(&before, &after);
            let (own, rest) = split(&change, capabilities)?;
            if !own.is_empty() {
                plan.steps.push(NapiEdit::step(napi.id, &device.name, &before, &own));
            }
            wide = rest.or(wide);
        }
        plan.add_device_files(netns, device, &wide, (chosen.len(), all.len()))?;
        Ok(plan)
    }

    fn add_device_files(
        &mut self,
        netns: &mut NetnsHandle,
        device: &Device,
        wide: &NapiChange,
        (chosen, instances): (usize, usize),
    ) -> Result<(), ApplyError> {
        for (file, setting, value) in device_files(wide) {
            if chosen != instances {
                return Err(ApplyError::OnlyWholeDevice { setting, device: device.name.clone(), instances });
            }
            let before = netns.device_file(&device.name, file)?;
            if before != value {
                let setting = DeviceFile { device: device.name.clone(), file: file.to_owned() };
                self.steps.push(Assignment { setting, before, after: value }.into());
            }
            self.warnings.push(format!(
                "this kernel has {setting} per device only: it changes for every NAPI instance of {}",
                device.name
            ));
        }
        Ok(())
    }

    /// Returns the changes.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns warnings for the user.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Makes the changes, all or none, after writing the values before to a journal in `journal_directory`; `None` if the
    /// namespace is temporary.
    ///
    /// # Errors
    /// When another Abey process holds the same instances, the journal cannot be written, or the kernel refuses. Nothing
    /// is changed then.
    pub fn apply(self, netns: NetnsHandle, journal_directory: Option<&Path>) -> Result<Applied, ApplyError> {
        let mut transaction = Transaction::begin(netns, journal_directory);
        transaction.make_plan(self)?;
        Ok(transaction.finish())
    }

    pub(crate) fn into_parts(self) -> (Vec<Step>, Scope) {
        (self.steps, Scope { device: self.device, napis: self.napis })
    }
}

/// The NAPI instances that a plan is for, whether it changes them or not.
#[derive(Debug)]
pub(crate) struct Scope {
    device: String,
    napis: Vec<u32>,
}

impl Scope {
    /// Whether a step of another process changes settings of these instances.
    pub(crate) fn includes(&self, other: &Step) -> bool {
        match other.claim() {
            Claim::Napi(id) => self.napis.contains(&id),
            Claim::EveryNapi | Claim::Queues => other.device() == Some(&self.device),
            _ => false,
        }
    }
}

impl ApplyError {
    /// Whether the driver or this kernel does not support the request.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        match self {
            Self::Machine(error) => error.is_unsupported(),
            Self::Unsupported { .. } | Self::OnlyWholeDevice { .. } | Self::NoNapi { .. } => true,
            _ => false,
        }
    }
}

fn choose(netns: &mut NetnsHandle, device: &Device, target: &Target, all: &[Napi]) -> Result<Vec<Napi>, ApplyError> {
    if all.is_empty() {
        let hint = match (device.is_veth(), device.up) {
            (_, false) => ": bring the device up first",
            (true, true) => ": turn on its GRO (`ethtool -K DEV gro on`)",
            (false, true) => ": if it is a virtual device on top of another one, name that one",
        };
        return Err(ApplyError::NoNapi { device: device.name.clone(), hint });
    }
    let find = |id: u32| all.iter().copied().find(|napi| napi.id == id);
    match target {
        Target::Device => Ok(all.to_vec()),
        Target::Napi(id) => Ok(find(*id).into_iter().collect()),
        Target::Queues(queues) => {
            let served = rx_queues(netns.netlink(), device.ifindex)?;
            let mut chosen = Vec::new();
            for queue in queues {
                let known = || served.keys().map(u32::to_string).collect::<Vec<_>>().join(", ");
                let napi = served.get(queue).and_then(|id| find(*id)).ok_or_else(|| ApplyError::NoQueue {
                    device: device.name.clone(),
                    queue: *queue,
                    known: known(),
                })?;
                if !chosen.contains(&napi) {
                    chosen.push(napi);
                }
            }
            Ok(chosen)
        }
    }
}

/// Splits a change into the settings that this kernel has per instance and those that it has per device.
fn split(change: &NapiChange, capabilities: NapiCapabilities) -> Result<(NapiChange, NapiChange), ApplyError> {
    let (mut own, mut wide) = (*change, NapiChange::default());
    if !capabilities.deferral {
        wide.defer_hard_irqs = own.defer_hard_irqs.take();
        wide.gro_flush_timeout = own.gro_flush_timeout.take();
    }
    if own.irq_suspend_timeout.is_some() && !capabilities.suspend {
        let advice = "IRQ suspension came with Linux 6.13; use a deferX or napibusy mode here";
        return Err(ApplyError::Unsupported { setting: "irq-suspend-timeout", advice });
    }
    match own.context {
        Some(PollContext::BusyThread) if !capabilities.threaded_busy => {
            let advice = "threads that never sleep came with Linux 6.19; use `threaded` here";
            return Err(ApplyError::Unsupported { setting: "threaded busy polling", advice });
        }
        Some(PollContext::Workqueue) => {
            let advice = "the Linux kernel polls in softirq or in threads; use `threaded` here";
            return Err(ApplyError::Unsupported { setting: "work-queue polling", advice });
        }
        Some(_) if !capabilities.threaded => wide.context = own.context.take(),
        _ => {}
    }
    Ok((own, wide))
}

/// Returns the device-wide files (Linux `Documentation/ABI/testing/sysfs-class-net`) that a change writes, as (file,
/// setting, value).
fn device_files(wide: &NapiChange) -> Vec<(&'static str, &'static str, String)> {
    let NapiChange { defer_hard_irqs, gro_flush_timeout, irq_suspend_timeout: _, context } = *wide;
    let mut files = Vec::new();
    if let Some(count) = defer_hard_irqs {
        files.push((DEFER_HARD_IRQS, "defer-hard-irqs", count.to_string()));
    }
    if let Some(timeout) = gro_flush_timeout {
        files.push((GRO_FLUSH_TIMEOUT, "gro-flush-timeout", timeout.as_nanos().to_string()));
    }
    if let Some(context) = context {
        files.push((THREADED, "threaded", u8::from(context == PollContext::Thread).to_string()));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD_KERNEL: NapiCapabilities =
        NapiCapabilities { list: true, deferral: false, suspend: false, threaded: false, threaded_busy: false };

    #[test]
    fn an_old_kernel_gets_device_wide_files_and_no_suspension() {
        let deferral = NapiChange {
            defer_hard_irqs: Some(100),
            gro_flush_timeout: Some(Nanos::from_micros(20)),
            context: Some(PollContext::Thread),
            ..NapiChange::default()
        };
        let (own, wide) = split(&deferral, OLD_KERNEL).expect("possible");
        assert!(own.is_empty());
        let files = device_files(&wide);
        let written: Vec<_> = files.iter().map(|(file, _, value)| (*file, value.as_str())).collect();
        assert_eq!(written, [("napi_defer_hard_irqs", "100"), ("gro_flush_timeout", "20000"), ("threaded", "1")]);
        let suspend = NapiChange { irq_suspend_timeout: Some(Nanos::from_millis(20)), ..deferral };
        assert!(matches!(split(&suspend, OLD_KERNEL), Err(ApplyError::Unsupported { .. })));
    }
}
