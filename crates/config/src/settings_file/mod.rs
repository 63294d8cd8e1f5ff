//! Settings files: the settings of one server as a small TOML document with the names that Linux uses.
//!
//! `abey plan` writes them; `abey run`, `abey set` and a scenario read them. Names and the text of values are those of
//! `abey-delivery`. The tables here add the positions that error messages name.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;

use abey_delivery::{
    EpollBusyPoll, Hold, ModeSettings, Nanos, NapiSetting, NapiSettings, PollContext, SettingValue, SettingsError,
};
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use crate::error::{FileError, read_text};
use crate::time::{Time, time};

/// The content of a settings file.
///
/// ```
/// use abey_config::SettingsFile;
///
/// let text = r#"
///     [napi]
///     defer-hard-irqs = 100
///     gro-flush-timeout = "37us"
///     irq-suspend-timeout = "20ms"
///
///     [epoll]
///     busy-poll = "0us"
///     budget = 64
///     prefer = true
/// "#;
/// let file = SettingsFile::parse("mine.toml", text)?;
/// assert_eq!(file.settings.napi.gro_flush_timeout.as_micros(), 37);
/// assert_eq!(SettingsFile::parse("again", &SettingsFile::text(&file.settings, ""))?.settings, file.settings);
/// # Ok::<(), abey_config::FileError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsFile {
    /// The name of the file, for messages.
    pub name: String,
    /// The settings; they are valid.
    pub settings: ModeSettings,
}

impl SettingsFile {
    /// Parses settings; `name` is the file's name, for messages.
    ///
    /// # Errors
    /// The first line that is not TOML, or has a key or a value that is not allowed.
    pub fn parse(name: &str, text: &str) -> Result<Self, FileError> {
        let document: Document = toml::from_str(text).map_err(|error| FileError::toml(name, text, &error))?;
        let settings = document.settings();
        settings.validate().map_err(|error| {
            let at = document.span_of(&error).map_or(0, |span| span.start);
            FileError::in_line(name, text, at, &error.to_string())
        })?;
        Ok(Self { name: name.to_owned(), settings })
    }

    /// Reads settings from a file.
    ///
    /// # Errors
    /// As [`Self::parse`], and if the file cannot be read.
    pub fn load(path: &Path) -> Result<Self, FileError> {
        Self::parse(&path.display().to_string(), &read_text(path)?)
    }

    /// Returns the text of a settings file; every line of `header` becomes a comment at its top.
    pub fn text(settings: &ModeSettings, header: &str) -> String {
        let mut out: String = header.lines().map(|line| format!("# {line}").trim_end().to_owned() + "\n").collect();
        if !header.is_empty() {
            out.push('\n');
        }
        write_settings(&mut out, settings).expect("a string accepts any text");
        out
    }
}

fn write_settings(out: &mut String, settings: &ModeSettings) -> std::fmt::Result {
    let ModeSettings { napi, epoll, max_wait, socket_busy_poll } = settings;
    let before = out.len();
    if let Some(span) = max_wait {
        writeln!(out, "max-wait = \"{span}\"")?;
    }
    if let Some(span) = socket_busy_poll {
        writeln!(out, "socket-busy-poll = \"{span}\"")?;
    }
    if out.len() > before {
        out.push('\n');
    }
    writeln!(out, "[napi]\n{}", napi_lines(napi).join("\n"))?;
    if let Some(EpollBusyPoll { usecs, budget, prefer }) = epoll {
        writeln!(out, "\n[epoll]\nbusy-poll = \"{usecs}us\"\nbudget = {budget}\nprefer = {prefer}")?;
    }
    Ok(())
}

/// Returns all settings of a NAPI instance as the lines of a `[napi]` table. Without hold it has no line for it.
pub fn napi_lines(napi: &NapiSettings) -> Vec<String> {
    NapiSetting::ALL.into_iter().filter_map(|setting| toml_line(setting.name(), setting.get(napi))).collect()
}

