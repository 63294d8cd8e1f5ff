//! Programs that belong to queues: what the library is to do in them, and where they run.

use std::path::Path;

use abey_delivery::{Mode, ModeSettings};
use abey_linux::cpu::CpuList;
use abey_linux::library::{LibraryConfig, Steering};

use crate::error::PolicyError;
use crate::model::{Program, ProgramRule, Settings};
use crate::resolve::{Absent, DeviceWish, Wishes};
use crate::said::Origin;

/// What is wanted of one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramWish {
    /// The table.
    pub origin: Origin,
    /// Which program.
    pub program: Program,
    /// What the library does in it; nothing where the mode is a matter of the NAPI instances alone.
    pub library: LibraryConfig,
    /// The CPUs that its threads may run on.
    pub cpus: Option<CpuList>,
}

impl ProgramWish {
    /// The drop-in that gives the program's unit the library and its CPUs from its next start on (systemd.exec(5));
    /// `None` if that is nothing.
    pub fn drop_in(&self, library: &Path) -> Option<String> {
        let mut lines = Vec::new();
        if !self.library.is_passive() {
            lines.push(format!("Environment=LD_PRELOAD={}", library.display()));
            lines.extend(self.library.to_env().into_iter().map(|(name, value)| format!("Environment={name}={value}")));
        }
        if let Some(cpus) = &self.cpus {
            lines.push(format!("CPUAffinity={cpus}"));
        }
        let head = format!("# Written by `abey apply` as {} says.\n[Service]\n", self.origin.file);
        (!lines.is_empty()).then(|| head + &lines.join("\n") + "\n")
    }
}

impl ProgramRule {
    pub(crate) fn resolve(&self, wishes: &mut Wishes) -> Result<(), PolicyError> {
        let Some((mode, settings)) = self.settings(wishes)? else { return Ok(()) };
        let mut library = LibraryConfig::new(mode, &settings);
        if let Some(epoll) = &self.epoll {
            library.epoll = Some(epoll.value);
        }
        library.steering = self.steer.then(Steering::default);
        wishes.programs.push(ProgramWish {
            origin: self.origin.clone(),
            program: self.program.value.clone(),
            library,
            cpus: self.cpus.as_ref().map(|cpus| cpus.value.clone()),
        });
        Ok(())
    }

    /// The mode that it runs with, and all its settings; `None` if its device is not there.
    fn settings(&self, wishes: &mut Wishes) -> Result<Option<(Option<Mode>, ModeSettings)>, PolicyError> {
        if let Some(mode) = &self.mode {
            return Ok(Some((Some(mode.value), mode.value.settings())));
        }
        let Some(pattern) = &self.device else { return Ok(Some((None, ModeSettings::default()))) };
        let meant: Vec<&DeviceWish> =
            wishes.devices.iter().filter(|device| pattern.value.matches(&device.name)).collect();
        if meant.is_empty() {
            let wanted = format!("name {} that the policy speaks of", pattern.value);
            wishes.absent.push(Absent { origin: pattern.origin.clone(), wanted, optional: false });
            return Ok(None);
        }
        let wanted = |queue: &u32| self.queues.as_ref().is_none_or(|queues| queues.value.contains(queue));
        let mut modes: Vec<Settings> = Vec::new();
        for device in meant {
            let queues = device.queues.iter().filter(|(queue, _)| wanted(queue));
            for settings in queues.filter_map(|(_, wish)| wish.settings.as_ref()) {
                if !modes.contains(&settings.value) {
                    modes.push(settings.value);
                }
            }
        }
        let wrong = |problem: &str| PolicyError::Program { origin: self.origin.clone(), problem: problem.to_owned() };
        match modes[..] {
            [] => Err(wrong("nothing is said of the settings of its queues: write `mode` here, or there")),
            [one] => match one.of_mode() {
                Some((mode, settings)) => Ok(Some((Some(mode), settings))),
                None if self.epoll.is_some() => Ok(Some((None, ModeSettings::default()))),
                None => Err(wrong(
                    "its queues have settings and no mode, which say nothing of epoll: write `mode` or `epoll` here",
                )),
            },
            _ => Err(wrong("its queues have different settings: write `mode` here, or name fewer `queues`")),
        }
    }
}

/// Whether anything at all is said of the program.
pub(crate) fn says_something(rule: &ProgramRule) -> bool {
    rule.mode.is_some() || rule.device.is_some() || rule.epoll.is_some() || rule.cpus.is_some() || rule.steer
}
