//! What has to change, worked out and checked before anything is touched.

use std::path::Path;

use abey_delivery::{Nanos, NapiSettings, PollContext, SettingsError};

use crate::device::Device;
use crate::machine::MachineError;
use crate::napi::{LONGEST_TIMEOUT, Napi, NapiChange, napis, rx_queues};
use crate::netlink::NetlinkError;
use crate::probe::NapiCapabilities;

use super::journal::JournalError;
use super::place::Place;
use super::step::Step;
use super::transaction::{Applied, Transaction};
use super::wire;

/// Which NAPI instances of a device a change is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// All of them.
    Device,
    /// Those that serve these receive queues.
    Queues(Vec<u32>),
    /// One, by its ID.
    Napi(u32),
}

/// Why settings cannot be, or were not, applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// The settings make no sense together.
    #[error("{device}: {source}")]
    Settings {
        /// The device.
        device: String,
        /// The rule that is broken.
        source: SettingsError,
    },
    /// The kernel's interface has 32 bits of nanoseconds for it.
    #[error("{setting} {timeout} is out of range: it goes from 0 to {LONGEST_TIMEOUT}")]
    TooLong {
        /// The setting.
        setting: &'static str,
        /// The time asked for.
        timeout: Nanos,
    },
    /// The kernel refused.
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
        /// What to do about it, where something can be done.
        hint: &'static str,
    },
    /// The device has no such queue.
    #[error("{device} has no receive queue {queue}: its queues are {known}")]
    NoQueue {
        /// The device.
        device: String,
        /// The queue that was asked for.
        queue: u32,
        /// The queues there are.
        known: String,
    },
    /// The kernel lacks a setting altogether.
    #[error("this kernel cannot set {setting}: {advice}")]
    Unsupported {
        /// The setting.
        setting: &'static str,
        /// What to do instead.
        advice: &'static str,
    },
    /// Only the whole device can be changed, and a part was asked for.
    #[error(
        "this kernel has {setting} only for a whole device, and {device} has {instances} NAPI instances: ask for the whole \
         device, or use a kernel with settings per NAPI"
    )]
    OnlyWholeDevice {
        /// The setting.
        setting: &'static str,
        /// The device.
        device: String,
        /// How many instances it has.
        instances: usize,
    },
    /// Another Abey is holding the same instances.
    #[error("abey (process {pid}) has changed {what} already and will put it back: end it first")]
    Held {
        /// The other process.
        pid: u32,
        /// What it holds.
        what: String,
    },
}

/// Changes that were found to make sense, and have not been made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    steps: Vec<Step>,
    warnings: Vec<String>,
    device: String,
    napis: Vec<u32>,
}

impl Plan {
    /// Works out what has to change so that the target has what `wanted` says; `None` in it leaves a setting alone.
    ///
    /// # Errors
    /// Whatever would make the change fail or have no effect, as far as it can be known beforehand.
    pub fn new(
        place: &mut Place,
        device: &Device,
        target: &Target,
        wanted: &NapiChange,
        able: NapiCapabilities,
    ) -> Result<Self, ApplyError> {
        let all = napis(&mut place.netlink, Some(device.ifindex))?;
        let chosen = choose(place, device, target, &all)?;
        let napis = chosen.iter().map(|napi| napi.id).collect();
        let mut plan = Self { device: device.name.clone(), napis, ..Self::default() };
        for (setting, timeout) in
            [("gro-flush-timeout", wanted.gro_flush_timeout), ("irq-suspend-timeout", wanted.irq_suspend_timeout)]
        {
            if let Some(timeout) = timeout.filter(|timeout| *timeout > LONGEST_TIMEOUT) {
                return Err(ApplyError::TooLong { setting, timeout });
            }
        }
        let mut wide = NapiChange::default();
        for napi in &chosen {
            let before = napi.settings();
            let after = wanted.applied_to(&before);
            after.validate().map_err(|source| ApplyError::Settings { device: device.name.clone(), source })?;
            let change = NapiChange::between(&before, &after);
            let (own, rest) = split(&change, able)?;
            if !own.is_empty() {
                let (before, change) = (wire::SettingsRecord::from(&before), wire::ChangeRecord::from(&own));
                plan.steps.push(Step::Napi { id: napi.id, device: device.name.clone(), before, change });
            }
            wide = rest.over(wide);
        }
        plan.add_device_files(place, device, &wide, (chosen.len(), all.len()))?;
        Ok(plan)
    }

    fn add_device_files(
        &mut self,
        place: &Place,
        device: &Device,
        wide: &NapiChange,
        (chosen, instances): (usize, usize),
    ) -> Result<(), ApplyError> {
        for (file, setting, value) in device_files(wide) {
            if chosen != instances {
                return Err(ApplyError::OnlyWholeDevice { setting, device: device.name.clone(), instances });
            }
            let before = place.read(&device.name, file)?;
            if before != value {
                let device = device.name.clone();
                self.steps.push(Step::DeviceFile { device, file: file.to_owned(), before, after: value });
            }
            self.warnings.push(format!(
                "this kernel keeps {setting} per device: it is changed for every NAPI instance of {}",
                device.name
            ));
        }
        Ok(())
    }

