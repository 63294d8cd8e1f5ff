//! The columns: title, width, cell text and sort order.

use std::cmp::Ordering;

use crate::Counter;
use crate::rates::Rates;

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// The device or NIC.
    Device,
    /// The receive queues.
    Queue,
    /// The NAPI ID.
    Napi,
    /// The delivery mode.
    Mode,
    /// Polls in softirq.
    Softirq,
    /// Polls for the deferral timer.
    Timer,
    /// Busy polls.
    Busy,
    /// Polls by the instance's thread.
    Thread,
    /// Packets.
    Packets,
    /// Packets per poll that found any.
    Batch,
    /// Suspensions.
    Suspend,
    /// Interrupts.
    Irq,
    /// CPU time.
    Cpu,
}

/// The text of a cell without a value.
const NONE: &str = "-";

impl Column {
    /// All columns, from left to right.
    pub const ALL: [Self; 13] = [
        Self::Device,
        Self::Queue,
        Self::Napi,
        Self::Mode,
        Self::Softirq,
        Self::Timer,
        Self::Busy,
        Self::Thread,
        Self::Packets,
        Self::Batch,
        Self::Suspend,
        Self::Irq,
        Self::Cpu,
    ];

    /// Returns the column's name, as `--sort` takes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Queue => "queue",
            Self::Napi => "napi",
            Self::Mode => "mode",
            Self::Softirq => "softirq",
            Self::Timer => "timer",
            Self::Busy => "busy",
            Self::Thread => "thread",
            Self::Packets => "packets",
            Self::Batch => "batch",
            Self::Suspend => "suspend",
            Self::Irq => "irq",
            Self::Cpu => "cpu",
        }
    }

    /// Returns the column of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|column| column.name() == name)
    }

    /// Returns the heading.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Device => "DEVICE",
            Self::Queue => "Q",
            Self::Napi => "NAPI",
            Self::Mode => "MODE",
            Self::Softirq => "SOFT/s",
            Self::Timer => "TIM/s",
            Self::Busy => "BUSY/s",
            Self::Thread => "THR/s",
            Self::Packets => "PKT/s",
            Self::Batch => "BATCH",
            Self::Suspend => "SUSP/s",
            Self::Irq => "IRQ/s",
            Self::Cpu => "CPU%",
        }
    }

    /// Returns the minimum width.
    #[must_use]
    pub const fn width(self) -> usize {
        match self {
            Self::Device | Self::Mode => 9,
            Self::Queue => 3,
            Self::Softirq | Self::Busy | Self::Suspend => 6,
            _ => 5,
        }
    }

    /// Returns whether the column holds text, which is aligned to the left and sorted in ascending order.
    #[must_use]
    pub const fn is_text(self) -> bool {
        matches!(self, Self::Device | Self::Mode)
    }

    /// Returns the number in a row's cell, also where the number is an identifier.
    #[must_use]
    pub fn value(self, rates: &Rates) -> Option<f64> {
        match self {
            Self::Device | Self::Mode => None,
            Self::Queue => rates.instance.queues.first().map(|queue| f64::from(*queue)),
            Self::Napi => Some(f64::from(rates.instance.key.napi)),
            Self::Softirq => rates.per_second(&[Counter::SoftirqPolls]),
            Self::Timer => rates.per_second(&[Counter::TimerPolls]),
            Self::Busy => rates.per_second(&[Counter::BusyPolls]),
            Self::Thread => rates.per_second(&[Counter::ThreadPolls]),
            Self::Packets => rates.per_second(&[Counter::Packets]),
            Self::Batch => rates.batch(),
            Self::Suspend => rates.per_second(&[Counter::Suspensions]),
            Self::Irq => rates.per_second(&[Counter::Interrupts]),
            Self::Cpu => rates.cpu_percent(),
        }
    }

    /// Returns the text of a row's cell.
    #[must_use]
    pub fn text(self, rates: &Rates) -> String {
        match self {
            Self::Device => rates.instance.device.clone(),
            Self::Mode => rates.instance.mode.clone(),
            Self::Queue => rates.instance.queue_list(),
            Self::Napi => rates.instance.key.napi.to_string(),
            Self::Batch | Self::Cpu => self.value(rates).map_or_else(|| NONE.to_owned(), |value| format!("{value:.1}")),
            _ => self.value(rates).map_or_else(|| NONE.to_owned(), short),
        }
    }

    /// Compares two rows: names and identifiers in ascending order, rates in descending order, absent values last.
    #[must_use]
    pub fn compare(self, one: &Rates, other: &Rates) -> Ordering {
        let is_identifier = matches!(self, Self::Queue | Self::Napi);
        match self {
            Self::Device => one.instance.device.cmp(&other.instance.device),
            Self::Mode => one.instance.mode.cmp(&other.instance.mode),
            _ => match (self.value(one), self.value(other)) {
                (Some(one), Some(other)) if is_identifier => one.total_cmp(&other),
                (Some(one), Some(other)) => other.total_cmp(&one),
                (one, other) => other.is_some().cmp(&one.is_some()),
            },
        }
    }
}

/// Formats a rate in at most five characters.
fn short(value: f64) -> String {
    match value {
        value if value < 9_999.5 => format!("{value:.0}"),
        value if value < 99_950.0 => format!("{:.1}k", value / 1e3),
        value if value < 999_500.0 => format!("{:.0}k", value / 1e3),
        value if value < 99_950_000.0 => format!("{:.1}M", value / 1e6),
        value => format!("{:.0}M", value / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_take_at_most_five_characters() {
        let rates = [0.0, 12.4, 9_999.0, 10_000.0, 99_949.0, 99_951.0, 999_499.0, 1_000_000.0, 250_000_000.0];
        let shown = ["0", "12", "9999", "10.0k", "99.9k", "100k", "999k", "1.0M", "250M"];
        for (rate, text) in rates.into_iter().zip(shown) {
            assert_eq!(short(rate), text);
            assert!(text.len() <= 5);
        }
    }
}
