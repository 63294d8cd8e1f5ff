//! The columns: what they are called, what stands in them, and in which order they put rows.

use std::cmp::Ordering;

use abey_observe::Counter;
use abey_observe::rates::Rates;

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Column {
    Device,
    Queue,
    Napi,
    Mode,
    Softirq,
    Timer,
    Busy,
    Thread,
    Packets,
    Batch,
    Suspend,
    Irq,
    Cpu,
}

/// What stands in a cell that has nothing to say.
const NONE: &str = "-";

impl Column {
    pub(super) const ALL: [Self; 13] = [
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

    pub(super) const fn title(self) -> &'static str {
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

    /// How wide it is at least.
    pub(super) const fn width(self) -> usize {
        match self {
            Self::Device | Self::Mode => 9,
            Self::Queue => 3,
            Self::Softirq | Self::Busy | Self::Suspend => 6,
            _ => 5,
        }
    }

    /// Whether it has text, which stands at the left and ascends.
    pub(super) const fn is_text(self) -> bool {
        matches!(self, Self::Device | Self::Mode)
    }

    /// The figure of a row; of a number that names something, too.
    pub(super) fn figure(self, rates: &Rates) -> Option<f64> {
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

    /// What stands in the cell.
    pub(super) fn cell(self, rates: &Rates) -> String {
        match self {
            Self::Device => rates.instance.device.clone(),
            Self::Mode => rates.instance.mode.clone(),
            Self::Queue => rates.instance.queue(),
            Self::Napi => rates.instance.key.napi.to_string(),
            Self::Batch | Self::Cpu => {
                self.figure(rates).map_or_else(|| NONE.to_owned(), |figure| format!("{figure:.1}"))
            }
            _ => self.figure(rates).map_or_else(|| NONE.to_owned(), short),
        }
    }

    /// Which of two rows comes first: names and numbers of things ascend, figures descend; what is not known comes last.
    pub(super) fn compare(self, one: &Rates, other: &Rates) -> Ordering {
        let names_things = matches!(self, Self::Queue | Self::Napi);
        match self {
            Self::Device => one.instance.device.cmp(&other.instance.device),
            Self::Mode => one.instance.mode.cmp(&other.instance.mode),
            _ => match (self.figure(one), self.figure(other)) {
                (Some(one), Some(other)) if names_things => one.total_cmp(&other),
                (Some(one), Some(other)) => other.total_cmp(&one),
                (one, other) => other.is_some().cmp(&one.is_some()),
            },
        }
    }
}

/// A rate in at most five characters.
fn short(figure: f64) -> String {
    match figure {
        figure if figure < 9_999.5 => format!("{figure:.0}"),
        figure if figure < 99_950.0 => format!("{:.1}k", figure / 1e3),
        figure if figure < 999_500.0 => format!("{:.0}k", figure / 1e3),
        figure if figure < 99_950_000.0 => format!("{:.1}M", figure / 1e6),
        figure => format!("{:.0}M", figure / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_short() {
        let figures = [0.0, 12.4, 9_999.0, 10_000.0, 99_949.0, 99_951.0, 999_499.0, 1_000_000.0, 250_000_000.0];
        let shown = ["0", "12", "9999", "10.0k", "99.9k", "100k", "999k", "1.0M", "250M"];
        for (figure, text) in figures.into_iter().zip(shown) {
            assert_eq!(short(figure), text);
            assert!(text.len() <= 5);
        }
    }
}