    /// The changes.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// What the caller should tell the user.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Makes the changes, all or none, after having written down in `journal_directory` what was there before; `None`
    /// for a place that will vanish by itself.
    ///
    /// # Errors
    /// When another Abey holds the same instances, the journal cannot be written, or the kernel refuses; then nothing
    /// is changed in the end.
    pub fn apply(self, place: Place, journal_directory: Option<&Path>) -> Result<Applied, ApplyError> {
        let mut transaction = Transaction::begin(place, journal_directory);
        transaction.make_plan(self)?;
        Ok(transaction.finish())
    }

    pub(super) fn into_parts(self) -> (Vec<Step>, About) {
        (self.steps, About { device: self.device, napis: self.napis })
    }
}

/// What a plan is about, whether it changes it or not.
#[derive(Debug)]
pub(super) struct About {
    device: String,
    napis: Vec<u32>,
}

impl About {
    /// Whether a step of somebody else is about the same.
    pub(super) fn covers(&self, other: &Step) -> bool {
        match other {
            Step::Napi { id, .. } => self.napis.contains(id),
            Step::DeviceFile { device, .. } => *device == self.device,
            Step::Channels { device, .. } => device.name == self.device,
            _ => false,
        }
    }
}

impl ApplyError {
    /// Whether the driver or this kernel cannot do what was asked for.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        match self {
            Self::Machine(error) => error.is_unsupported(),
            Self::Unsupported { .. } | Self::OnlyWholeDevice { .. } | Self::NoNapi { .. } => true,
            _ => false,
        }
    }
}

fn choose(place: &mut Place, device: &Device, target: &Target, all: &[Napi]) -> Result<Vec<Napi>, ApplyError> {
    if all.is_empty() {
        let hint = match (device.is_veth(), device.up) {
            (_, false) => ": it is down; bring it up first",
            (true, true) => ": turn on its GRO (`ethtool -K DEV gro on`)",
            (false, true) => "; is it a virtual device on top of another one? Name that one",
        };
        return Err(ApplyError::NoNapi { device: device.name.clone(), hint });
    }
    let find = |id: u32| all.iter().copied().find(|napi| napi.id == id);
    match target {
        Target::Device => Ok(all.to_vec()),
        Target::Napi(id) => Ok(find(*id).into_iter().collect()),
        Target::Queues(queues) => {
            let served = rx_queues(&mut place.netlink, device.ifindex)?;
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

/// Splits a change into what this kernel can do per instance and what only the whole device can have.
fn split(change: &NapiChange, able: NapiCapabilities) -> Result<(NapiChange, NapiChange), ApplyError> {
    let (mut own, mut wide) = (*change, NapiChange::default());
    if !able.deferral {
        wide.defer_hard_irqs = own.defer_hard_irqs.take();
        wide.gro_flush_timeout = own.gro_flush_timeout.take();
    }
    if own.irq_suspend_timeout.is_some() && !able.suspend {
        let advice = "IRQ suspension came with Linux 6.13; use a deferX or napibusy mode here";
        return Err(ApplyError::Unsupported { setting: "irq-suspend-timeout", advice });
    }
    match own.context {
        Some(PollContext::BusyThread) if !able.threaded_busy => {
            let advice = "threads that never sleep came with Linux 6.19; use `threaded` here";
            return Err(ApplyError::Unsupported { setting: "threaded busy polling", advice });
        }
        Some(PollContext::Workqueue) => {
            let advice = "the Linux kernel polls in softirq or in threads; use `threaded` here";
            return Err(ApplyError::Unsupported { setting: "work-queue polling", advice });
        }
        Some(_) if !able.threaded => wide.context = own.context.take(),
        _ => {}
    }
    Ok((own, wide))
}

/// The device-wide files (Linux `Documentation/ABI/testing/sysfs-class-net`) that a change needs.
fn device_files(wide: &NapiChange) -> Vec<(&'static str, &'static str, String)> {
    let mut files = Vec::new();
    if let Some(count) = wide.defer_hard_irqs {
        files.push(("napi_defer_hard_irqs", "defer-hard-irqs", count.to_string()));
    }
    if let Some(timeout) = wide.gro_flush_timeout {
        files.push(("gro_flush_timeout", "gro-flush-timeout", timeout.as_nanos().to_string()));
    }
    if let Some(context) = wide.context {
        files.push(("threaded", "threaded", u8::from(context == PollContext::Thread).to_string()));
    }
    files
}

impl NapiChange {
    /// This change, and where it says nothing, the other one.
    pub(super) fn over(self, other: Self) -> Self {
        Self {
            defer_hard_irqs: self.defer_hard_irqs.or(other.defer_hard_irqs),
            gro_flush_timeout: self.gro_flush_timeout.or(other.gro_flush_timeout),
            irq_suspend_timeout: self.irq_suspend_timeout.or(other.irq_suspend_timeout),
            context: self.context.or(other.context),
        }
    }

    /// The change that gives an instance exactly these settings.
    pub fn to(settings: &NapiSettings) -> Self {
        Self {
            defer_hard_irqs: Some(settings.defer_hard_irqs),
            gro_flush_timeout: Some(settings.gro_flush_timeout),
            irq_suspend_timeout: Some(settings.irq_suspend_timeout),
            context: Some(settings.context),
        }
    }
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
