//! NAPI settings on devices for as long as a program runs, and the check that epoll parameters can be set.

use std::os::fd::AsFd;
use std::path::PathBuf;

use abey_delivery::{EpollBusyPoll, NapiSettings};
use abey_linux::device::{Device, DeviceError, device_named};
use abey_linux::epoll::{self, EpollError};
use abey_linux::kernel::NetnsHandle;
use abey_linux::machine::MachineError;
use abey_linux::napi::NapiChange;
use abey_linux::netns::NetNs;
use abey_linux::probe::napi_capabilities;
use abey_reconcile::{Applied, ApplyError, Plan, Restored, Target};
use nix::sys::epoll::{Epoll, EpollCreateFlags};

/// NAPI settings, and the devices that have them.
#[derive(Debug)]
pub struct DeviceSettings {
    netns: NetNs,
    target: Target,
    change: NapiChange,
    journals: PathBuf,
    applied: Vec<Applied>,
}

impl DeviceSettings {
    /// Returns settings that no device has yet. `target` are the NAPI instances of each device, `journals` is the
    /// directory of journals.
    #[must_use]
    pub fn new(netns: NetNs, target: Target, settings: &NapiSettings, journals: PathBuf) -> Self {
        Self { netns, target, change: NapiChange::to(settings), journals, applied: Vec::new() }
    }

    /// Returns the namespace of the devices.
    #[must_use]
    pub fn netns(&self) -> &NetNs {
        &self.netns
    }

    /// Returns the NAPI instances of each device that get the settings.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Returns the devices of these names.
    ///
    /// # Errors
    /// [`DeviceError`]
    pub fn devices_named(&self, names: &[String]) -> Result<Vec<Device>, DeviceError> {
        let mut place = NetnsHandle::open(&self.netns)?;
        names.iter().map(|name| device_named(place.netlink(), name, self.netns.description())).collect()
    }

    /// Applies the settings to a device. Returns warnings.
    ///
    /// # Errors
    /// [`ApplyError`]; the device is then as it was before.
    pub fn apply(&mut self, device: &Device) -> Result<Vec<String>, ApplyError> {
        let mut place = NetnsHandle::open(&self.netns)?;
        let capabilities = napi_capabilities(place.netlink())?;
        let plan = Plan::new(&mut place, device, &self.target, &self.change, capabilities)?;
        let warnings = plan.warnings().to_vec();
        self.applied.push(plan.apply(place, Some(&self.journals))?);
        Ok(warnings)
    }

    /// Restores every device.
    ///
    /// Returns a message for each device whose settings were changed by others meanwhile and are therefore left as they
    /// are, and the last error.
    pub fn restore(&mut self) -> (Vec<String>, Result<(), MachineError>) {
        let (mut messages, mut outcome) = (Vec::new(), Ok(()));
        for applied in self.applied.drain(..) {
            match applied.restore() {
                Ok(restored) => messages.extend(restored.iter().filter_map(changed_by_others)),
                Err(error) => outcome = Err(error),
            }
        }
        (messages, outcome)
    }
}

/// Returns a message if a step was not undone because its value was changed by others.
fn changed_by_others(restored: &Restored) -> Option<String> {
    let Restored::ChangedSince(step) = restored else { return None };
    let change = step.changes().into_iter().next()?;
    let napi = change.napi.map_or_else(String::new, |id| format!("NAPI {id} of "));
    Some(format!("{napi}{} was changed by another program meanwhile: its settings stay", change.device))
}

/// Reason why epoll parameters cannot be set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EpollCheckError {
    /// The kernel has none.
    #[error(
        "this kernel has no busy-poll parameters per epoll instance (Linux 6.9): use base, deferX or threaded here"
    )]
    Unsupported,
    /// The kernel refused these.
    #[error(transparent)]
    Epoll(#[from] EpollError),
    /// No epoll instance could be created to try them on.
    #[error("cannot create an epoll instance: {0}")]
    Create(nix::Error),
}

/// Checks that this kernel lets this user set these epoll parameters, by setting them on an instance of its own.
///
/// # Errors
/// [`EpollCheckError`]
pub fn check_epoll(parameters: &EpollBusyPoll) -> Result<(), EpollCheckError> {
    if !epoll::supported()? {
        return Err(EpollCheckError::Unsupported);
    }
    let probe = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(EpollCheckError::Create)?;
    Ok(epoll::set(probe.0.as_fd(), parameters)?)
}
