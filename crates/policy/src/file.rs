//! How the file becomes a [`Policy`].

mod program;
mod tables;
mod tune;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use abey_delivery::SettingsError;
use abey_input::{FileError, NapiTable, key_at, line_of, read_text};
use abey_linux::cpu::{Scheduling, SchedulingPolicy};
use abey_linux::napi::LONGEST_TIMEOUT;
use toml::Spanned;

use self::tables::{DeviceTable, Document, FlowTable, QueueTable, ThreadTable};
use crate::error::PolicyError;
use crate::model::{DeviceRule, FlowWish, Policy, QueueRule, Settings, ThreadWish};
use crate::overlap;
use crate::said::{Origin, Said};
use crate::select::Selector;
use crate::value::{KernelMode, Port, Text};

/// The version of the file's form that this program reads.
const VERSION: u32 = 1;

/// The most receive queues that can be asked for.
const MOST_CHANNELS: u32 = 4_096;

impl Policy {
    /// Reads a policy of one file from its text; `name` is for messages.
    ///
    /// # Errors
    /// As [`Policy::parse_all`].
    pub fn parse(name: &str, text: &str) -> Result<Self, PolicyError> {
        Self::parse_all([(name, text)])
    }

    /// Reads a policy of several files, given as names and texts, in their order.
    ///
    /// # Errors
    /// The first place that is no TOML, or has a key or a value that is not allowed, and two places that speak of the same
    /// thing wherever the devices are.
    pub fn parse_all<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, PolicyError> {
        let mut policy = Self::default();
        let mut said: Option<Origin> = None;
        for (name, text) in files {
            let reader = Reader { name: name.into(), text };
            let document: Document = toml::from_str(text).map_err(|error| reader.toml(&error))?;
            if *document.version.get_ref() != VERSION {
                let message = format!("this version of Abey reads `version = {VERSION}` only");
                return Err(reader.wrong(document.version.span(), &message));
            }
            if let Some(choice) = &document.on_unsupported {
                let origin = reader.origin(choice.span(), "on-unsupported");
                if let Some(first) = said.replace(origin.clone()) {
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

    /// Reads a policy of several files.
    ///
    /// # Errors
    /// As [`Policy::parse_all`], and a file that cannot be read.
    pub fn load(paths: &[impl AsRef<Path>]) -> Result<Self, PolicyError> {
        let read = |path: &Path| Ok::<_, FileError>((path.display().to_string(), read_text(path)?));
        let texts = paths.iter().map(|path| read(path.as_ref())).collect::<Result<Vec<_>, _>>()?;
        Self::parse_all(texts.iter().map(|(name, text)| (name.as_str(), text.as_str())))
    }
}

/// One file that is being read.
struct Reader<'a> {
    name: Arc<str>,
    text: &'a str,
}

type Place = Range<usize>;

impl Reader<'_> {
    fn toml(&self, error: &toml::de::Error) -> PolicyError {
        match error.span() {
            Some(span) => self.wrong(span, error.message()),
            None => FileError::toml(&self.name, self.text, error).into(),
        }
    }

    /// What is wrong with what stands here, after the name of its key.
    fn wrong(&self, place: Place, message: &str) -> PolicyError {
        let message = match key_at(self.text, place.start) {
            Some(key) => format!("{key}: {message}"),
            None => message.to_owned(),
        };
        FileError::in_line(&self.name, self.text, place.start, &message).into()
    }

    fn origin(&self, place: Place, key: &'static str) -> Origin {
        Origin { file: Arc::clone(&self.name), line: line_of(self.text, place.start), key }
    }

    fn said<T>(&self, value: Spanned<T>, key: &'static str) -> Said<T> {
        let origin = self.origin(value.span(), key);
        Said { value: value.into_inner(), origin }
    }

    fn text<T>(&self, value: Option<Spanned<Text<T>>>, key: &'static str) -> Option<Said<T>> {
        let Said { value, origin } = self.said(value?, key);
        Some(Said { value: value.0, origin })
    }

    fn device(&self, table: Spanned<DeviceTable>) -> Result<DeviceRule, PolicyError> {
        let place = table.span();
        let origin = self.origin(place.clone(), "device");
        let table = table.into_inner();
        let selector = Selector {
            name: table.name.map(|text| text.0),
            driver: table.driver.map(|text| text.0),
            address: table.address.map(|text| text.0.0),
            pci: table.pci.map(|text| text.0),
        };
        if selector.is_empty() {
            return Err(self.wrong(place, "it says of no device: write `name`, `driver`, `address` or `pci`"));
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
            channels: table.channels.map(|channels| self.said(channels, "device.channels")),
            rss: self.text(table.rss, "device.rss"),
            settings: self.settings(table.mode, table.settings, ["device.mode", "device.settings"])?,
            queues: table.queues.into_iter().map(|table| self.queues(table)).collect::<Result<_, _>>()?,
            flows: table.flows.into_iter().map(|table| self.flows(table)).collect::<Result<_, _>>()?,
        })
    }

    fn settings(
        &self,
        mode: Option<Spanned<Text<KernelMode>>>,
        settings: Option<Spanned<NapiTable>>,
        [mode_key, settings_key]: [&'static str; 2],
    ) -> Result<Option<Said<Settings>>, PolicyError> {
        let Some(table) = settings else {
            return Ok(self.text(mode, mode_key).map(|mode| mode.with(Settings::Mode(mode.value.0))));
        };
        let place = table.span();
        if mode.is_some() {
            return Err(self.wrong(place, "a mode has settings of its own: write `mode` or `settings`, not both"));
        }
        let napi = table.get_ref().settings();
        let at = |error: &SettingsError| table.get_ref().span_of(error).unwrap_or_else(|| place.clone());
        napi.validate().map_err(|error| self.wrong(at(&error), &error.to_string()))?;
        for (setting, timeout) in
            [("gro-flush-timeout", napi.gro_flush_timeout), ("irq-suspend-timeout", napi.irq_suspend_timeout)]
        {
            if timeout > LONGEST_TIMEOUT {
                return Err(self.wrong(place, &format!("{setting} goes from 0 to {LONGEST_TIMEOUT}")));
            }
        }
        let whole = abey_delivery::ModeSettings { napi, ..Default::default() };
        if let Some(what) = whole.only_ours() {
            return Err(self.wrong(place, &format!("the Linux kernel has no {what}: the datapath and sim worlds have")));
        }
        Ok(Some(Said { value: Settings::Napi(napi), origin: self.origin(place, settings_key) }))
    }

    fn queues(&self, table: QueueTable) -> Result<QueueRule, PolicyError> {
        let place = table.queues.span();
        let mode_place = table.mode.as_ref().map(Spanned::span);
        let settings_place = mode_place.or_else(|| table.settings.as_ref().map(Spanned::span));
        let ports = table.ports.map(|ports| self.ports(ports, "device.queues.ports")).transpose()?;
        let rule = QueueRule {
            queues: Said {
                origin: self.origin(place.clone(), "device.queues.queues"),
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
            let message = format!("the settings to begin with are outside the bounds in line {}", tune.origin.line);
            let place = settings_place.unwrap_or(place);
            return Err(self.wrong(place, &message));
        }
        let says_something = rule.settings.is_some()
            || rule.ports.is_some()
            || rule.irq_cpus.is_some()
            || rule.xps_cpus.is_some()
            || rule.thread.is_some()
            || rule.tune.is_some();
        if says_something {
            return Ok(rule);
        }
        Err(self.wrong(
            place,
            "nothing is said of these queues: write `mode`, `settings`, `ports`, `irq-cpus`, `xps-cpus`, `thread` or `tune`",
        ))
    }

    fn flows(&self, table: FlowTable) -> Result<FlowWish, PolicyError> {
        let Said { value: Text(queues), origin } = self.said(table.queues, "device.flows.queues");
        Ok(FlowWish { ports: self.ports(table.ports, "device.flows.ports")?, queues: Said { value: queues, origin } })
    }

    fn ports(&self, ports: Spanned<Vec<Text<Port>>>, key: &'static str) -> Result<Said<Vec<Port>>, PolicyError> {
        if ports.get_ref().is_empty() {
            return Err(
                self.wrong(ports.span(), "no port is named: write one such as \"tcp/11211\", or leave the line out")
            );
        }
        let Said { value, origin } = self.said(ports, key);
        Ok(Said { value: value.into_iter().map(|port| port.0).collect(), origin })
    }

    fn thread(&self, table: Spanned<ThreadTable>) -> Result<Said<ThreadWish>, PolicyError> {
        let place = table.span();
        let ThreadTable { cpus, policy, priority, nice } = table.into_inner();
        let wrong_at = [&priority.as_ref().map(Spanned::span), &nice.as_ref().map(Spanned::span)];
        let wrong_at = wrong_at.into_iter().flatten().next().cloned().unwrap_or_else(|| place.clone());
        let figures = priority.is_some() || nice.is_some();
        let policy = policy.map(|text| text.0).or(figures.then_some(SchedulingPolicy::Other));
        let figure = (priority.map_or(0, Spanned::into_inner), nice.map_or(0, Spanned::into_inner));
        let scheduling = policy.map(|policy| Scheduling::new(policy, figure.0, figure.1)).transpose();
        let scheduling = scheduling.map_err(|error| self.wrong(wrong_at, &error.to_string()))?;
        let cpus = cpus.map(|cpus| cpus.0);
        if cpus.is_none() && scheduling.is_none() {
            return Err(self.wrong(place, "nothing is said of the thread: write `cpus`, `policy` or both"));
        }
        Ok(Said { value: ThreadWish { cpus, scheduling }, origin: self.origin(place, "device.queues.thread") })
    }
}
