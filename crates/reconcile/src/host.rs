//! The machine that is changed: the kernel's settings, and the drop-ins of systemd units.

use std::io;
use std::path::Path;

use abey_linux::kernel::{Kernel, NetnsHandle};
use abey_linux::machine::{Capability, MachineError};

use crate::units;

/// The settings of a machine: those of the [kernel](Kernel), and the drop-ins of its systemd units.
#[expect(clippy::missing_errors_doc, reason = "the same for every function: see `Kernel`")]
pub trait Host: Kernel {
    /// Returns the text of a drop-in; `None` if there is no such file.
    fn drop_in(&mut self, path: &Path) -> Result<Option<String>, MachineError>;
    /// Replaces a drop-in; `None` removes it.
    fn set_drop_in(&mut self, path: &Path, text: Option<&str>) -> Result<(), MachineError>;
    /// Makes systemd read its units again. Running units are not affected.
    fn reload_units(&mut self) -> Result<(), MachineError>;
}

impl Host for NetnsHandle {
    fn drop_in(&mut self, path: &Path) -> Result<Option<String>, MachineError> {
        units::read(path).map_err(|error| failed("read", path, &error))
    }

    fn set_drop_in(&mut self, path: &Path, text: Option<&str>) -> Result<(), MachineError> {
        let verb = if text.is_some() { "write" } else { "remove" };
        units::write(path, text).map_err(|error| failed(verb, path, &error))
    }

    fn reload_units(&mut self) -> Result<(), MachineError> {
        let (device, action) = (String::new(), "make systemd read the drop-ins".to_owned());
        units::reload().map_err(|reason| MachineError::Refused { device, action, reason, errno: None })
    }
}

fn failed(verb: &str, path: &Path, error: &io::Error) -> MachineError {
    MachineError::from_io("", &format!("{verb} {}", path.display()), Capability::DacOverride, error)
}
