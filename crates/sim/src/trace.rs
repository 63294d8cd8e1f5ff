//! A timeline of a run, in the Chrome trace format that Perfetto (ui.perfetto.dev) opens.
//!
//! One track per CPU and level (hardirq, softirq, thread, idle), so that one sees who runs on top of whom; and one per
//! queue that says whether its interrupt is unmasked, masked, or suspended.

use std::io::{self, Write};

/// A timeline. Times are nanoseconds of virtual time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    tracks: Vec<String>,
    slices: Vec<Slice>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Slice {
    track: u32,
    name: &'static str,
    from: u64,
    to: u64,
}

impl Trace {
    pub(crate) fn add_track(&mut self, name: String) -> u32 {
        self.tracks.push(name);
        self.tracks.len() as u32 - 1
    }

    pub(crate) fn add(&mut self, track: u32, name: &'static str, from: u64, to: u64) {
        if to > from {
            self.slices.push(Slice { track, name, from, to });
        }
    }

    /// Whether nothing happened.
    pub fn is_empty(&self) -> bool {
        self.slices.is_empty()
    }

    /// Writes the timeline as one JSON document.
    ///
    /// # Errors
    /// If writing fails.
    pub fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        write!(out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        write!(out, "\n{{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{{\"name\":\"server\"}}}}")?;
        for (index, name) in self.tracks.iter().enumerate() {
            for (key, text) in [
                ("thread_name", format!("{{\"name\":\"{name}\"}}")),
                ("thread_sort_index", format!("{{\"sort_index\":{index}}}")),
            ] {
                write!(out, ",\n{{\"ph\":\"M\",\"pid\":1,\"tid\":{},\"name\":\"{key}\",\"args\":{text}}}", index + 1)?;
            }
        }
        for Slice { track, name, from, to } in &self.slices {
            write!(
                out,
                ",\n{{\"ph\":\"X\",\"pid\":1,\"tid\":{},\"name\":\"{name}\",\"ts\":{},\"dur\":{}}}",
                track + 1,
                Micros(*from),
                Micros(to - from)
            )?;
        }
        writeln!(out, "\n]}}")
    }
}

/// Nanoseconds, shown in microseconds.
struct Micros(u64);

impl std::fmt::Display for Micros {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1_000, self.0 % 1_000)
    }
}
