//! Programs that belong to queues: what the library does in them, and their CPUs.

use abey_delivery::{Mode, ModeSettings};
use abey_linux::library::{LibraryConfig, Steering};

use crate::desired::{Absent, DesiredDevice, DesiredProgram, DesiredState};
use crate::error::PolicyError;
use crate::model::{ProgramRule, Settings};

impl ProgramRule {
    pub(crate) fn resolve(&self, desired: &mut DesiredState) -> Result<(), PolicyError> {
        let Some((mode, settings)) = self.settings(desired)? else { return Ok(()) };
        let mut library = LibraryConfig::new(mode, &settings);
        if let Some(epoll) = &self.epoll {
            library.epoll = Some(epoll.value);
        }
        library.steering = self.steer.then(Steering::default);
        desired.programs.push(DesiredProgram {
            origin: self.origin.clone(),
            program: self.program.value.clone(),
            library,
            cpus: self.cpus.as_ref().map(|cpus| cpus.value.clone()),
        });
        Ok(())
    }

    /// Returns the mode that the program runs with and all settings; `None` if its device does not exist.
    fn settings(&self, desired: &mut DesiredState) -> Result<Option<(Option<Mode>, ModeSettings)>, PolicyError> {
        if let Some(mode) = &self.mode {
            return Ok(Some((Some(mode.value), mode.value.settings())));
        }
        let Some(pattern) = &self.device else { return Ok(Some((None, ModeSettings::default()))) };
        let meant: Vec<&DesiredDevice> =
            desired.devices.iter().filter(|device| pattern.value.matches(&device.name)).collect();
        if meant.is_empty() {
            let wanted = format!("name {} in a table of the policy", pattern.value);
            desired.absent.push(Absent { origin: pattern.origin.clone(), wanted, optional: false });
            return Ok(None);
        }
        let wanted = |queue: &u32| self.queues.as_ref().is_none_or(|queues| queues.value.contains(queue));
        let mut modes: Vec<Settings> = Vec::new();
        for device in meant {
            let queues = device.queues.iter().filter(|(queue, _)| wanted(queue));
            for settings in queues.filter_map(|(_, desired)| desired.settings.as_ref()) {
                if !modes.contains(&settings.value) {
                    modes.push(settings.value);
                }
            }
        }
        let wrong = |problem: &str| PolicyError::Program { origin: self.origin.clone(), problem: problem.to_owned() };
        match modes[..] {
            [] => Err(wrong("its queues have no settings: write `mode` here, or settings for the queues")),
            [one] => match one.of_mode() {
                Some((mode, settings)) => Ok(Some((Some(mode), settings))),
                None if self.epoll.is_some() => Ok(Some((None, ModeSettings::default()))),
                None => {
                    Err(wrong("the settings of its queues include no epoll parameters: write `mode` or `epoll` here"))
                }
            },
            _ => Err(wrong("its queues have different settings: write `mode` here, or name fewer `queues`")),
        }
    }
}

/// Whether the table has any setting of the program.
pub(crate) fn sets_anything(rule: &ProgramRule) -> bool {
    rule.mode.is_some() || rule.device.is_some() || rule.epoll.is_some() || rule.cpus.is_some() || rule.steer
}
