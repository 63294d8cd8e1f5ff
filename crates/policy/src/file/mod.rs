//! Parses policy files.

mod program;
mod tables;
mod tune;

use std::ops::Range;
use std::sync::Arc;

use abey_config::{FileError, NapiTable, key_at, line_of};
use abey_delivery::SettingsError;
use abey_linux::cpu::{Scheduling, SchedulingPolicy};
use abey_linux::napi::LONGEST_TIMEOUT;
use toml::Spanned as TomlSpanned;

use self::tables::{DeviceTable, Document, FlowTable, QueueTable, ThreadTable};
use crate::error::PolicyError;
use crate::model::{DeviceRule, Policy, PortRule, QueueRule, Settings, ThreadRule};
use crate::overlap;
use crate::select::Selector;
use crate::spanned::{Origin, Spanned};
use crate::value::{KernelMode, Port, Text};

/// The supported version of the file format.
const VERSION: u32 = 1;

/// The highest number of receive queues that is accepted.
const MOST_CHANNELS: u32 = 4_096;

impl Policy {
    /// Parses a policy of one file; `name` is for messages.
    ///
    /// # Errors
    /// As [`Policy::parse_all`].
    pub fn parse(name: &str, text: &str) -> Result<Self, PolicyError> {
        Self::parse_all([(name, text)])
    }

    /// Parses a policy of several files, given as names and texts, in order.
    ///
    /// # Errors
    /// The first position that is not TOML or has a key or value that is not allowed; and two rules for the same setting,
    /// whatever the devices are.
    pub fn parse_all<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, PolicyError> {
        let mut policy = Self::default();
        let mut spanned: Option<Origin> = None;
        for (name, text) in files {
            let reader = Reader { name: name.into(), text };
            let document: Document = toml::from_str(text).map_err(|error| reader.toml(&error))?;
            if *document.version.get_ref() != VERSION {
                let message = format!("this version of Abey reads `version = {VERSION}` only");
                return Err(reader.wrong(document.version.span(), &message));
            }
            if let Some(choice) = &document.on_unsupported {
                let origin = reader.origin(choice.span(), "on-unsupported");
                if let Some(first) = spanned.replace(origin.clone()) {
                    return Err(PolicyError::TwoRules { what: "on-unsupported".to_owned(), first, second: origin });
                }
                policy.on_unsupported = *choice.get_ref();
            }
            for table in document.device {
                policy.devices.push(reader.device(table)?);
            }
            for table in document.program {
                policy.programs.push(reader.program(table)?);
            }
        }
        overlap::of_tables(&policy)?;
        Ok(policy)
    }
}

/// The file that is being parsed.
struct Reader<'a> {
    name: Arc<str>,
    text: &'a str,
}

/// The bytes of a value in the text of its file.
type Span = Range<usize>;

