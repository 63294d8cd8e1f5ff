//! Parses a `[[program]]` table.

use std::path::Path;

use abey_config::EpollTable;
use toml::Spanned as TomlSpanned;

use super::Reader;
use super::tables::ProgramTable;
use crate::error::PolicyError;
use crate::model::{Program, ProgramRule};
use crate::program::sets_anything;
use crate::spanned::Spanned;

impl Reader<'_> {
    pub(super) fn program(&self, table: TomlSpanned<ProgramTable>) -> Result<ProgramRule, PolicyError> {
        let span = table.span();
        let origin = self.origin(span.clone(), "program");
        let table = table.into_inner();
        let program = match (table.unit, table.executable) {
            (Some(unit), None) => {
                check_unit(unit.get_ref()).map_err(|message| self.wrong(unit.span(), &message))?;
                let spanned = self.spanned(unit, "program.unit");
                spanned.with(Program::Unit(spanned.value.clone()))
            }
            (None, Some(file)) => {
                if !Path::new(file.get_ref()).is_absolute() {
                    return Err(self.wrong(file.span(), "write the whole path, such as \"/usr/bin/memcached\""));
                }
                let spanned = self.spanned(file, "program.executable");
                spanned.with(Program::Executable(spanned.value.clone()))
            }
            (Some(_), Some(file)) => {
                return Err(
                    self.wrong(file.span(), "a program has either `unit` or `executable`: leave one of them out")
                );
            }
            (None, None) => return Err(self.wrong(span, "it names no program: write `unit` or `executable`")),
        };
        if let (Some(queues), None) = (&table.queues, &table.device) {
            return Err(self.wrong(queues.span(), "`queues` needs a device: write `device` as well"));
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
        if sets_anything(&rule) {
            return Ok(rule);
        }
        Err(self.wrong(span, "it sets nothing for the program: write `device`, `mode`, `epoll`, `cpus` or `steer`"))
    }

    fn epoll(&self, table: TomlSpanned<EpollTable>) -> Result<Spanned<abey_delivery::EpollBusyPoll>, PolicyError> {
        let parameters = table.get_ref().parameters();
        parameters.validate().map_err(|error| self.wrong(table.get_ref().budget_span(), &error.to_string()))?;
        let spanned = self.spanned(table, "program.epoll");
        Ok(spanned.with(parameters))
    }
}

/// Checks the name of a unit (systemd.unit(5)), which becomes the name of a directory.
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
