//! How a `[[program]]` table is read.

use std::path::Path;

use abey_input::EpollTable;
use toml::Spanned;

use super::Reader;
use super::tables::ProgramTable;
use crate::error::PolicyError;
use crate::model::{Program, ProgramRule};
use crate::program::says_something;
use crate::said::Said;

impl Reader<'_> {
    pub(super) fn program(&self, table: Spanned<ProgramTable>) -> Result<ProgramRule, PolicyError> {
        let place = table.span();
        let origin = self.origin(place.clone(), "program");
        let table = table.into_inner();
        let program = match (table.unit, table.executable) {
            (Some(unit), None) => {
                check_unit(unit.get_ref()).map_err(|message| self.wrong(unit.span(), &message))?;
                let said = self.said(unit, "program.unit");
                said.with(Program::Unit(said.value.clone()))
            }
            (None, Some(file)) => {
                if !Path::new(file.get_ref()).is_absolute() {
                    return Err(self.wrong(file.span(), "write the whole path, such as \"/usr/bin/memcached\""));
                }
                let said = self.said(file, "program.executable");
                said.with(Program::Executable(said.value.clone()))
            }
            (Some(_), Some(file)) => {
                return Err(
                    self.wrong(file.span(), "a program is known by its unit or by its file: leave one of them out")
                );
            }
            (None, None) => return Err(self.wrong(place, "it says of no program: write `unit` or `executable`")),
        };
        if let (Some(queues), None) = (&table.queues, &table.device) {
            return Err(self.wrong(queues.span(), "queues of which device? Write `device` as well"));
        }
        let epoll = table.epoll.map(|epoll| self.epoll(epoll)).transpose()?;
        let rule = ProgramRule {
            origin,
            program,
            device: self.text(table.device, "program.device"),
            queues: self.text(table.queues, "program.queues"),
            mode: self.text(table.mode, "program.mode").map(|mode| mode.with(mode.value.0)),
            epoll,
            cpus: self.text(table.cpus, "program.cpus"),
            steer: table.steer,
        };
        if says_something(&rule) {
            return Ok(rule);
        }
        Err(self.wrong(place, "nothing is said of the program: write `device`, `mode`, `epoll`, `cpus` or `steer`"))
    }

    fn epoll(&self, table: Spanned<EpollTable>) -> Result<Said<abey_delivery::EpollBusyPoll>, PolicyError> {
        let parameters = table.get_ref().parameters();
        parameters.validate().map_err(|error| self.wrong(table.get_ref().budget_span(), &error.to_string()))?;
        let said = self.said(table, "program.epoll");
        Ok(said.with(parameters))
    }
}

/// What a unit's name may have (systemd.unit(5)); it becomes the name of a directory.
fn check_unit(name: &str) -> Result<(), String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b":-_.\\@".contains(&byte);
    if name.len() > ".service".len()
        && name.ends_with(".service")
        && name.bytes().all(allowed)
        && !name.starts_with('.')
    {
        return Ok(());
    }
    Err("write the full name of a service unit, such as \"memcached.service\"".to_owned())
}