impl Reader<'_> {
    fn toml(&self, error: &toml::de::Error) -> PolicyError {
        match error.span() {
            Some(span) => self.wrong(span, error.message()),
            None => FileError::toml(&self.name, self.text, error).into(),
        }
    }

    /// Returns the error of the value at a position, with the name of its key.
    fn wrong(&self, span: Span, message: &str) -> PolicyError {
        let message = match key_at(self.text, span.start) {
            Some(key) => format!("{key}: {message}"),
            None => message.to_owned(),
        };
        FileError::in_line(&self.name, self.text, span.start, &message).into()
    }

    fn origin(&self, span: Span, key: &'static str) -> Origin {
        Origin { file: Arc::clone(&self.name), line: line_of(self.text, span.start), key }
    }

    fn spanned<T>(&self, value: TomlSpanned<T>, key: &'static str) -> Spanned<T> {
        let origin = self.origin(value.span(), key);
        Spanned { value: value.into_inner(), origin }
    }

    fn text<T>(&self, value: Option<TomlSpanned<Text<T>>>, key: &'static str) -> Option<Spanned<T>> {
        let Spanned { value, origin } = self.spanned(value?, key);
        Some(Spanned { value: value.0, origin })
    }

    fn device(&self, table: TomlSpanned<DeviceTable>) -> Result<DeviceRule, PolicyError> {
        let span = table.span();
        let origin = self.origin(span.clone(), "device");
        let table = table.into_inner();
        let selector = Selector {
            name: table.name.map(|text| text.0),
            driver: table.driver.map(|text| text.0),
            address: table.address.map(|text| text.0.0),
            pci: table.pci.map(|text| text.0),
        };
        if selector.is_empty() {
            return Err(self.wrong(span, "it has no criteria: write `name`, `driver`, `address` or `pci`"));
        }
        if let Some(channels) = &table.channels
            && !(1..=MOST_CHANNELS).contains(channels.get_ref())
        {
            return Err(self.wrong(channels.span(), &format!("a device has 1 to {MOST_CHANNELS} receive queues")));
        }
        Ok(DeviceRule {
            origin,
            selector,
            optional: table.optional,
            on_unsupported: table.on_unsupported,
            channels: table.channels.map(|channels| self.spanned(channels, "device.channels")),
            rss: self.text(table.rss, "device.rss"),
            settings: self.settings(table.mode, table.settings, ["device.mode", "device.settings"])?,
            queues: table.queues.into_iter().map(|table| self.queues(table)).collect::<Result<_, _>>()?,
            flows: table.flows.into_iter().map(|table| self.flows(table)).collect::<Result<_, _>>()?,
        })
    }

    fn settings(
        &self,
        mode: Option<TomlSpanned<Text<KernelMode>>>,
        settings: Option<TomlSpanned<NapiTable>>,
        [mode_key, settings_key]: [&'static str; 2],
    ) -> Result<Option<Spanned<Settings>>, PolicyError> {
        let Some(table) = settings else {
            return Ok(self.text(mode, mode_key).map(|mode| mode.with(Settings::Mode(mode.value.0))));
        };
        let span = table.span();
        if mode.is_some() {
            return Err(self.wrong(span, "a mode has settings of its own: write `mode` or `settings`, not both"));
        }
        let napi = table.get_ref().settings();
        let at = |error: &SettingsError| table.get_ref().span_of(error).unwrap_or_else(|| span.clone());
        napi.validate().map_err(|error| self.wrong(at(&error), &error.to_string()))?;
        for (setting, timeout) in
            [("gro-flush-timeout", napi.gro_flush_timeout), ("irq-suspend-timeout", napi.irq_suspend_timeout)]
        {
            if timeout > LONGEST_TIMEOUT {
                return Err(self.wrong(span, &format!("{setting} goes from 0 to {LONGEST_TIMEOUT}")));
            }
        }
        let whole = abey_delivery::ModeSettings { napi, ..Default::default() };
        if let Some(what) = whole.only_ours() {
            return Err(self.wrong(span, &format!("the Linux kernel has no {what}: the datapath and sim worlds have")));
        }
        Ok(Some(Spanned { value: Settings::Napi(napi), origin: self.origin(span, settings_key) }))
    }

    fn queues(&self, table: QueueTable) -> Result<QueueRule, PolicyError> {
        let span = table.queues.span();
        let mode_span = table.mode.as_ref().map(TomlSpanned::span);
        let settings_span = mode_span.or_else(|| table.settings.as_ref().map(TomlSpanned::span));
        let ports = table.ports.map(|ports| self.ports(ports, "device.queues.ports")).transpose()?;
        let rule = QueueRule {
            queues: Spanned {
                origin: self.origin(span.clone(), "device.queues.queues"),
                value: table.queues.into_inner().0,
            },
            settings: self.settings(table.mode, table.settings, ["device.queues.mode", "device.queues.settings"])?,
            ports,
            irq_cpus: self.text(table.irq_cpus, "device.queues.irq-cpus"),
            xps_cpus: self.text(table.xps_cpus, "device.queues.xps-cpus"),
            thread: table.thread.map(|thread| self.thread(thread)).transpose()?,
            tune: table.tune.map(|tune| self.tune(tune)).transpose()?,
        };
        if let (Some(tune), Some(settings)) = (&rule.tune, &rule.settings)
            && !tune.value.allows(&settings.value.napi())
        {
            let message = format!("the initial settings are outside the bounds in line {}", tune.origin.line);
            let span = settings_span.unwrap_or(span);
            return Err(self.wrong(span, &message));
        }
        let sets_anything = rule.settings.is_some()
            || rule.ports.is_some()
            || rule.irq_cpus.is_some()
            || rule.xps_cpus.is_some()
            || rule.thread.is_some()
            || rule.tune.is_some();
        if sets_anything {
            return Ok(rule);
        }
        Err(self.wrong(
            span,
            "it sets nothing for these queues: write `mode`, `settings`, `ports`, `irq-cpus`, `xps-cpus`, `thread` or `tune`",
        ))
    }

    fn flows(&self, table: FlowTable) -> Result<PortRule, PolicyError> {
        let Spanned { value: Text(queues), origin } = self.spanned(table.queues, "device.flows.queues");
        Ok(PortRule {
            ports: self.ports(table.ports, "device.flows.ports")?,
            queues: Spanned { value: queues, origin },
        })
    }

    fn ports(&self, ports: TomlSpanned<Vec<Text<Port>>>, key: &'static str) -> Result<Spanned<Vec<Port>>, PolicyError> {
        if ports.get_ref().is_empty() {
            return Err(
                self.wrong(ports.span(), "no port is named: write one such as \"tcp/11211\", or leave the line out")
            );
        }
        let Spanned { value, origin } = self.spanned(ports, key);
        Ok(Spanned { value: value.into_iter().map(|port| port.0).collect(), origin })
    }

    fn thread(&self, table: TomlSpanned<ThreadTable>) -> Result<Spanned<ThreadRule>, PolicyError> {
        let span = table.span();
        let ThreadTable { cpus, policy, priority, nice } = table.into_inner();
        let wrong_at = [&priority.as_ref().map(TomlSpanned::span), &nice.as_ref().map(TomlSpanned::span)];
        let wrong_at = wrong_at.into_iter().flatten().next().cloned().unwrap_or_else(|| span.clone());
        let figures = priority.is_some() || nice.is_some();
        let policy = policy.map(|text| text.0).or(figures.then_some(SchedulingPolicy::Other));
        let figure = (priority.map_or(0, TomlSpanned::into_inner), nice.map_or(0, TomlSpanned::into_inner));
        let scheduling = policy.map(|policy| Scheduling::new(policy, figure.0, figure.1)).transpose();
        let scheduling = scheduling.map_err(|error| self.wrong(wrong_at, &error.to_string()))?;
        let cpus = cpus.map(|cpus| cpus.0);
        if cpus.is_none() && scheduling.is_none() {
            return Err(self.wrong(span, "it sets nothing for the thread: write `cpus`, `policy` or both"));
        }
        Ok(Spanned { value: ThreadRule { cpus, scheduling }, origin: self.origin(span, "device.queues.thread") })
    }
}
