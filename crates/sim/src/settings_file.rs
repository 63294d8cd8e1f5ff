//! Settings files: the settings of one server, as a small TOML document with the names that Linux gives them.
//!
//! `abey plan` writes them; `abey run`, `abey set` and a scenario read them.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;

use abey_delivery::{EpollBusyPoll, Hold, ModeSettings, Nanos, NapiSettings, PollContext, SettingsError};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use crate::input::{InputError, read};

/// A settings file, read.
///
/// ```
/// use abey_sim::SettingsFile;
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
/// # Ok::<(), abey_sim::InputError>(())
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
    pub fn parse(name: &str, text: &str) -> Result<Self, InputError> {
        let document: Document = toml::from_str(text).map_err(|error| InputError::parse(name, text, &error))?;
        let settings = document.settings();
        settings.validate().map_err(|error| {
            let at = document.span_of(&error).map_or(0, |span| span.start);
            InputError::in_line(name, text, at, &error.to_string())
        })?;
        Ok(Self { name: name.to_owned(), settings })
    }

    /// Reads settings from a file.
    ///
    /// # Errors
    /// As [`Self::parse`], and if the file cannot be read.
    pub fn load(path: &Path) -> Result<Self, InputError> {
        Self::parse(&path.display().to_string(), &read(path)?)
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
    let napi = &settings.napi;
    writeln!(out, "[napi]\ndefer-hard-irqs = {}", napi.defer_hard_irqs)?;
    writeln!(out, "gro-flush-timeout = \"{}\"", in_unit(napi.gro_flush_timeout))?;
    writeln!(out, "irq-suspend-timeout = \"{}\"", in_unit(napi.irq_suspend_timeout))?;
    writeln!(out, "threaded = \"{}\"", threaded_name(napi.context))?;
    match napi.hold {
        Some(Hold::Spin(span)) => writeln!(out, "hold = \"{}\"", in_unit(span))?,
        Some(Hold::Timer(span)) => writeln!(out, "hold = \"{}-timer\"", in_unit(span))?,
        None => {}
    }
    if let Some(EpollBusyPoll { usecs, budget, prefer }) = settings.epoll {
        writeln!(out, "\n[epoll]\nbusy-poll = \"{usecs}us\"\nbudget = {budget}\nprefer = {prefer}")?;
    }
    Ok(())
}

/// No time at all has its unit too.
fn in_unit(span: Nanos) -> String {
    if span.is_zero() { "0us".to_owned() } else { span.to_string() }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Document {
    napi: Napi,
    epoll: Option<Epoll>,
    #[serde(default, deserialize_with = "above_zero")]
    max_wait: Option<Nanos>,
    #[serde(default, deserialize_with = "above_zero")]
    socket_busy_poll: Option<Nanos>,
}

/// What is not named is the kernel's default: nothing.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Napi {
    defer_hard_irqs: Option<Spanned<u32>>,
    #[serde(default, deserialize_with = "time")]
    gro_flush_timeout: Nanos,
    irq_suspend_timeout: Option<Spanned<Time>>,
    #[serde(default)]
    threaded: Threaded,
    #[serde(default, deserialize_with = "hold")]
    hold: Option<Hold>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Epoll {
    #[serde(deserialize_with = "micros")]
    busy_poll: u32,
    budget: Spanned<u16>,
    prefer: bool,
}

#[derive(Clone, Copy, Default, Deserialize)]
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

impl Document {
    fn settings(&self) -> ModeSettings {
        let napi = &self.napi;
        ModeSettings {
            napi: NapiSettings {
                defer_hard_irqs: napi.defer_hard_irqs.as_ref().map_or(0, |count| *count.get_ref()),
                gro_flush_timeout: napi.gro_flush_timeout,
                irq_suspend_timeout: napi.irq_suspend_timeout.as_ref().map_or(Nanos::ZERO, |time| time.get_ref().0),
                context: match napi.threaded {
                    Threaded::No => PollContext::Softirq,
                    Threaded::Yes => PollContext::Thread,
                    Threaded::Busy => PollContext::BusyThread,
                    Threaded::Workqueue => PollContext::Workqueue,
                },
                hold: napi.hold,
            },
            epoll: self.epoll.as_ref().map(|epoll| EpollBusyPoll {
                usecs: epoll.busy_poll,
                budget: *epoll.budget.get_ref(),
                prefer: epoll.prefer,
            }),
            max_wait: self.max_wait,
            socket_busy_poll: self.socket_busy_poll,
        }
    }

    /// The value that breaks a rule about several.
    fn span_of(&self, error: &SettingsError) -> Option<Range<usize>> {
        match error {
            SettingsError::DeferOutOfRange(_) => self.napi.defer_hard_irqs.as_ref().map(Spanned::span),
            SettingsError::ZeroBudget => self.epoll.as_ref().map(|epoll| epoll.budget.span()),
            _ => self.napi.irq_suspend_timeout.as_ref().map(Spanned::span),
        }
    }
}

/// A time with its unit, as a string.
struct Time(Nanos);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Time;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a time with its unit in quotes, such as \"20us\" or \"1.5ms\"")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Time, E> {
                text.parse().map(Time).map_err(E::custom)
            }
        }
        from.deserialize_str(Text)
    }
}

fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Nanos, D::Error> {
    Time::deserialize(from).map(|time| time.0)
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
