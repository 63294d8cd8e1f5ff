//! The figures of a row: keys, headings and number formats.

use abey_chart::number::{grouped, short};
use serde::{Deserialize, Serialize};

/// A figure, in the order of the published tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Figure {
    /// Responses per second.
    Qps,
    /// Average latency in microseconds, from the intended send time.
    Avg,
    /// Median latency in microseconds.
    P50,
    /// 95th percentile of latency in microseconds.
    P95,
    /// 99th percentile of latency in microseconds.
    P99,
    /// 99.9th percentile of latency in microseconds.
    P999,
    /// CPU use in percent of the server's CPUs.
    CpuPercent,
    /// CPU time of the server per query in microseconds.
    CpuPerQuery,
    /// CPU cycles per query on the server's CPUs.
    Cycles,
    /// Instructions per query on the server's CPUs.
    Instructions,
    /// Interrupts or wake-ups per second at the server.
    Wakeups,
    /// Context switches of the server per query.
    ContextSwitches,
    /// System calls of the server per query.
    SystemCalls,
}

impl Figure {
    /// All figures, in the order of the table.
    pub const ALL: [Self; 13] = [
        Self::Qps,
        Self::Avg,
        Self::P50,
        Self::P95,
        Self::P99,
        Self::P999,
        Self::CpuPercent,
        Self::CpuPerQuery,
        Self::Cycles,
        Self::Instructions,
        Self::Wakeups,
        Self::ContextSwitches,
        Self::SystemCalls,
    ];

    /// The figures that have a spread.
    pub const WITH_SPREAD: [Self; 8] =
        [Self::Qps, Self::Avg, Self::P50, Self::P95, Self::P99, Self::P999, Self::CpuPercent, Self::CpuPerQuery];

    /// Returns the key in the JSON document.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Qps => "qps",
            Self::Avg => "avg_us",
            Self::P50 => "p50_us",
            Self::P95 => "p95_us",
            Self::P99 => "p99_us",
            Self::P999 => "p999_us",
            Self::CpuPercent => "cpu_percent",
            Self::CpuPerQuery => "cpu_us_per_query",
            Self::Cycles => "cycles_per_query",
            Self::Instructions => "instructions_per_query",
            Self::Wakeups => "wakeups_per_s",
            Self::ContextSwitches => "context_switches_per_query",
            Self::SystemCalls => "system_calls_per_query",
        }
    }

    /// Returns the heading in two lines: name and unit.
    pub const fn heading(self) -> (&'static str, &'static str) {
        match self {
            Self::Qps => ("qps", ""),
            Self::Avg => ("avg", "us"),
            Self::P50 => ("p50", "us"),
            Self::P95 => ("p95", "us"),
            Self::P99 => ("p99", "us"),
            Self::P999 => ("p99.9", "us"),
            Self::CpuPercent => ("cpu", "%"),
            Self::CpuPerQuery => ("cpu", "us/q"),
            Self::Cycles => ("cycles", "/q"),
            Self::Instructions => ("instr", "/q"),
            Self::Wakeups => ("wakeups", "/s"),
            Self::ContextSwitches => ("ctxsw", "/q"),
            Self::SystemCalls => ("syscalls", "/q"),
        }
    }

    /// Returns the heading in one line.
    pub fn title(self) -> String {
        let (name, unit) = self.heading();
        if unit.starts_with('/') { format!("{name}{unit}") } else { format!("{name} {unit}").trim_end().to_owned() }
    }

    /// Describes the figure.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Qps => "requests answered per second",
            Self::Avg => "average latency in microseconds",
            Self::P50 => "median latency in microseconds",
            Self::P95 => "95th percentile of latency in microseconds",
            Self::P99 => "99th percentile of latency in microseconds",
            Self::P999 => "99.9th percentile of latency in microseconds",
            Self::CpuPercent => "busy share of the server's CPUs in percent",
            Self::CpuPerQuery => "server microseconds of CPU per query",
            Self::Cycles => "CPU cycles per query",
            Self::Instructions => "instructions per query",
            Self::Wakeups => "interrupts or wake-ups per second",
            Self::ContextSwitches => "context switches per query",
            Self::SystemCalls => "system calls per query",
        }
    }

    /// Formats a value: three significant digits or a whole number, with separated thousands.
    pub fn text(self, value: f64) -> String {
        match self {
            Self::Qps | Self::Cycles | Self::Instructions => grouped(value),
            _ => short(value),
        }
    }
}

