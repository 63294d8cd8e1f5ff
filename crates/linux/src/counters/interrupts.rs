//! Interrupts per IRQ and CPU (`/proc/interrupts`).

use std::path::Path;

use super::{ProcTableError, read_table};

const PATH: &str = "/proc/interrupts";

/// One line of `/proc/interrupts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterruptLine {
    /// The IRQ: a number, or a name such as `LOC` for an interrupt of the CPU.
    pub irq: String,
    /// Interrupts since boot, one per CPU in the order of [`Interrupts::cpus`]. Shorter (often one long) for the few
    /// lines that are not per CPU, such as `ERR`.
    pub counts: Vec<u64>,
    /// The interrupt controller, the kind, and the names given by the drivers.
    pub description: String,
}

impl InterruptLine {
    /// Returns the interrupts since boot on all CPUs.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// The interrupts of the machine since boot. Deferral and suspension reduce the rate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interrupts {
    /// The CPUs that are online, by number.
    pub cpus: Vec<u32>,
    /// One entry per line.
    pub lines: Vec<InterruptLine>,
}

impl Interrupts {
    /// Reads `/proc/interrupts`.
    ///
    /// # Errors
    /// The file cannot be read or has another form.
    pub fn read() -> Result<Self, ProcTableError> {
        Self::parse(&read_table(Path::new(PATH))?)
    }

    /// Returns the line of hardware interrupt `irq`, or `None` if there is none.
    #[must_use]
    pub fn irq(&self, irq: u32) -> Option<&InterruptLine> {
        self.named(&irq.to_string())
    }

    /// Returns the line called `name`, for example `LOC` (local timer) or `CAL` (function calls from other CPUs).
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&InterruptLine> {
        self.lines.iter().find(|line| line.irq == name)
    }

    fn parse(text: &str) -> Result<Self, ProcTableError> {
        let bad = |line: &str| ProcTableError::Parse { path: PATH.into(), text: line.chars().take(60).collect() };
        let mut lines = text.lines();
        let head = lines.next().unwrap_or_default();
        let cpus: Option<Vec<u32>> =
            head.split_whitespace().map(|w| w.strip_prefix("CPU").and_then(|n| n.parse().ok())).collect();
        let cpus = cpus.filter(|c| !c.is_empty()).ok_or_else(|| bad(head))?;
        let lines = lines.map(|l| parse_line(l, cpus.len()).ok_or_else(|| bad(l))).collect::<Result<_, _>>()?;
        Ok(Self { cpus, lines })
    }
}

fn parse_line(line: &str, cpus: usize) -> Option<InterruptLine> {
    let (irq, mut rest) = line.split_once(':')?;
    let mut counts = Vec::with_capacity(cpus);
    while counts.len() < cpus {
        rest = rest.trim_start();
        let end = rest.find(' ').unwrap_or(rest.len());
        let Ok(count) = rest[..end].parse() else { break };
        counts.push(count);
        rest = &rest[end..];
    }
    (!counts.is_empty()).then(|| InterruptLine {
        irq: irq.trim().into(),
        counts,
        description: rest.split_whitespace().collect::<Vec<_>>().join(" "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_without_an_offline_cpu_is_read() {
        let text = "           CPU0       CPU2       \n 24:          1          5  IO-APIC   5-edge      ACPI:Ged\n\
                    LOC:        100         20   Local timer interrupts\nERR:          7\n";
        let all = Interrupts::parse(text).unwrap();
        assert_eq!(all.cpus, [0, 2]);
        let line = all.irq(24).unwrap();
        assert_eq!((line.counts.as_slice(), line.total()), ([1, 5].as_slice(), 6));
        assert_eq!(line.description, "IO-APIC 5-edge ACPI:Ged");
        assert_eq!(all.named("LOC").unwrap().total(), 120);
        assert_eq!(all.named("ERR").unwrap().counts, [7]);
        assert_eq!(all.irq(25), None);
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "hello\n", "CPU0\nno colon\n", "CPU0\n 24: none\n"] {
            assert!(Interrupts::parse(text).is_err(), "{text:?}");
        }
    }
}
