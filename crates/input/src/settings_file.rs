//! Settings files: the settings of one server, as a small TOML document with the names that Linux gives them.
//!
//! `abey plan` writes them; `abey run`, `abey set` and a scenario read them.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;

use abey_delivery::{EpollBusyPoll, Hold, ModeSettings, Nanos, NapiSettings, PollContext, SettingsError};
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use crate::error::{FileError, read_text};
use crate::time::{Time, time};

/// A settings file, read.
///
/// ```
/// use abey_input::SettingsFile;
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
/// # Ok::<(), abey_input::FileError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsFile {
    /// What it was read from, for messages.
    pub name: String,
    /// The settings; they make sense together.
    pub settings: ModeSettings,
}

impl SettingsFile {
    /// Reads settings from their text; `name` is for messages.
    ///
    /// # Errors
    /// The first line that is no TOML, or has a key or a value that is not allowed.
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

    /// The text of a settings file; every line of `header` becomes a comment at its top.
    pub fn text(settings: &ModeSettings, header: &str) -> String {
        let mut out: String = header.lines().map(|line| format!("# {line}").trim_end().to_owned() + "\n").collect();
        if !header.is_empty() {
            out.push('\n');
        }
        write_settings(&mut out, settings).expect("memory takes everything");
        out
    }
}

fn write_settings(out: &mut String, settings: &ModeSettings) -> std::fmt::Result {
    let before = out.len();
    if let Some(span) = settings.max_wait {
        writeln!(out, "max-wait = \"{span}\"")?;
    }
    if let Some(span) = settings.socket_busy_poll {
        writeln!(out, "socket-busy-poll = \"{span}\"")?;
    }
    if out.len() > before {
        out.push('\n');
    }
    writeln!(out, "[napi]\n{}", napi_lines(&settings.napi).join("\n"))?;
    if let Some(EpollBusyPoll { usecs, budget, prefer }) = settings.epoll {
        writeln!(out, "\n[epoll]\nbusy-poll = \"{usecs}us\"\nbudget = {budget}\nprefer = {prefer}")?;
    }
    Ok(())
}

/// The settings of a NAPI instance as the lines of a `[napi]` table, all of them.
pub fn napi_lines(napi: &NapiSettings) -> Vec<String> {
    let mut lines = vec![
        format!("defer-hard-irqs = {}", napi.defer_hard_irqs),
        format!("gro-flush-timeout = \"{}\"", in_unit(napi.gro_flush_timeout)),
        format!("irq-suspend-timeout = \"{}\"", in_unit(napi.irq_suspend_timeout)),
        format!("threaded = \"{}\"", threaded_name(napi.context)),
    ];
    match napi.hold {
        Some(Hold::Spin(span)) => lines.push(format!("hold = \"{}\"", in_unit(span))),
        Some(Hold::Timer(span)) => lines.push(format!("hold = \"{}-timer\"", in_unit(span))),
        None => {}
    }
    lines
}

/// No time at all has its unit too.
fn in_unit(span: Nanos) -> String {
    if span.is_zero() { "0us".to_owned() } else { span.to_string() }
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

/// The settings of a NAPI instance as a table. What is not named is the kernel's default: nothing.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct NapiTable {
    defer_hard_irqs: Option<Spanned<u32>>,
    #[serde(default, deserialize_with = "time")]
    gro_flush_timeout: Nanos,
    irq_suspend_timeout: Option<Spanned<Time>>,
    #[serde(default)]
    threaded: Threaded,
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

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Threaded {
    #[default]
    No,
    Yes,
    Busy,
    Workqueue,
}

fn threaded_name(context: PollContext) -> &'static str {
    match context {
        PollContext::Softirq => "no",
        PollContext::Thread => "yes",
        PollContext::BusyThread => "busy",
        PollContext::Workqueue => "workqueue",
    }
}

impl NapiTable {
    /// The settings; whether they make sense together is for [`NapiSettings::validate`].
    pub fn settings(&self) -> NapiSettings {
        NapiSettings {
            defer_hard_irqs: self.defer_hard_irqs.as_ref().map_or(0, |count| *count.get_ref()),
            gro_flush_timeout: self.gro_flush_timeout,
            irq_suspend_timeout: self.irq_suspend_timeout.as_ref().map_or(Nanos::ZERO, |time| time.get_ref().0),
            context: match self.threaded {
                Threaded::No => PollContext::Softirq,
                Threaded::Yes => PollContext::Thread,
                Threaded::Busy => PollContext::BusyThread,
                Threaded::Workqueue => PollContext::Workqueue,
            },
            hold: self.hold,
        }
    }

    /// Where the value is that breaks a rule about several.
    pub fn span_of(&self, error: &SettingsError) -> Option<Range<usize>> {
        match error {
            SettingsError::DeferOutOfRange(_) => self.defer_hard_irqs.as_ref().map(Spanned::span),
            _ => self.irq_suspend_timeout.as_ref().map(Spanned::span),
        }
    }
}

impl EpollTable {
    /// The parameters; whether they are in range is for [`EpollBusyPoll::validate`].
    pub fn parameters(&self) -> EpollBusyPoll {
        EpollBusyPoll { usecs: self.busy_poll, budget: *self.budget.get_ref(), prefer: self.prefer }
    }

    /// Where the budget is.
    pub fn budget_span(&self) -> Range<usize> {
        self.budget.span()
    }
}

impl Document {
    fn settings(&self) -> ModeSettings {
        ModeSettings {
            napi: self.napi.settings(),
            epoll: self.epoll.as_ref().map(EpollTable::parameters),
            max_wait: self.max_wait,
            socket_busy_poll: self.socket_busy_poll,
        }
    }

    /// The value that breaks a rule about several.
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
    let text = String::deserialize(from)?;
    let (span, make): (_, fn(Nanos) -> Hold) = match text.strip_suffix("-timer") {
        Some(span) => (span, Hold::Timer),
        None => (text.as_str(), Hold::Spin),
    };
    let span: Nanos = span.parse().map_err(D::Error::custom)?;
    if span.is_zero() {
        return Err(D::Error::custom("write the time to stay in poll mode, such as \"50us\" or \"50us-timer\""));
    }
    Ok(Some(make(span)))
}

#[cfg(test)]
mod tests;