macro_rules! figures {
    ($($(#[$doc:meta])* $name:ident => $figure:ident,)+) => {
        /// One value for each figure; `None` (JSON `null`) if not measured.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
        pub struct Figures {
            $($(#[$doc])* pub $name: Option<f64>,)+
        }

        impl Figures {
            /// Returns the value of a figure.
            pub const fn get(&self, figure: Figure) -> Option<f64> {
                match figure { $(Figure::$figure => self.$name,)+ }
            }

            /// Sets or clears a figure.
            pub fn set(&mut self, figure: Figure, value: Option<f64>) {
                match figure { $(Figure::$figure => self.$name = value,)+ }
            }
        }
    };
}

figures! {
    /// [`Figure::Qps`].
    qps => Qps,
    /// [`Figure::Avg`].
    avg_us => Avg,
    /// [`Figure::P50`].
    p50_us => P50,
    /// [`Figure::P95`].
    p95_us => P95,
    /// [`Figure::P99`].
    p99_us => P99,
    /// [`Figure::P999`].
    p999_us => P999,
    /// [`Figure::CpuPercent`].
    cpu_percent => CpuPercent,
    /// [`Figure::CpuPerQuery`].
    cpu_us_per_query => CpuPerQuery,
    /// [`Figure::Cycles`].
    cycles_per_query => Cycles,
    /// [`Figure::Instructions`].
    instructions_per_query => Instructions,
    /// [`Figure::Wakeups`].
    wakeups_per_s => Wakeups,
    /// [`Figure::ContextSwitches`].
    context_switches_per_query => ContextSwitches,
    /// [`Figure::SystemCalls`].
    system_calls_per_query => SystemCalls,
}

macro_rules! spreads {
    ($($name:ident => $figure:ident,)+) => {
        /// The spread between runs of each figure in [`Figure::WITH_SPREAD`], as [`spread`](crate::stats::spread)
        /// defines it: half the range over the median, so that `0.04` is plus or minus 4 %. `None` with fewer than two
        /// runs.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
        pub struct Spreads {
            $(#[doc = concat!("Spread of [`Figure::", stringify!($figure), "`], as a fraction of its median.")]
            pub $name: Option<f64>,)+
        }

        impl Spreads {
            /// Returns the spread of a figure; `None` for a figure outside of [`Figure::WITH_SPREAD`].
            pub const fn get(&self, figure: Figure) -> Option<f64> {
                match figure { $(Figure::$figure => self.$name,)+ _ => None }
            }

            /// Sets or clears the spread of a figure; does nothing for a figure outside of [`Figure::WITH_SPREAD`].
            pub fn set(&mut self, figure: Figure, value: Option<f64>) {
                match figure { $(Figure::$figure => self.$name = value,)+ _ => {} }
            }
        }
    };
}

spreads! {
    qps_spread => Qps,
    avg_us_spread => Avg,
    p50_us_spread => P50,
    p95_us_spread => P95,
    p99_us_spread => P99,
    p999_us_spread => P999,
    cpu_percent_spread => CpuPercent,
    cpu_us_per_query_spread => CpuPerQuery,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_field_names() {
        for figure in Figure::ALL {
            let mut figures = Figures::default();
            figures.set(figure, Some(1.0));
            let json = serde_json::to_value(figures).expect("plain values");
            assert_eq!(json[figure.key()], 1.0, "{figure:?}");
            assert_eq!(figures.get(figure), Some(1.0));
        }
        for figure in Figure::WITH_SPREAD {
            let mut spreads = Spreads::default();
            spreads.set(figure, Some(1.0));
            let json = serde_json::to_value(spreads).expect("plain values");
            assert_eq!(json[format!("{}_spread", figure.key())], 1.0, "{figure:?}");
        }
    }
}