fn toml_line(name: &str, value: SettingValue) -> Option<String> {
    Some(match value {
        SettingValue::Count(count) => format!("{name} = {count}"),
        // A time in a file has a unit, zero as well.
        SettingValue::Time(Nanos::ZERO) => format!("{name} = \"0us\""),
        SettingValue::Hold(None) => return None,
        SettingValue::Time(_) | SettingValue::Context(_) | SettingValue::Hold(Some(_)) => {
            format!("{name} = \"{value}\"")
        }
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Document {
    napi: NapiTable,
    epoll: Option<EpollTable>,
    #[serde(default, deserialize_with = "above_zero")]
    max_wait: Option<Nanos>,
    #[serde(default, deserialize_with = "above_zero")]
    socket_busy_poll: Option<Nanos>,
}

/// The settings of a NAPI instance as a table. A missing key stands for the kernel's default, which is zero.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct NapiTable {
    defer_hard_irqs: Option<Spanned<u32>>,
    #[serde(default, deserialize_with = "time")]
    gro_flush_timeout: Nanos,
    irq_suspend_timeout: Option<Spanned<Time>>,
    #[serde(default)]
    threaded: PollContext,
    #[serde(default, deserialize_with = "hold")]
    hold: Option<Hold>,
}

/// The busy-poll parameters of an epoll context as a table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct EpollTable {
    #[serde(deserialize_with = "micros")]
    busy_poll: u32,
    budget: Spanned<u16>,
    prefer: bool,
}

impl NapiTable {
    /// Returns the settings, which [`NapiSettings::validate`] has not checked yet.
    pub fn settings(&self) -> NapiSettings {
        NapiSettings {
            defer_hard_irqs: self.defer_hard_irqs.as_ref().map_or(0, |count| *count.get_ref()),
            gro_flush_timeout: self.gro_flush_timeout,
            irq_suspend_timeout: self.irq_suspend_timeout.as_ref().map_or(Nanos::ZERO, |time| time.get_ref().0),
            context: self.threaded,
            hold: self.hold,
        }
    }

    /// Returns the position of the value that breaks a rule.
    pub fn span_of(&self, error: &SettingsError) -> Option<Range<usize>> {
        match error {
            SettingsError::DeferOutOfRange(_) => self.defer_hard_irqs.as_ref().map(Spanned::span),
            _ => self.irq_suspend_timeout.as_ref().map(Spanned::span),
        }
    }
}

impl EpollTable {
    /// Returns the parameters, which [`EpollBusyPoll::validate`] has not checked yet.
    pub fn parameters(&self) -> EpollBusyPoll {
        EpollBusyPoll { usecs: self.busy_poll, budget: *self.budget.get_ref(), prefer: self.prefer }
    }

    /// Returns the position of the budget.
    pub fn budget_span(&self) -> Range<usize> {
        self.budget.span()
    }
}

impl Document {
    fn settings(&self) -> ModeSettings {
        let Self { napi, epoll, max_wait, socket_busy_poll } = self;
        ModeSettings {
            napi: napi.settings(),
            epoll: epoll.as_ref().map(EpollTable::parameters),
            max_wait: *max_wait,
            socket_busy_poll: *socket_busy_poll,
        }
    }

    /// Returns the position of the value that breaks a rule.
    fn span_of(&self, error: &SettingsError) -> Option<Range<usize>> {
        match error {
            SettingsError::ZeroBudget => self.epoll.as_ref().map(EpollTable::budget_span),
            _ => self.napi.span_of(error),
        }
    }
}

fn above_zero<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Nanos>, D::Error> {
    let span = time(from)?;
    if span.is_zero() {
        return Err(D::Error::custom("the time must be above 0: leave the line out instead"));
    }
    Ok(Some(span))
}

fn micros<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    let span = time(from)?;
    let whole = span.as_nanos().is_multiple_of(1_000).then(|| span.as_micros());
    whole.and_then(|micros| i32::try_from(micros).ok()).map(i32::unsigned_abs).ok_or_else(|| {
        let max = i32::MAX;
        D::Error::custom(format!("a busy-poll time is a whole number of microseconds from 0us to {max}us"))
    })
}

fn hold<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Hold>, D::Error> {
    String::deserialize(from)?.parse().map(Some).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests;
