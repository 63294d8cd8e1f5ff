//! Softirqs and the backlog per CPU (`/proc/softirqs`, `/proc/net/softnet_stat`).

use std::collections::BTreeMap;
use std::path::Path;

use super::{ProcTableError, read_table};

const SOFTIRQS: &str = "/proc/softirqs";
const SOFTNET: &str = "/proc/net/softnet_stat";

/// Softirq runs since boot, by kind and CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SoftirqCounts {
    kinds: BTreeMap<String, Vec<u64>>,
}

impl SoftirqCounts {
    /// Reads `/proc/softirqs`.
    ///
    /// # Errors
    /// The file cannot be read or has another form.
    pub fn read() -> Result<Self, ProcTableError> {
        Self::parse(&read_table(Path::new(SOFTIRQS))?)
    }

    /// Returns the receive softirqs since boot, indexed by CPU number (the file lists every possible CPU).
    #[must_use]
    pub fn net_rx(&self) -> &[u64] {
        self.kind("NET_RX")
    }

    /// Returns the softirqs of one kind, for example `TIMER`, indexed by CPU number; empty if there is no such kind.
    #[must_use]
    pub fn kind(&self, name: &str) -> &[u64] {
        self.kinds.get(name).map_or(&[], Vec::as_slice)
    }

    fn parse(text: &str) -> Result<Self, ProcTableError> {
        let bad = |line: &str| ProcTableError::Parse { path: SOFTIRQS.into(), text: line.chars().take(60).collect() };
        let mut kinds = BTreeMap::new();
        for line in text.lines().skip(1) {
            let (name, counts) = line.split_once(':').ok_or_else(|| bad(line))?;
            let counts: Vec<u64> =
                counts.split_whitespace().map(str::parse).collect::<Result<_, _>>().map_err(|_| bad(line))?;
            kinds.insert(name.trim().to_owned(), counts);
        }
        if kinds.contains_key("NET_RX") { Ok(Self { kinds }) } else { Err(bad(text)) }
    }
}

/// The receive softirq and backlog of one CPU since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SoftnetCpu {
    /// The CPU.
    pub cpu: u32,
    /// Packets that went through this CPU's receive path, whichever NAPI polled them.
    pub processed: u64,
    /// Packets dropped because the backlog was full.
    pub dropped: u64,
    /// Runs of the receive softirq that stopped with work left because their packet or time budget was spent.
    pub time_squeeze: u64,
    /// Packets in the backlog now; `None` on a kernel that does not report it.
    pub backlog: Option<u64>,
}

/// The backlog statistics of all CPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Softnet {
    /// One entry per online CPU.
    pub cpus: Vec<SoftnetCpu>,
}

impl Softnet {
    /// Reads `/proc/net/softnet_stat`. The figures belong to the machine, not to a network namespace. They are 32 bits
    /// wide and wrap: subtract two readings with `wrapping_sub` on `u32`.
    ///
    /// # Errors
    /// The file cannot be read or has another form.
    pub fn read() -> Result<Self, ProcTableError> {
        Self::parse(&read_table(Path::new(SOFTNET))?)
    }

    // Columns are hexadecimal: 0 processed, 1 dropped, 2 time_squeeze; since Linux 5.10 column 11 is the backlog's length
    // and column 12 the CPU. Older kernels write only the lines of online CPUs, so the line number is the CPU while no CPU is offline.
    fn parse(text: &str) -> Result<Self, ProcTableError> {
        let bad = |line: &str| ProcTableError::Parse { path: SOFTNET.into(), text: line.chars().take(60).collect() };
        let mut cpus = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let columns: Vec<u64> = line
                .split_whitespace()
                .map(|w| u64::from_str_radix(w, 16))
                .collect::<Result<_, _>>()
                .map_err(|_| bad(line))?;
            let [processed, dropped, time_squeeze, ..] = columns[..] else { return Err(bad(line)) };
            let cpu = columns.get(12).map_or(index as u32, |&cpu| cpu as u32);
            cpus.push(SoftnetCpu { cpu, processed, dropped, time_squeeze, backlog: columns.get(11).copied() });
        }
        Ok(Self { cpus })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softirqs_are_read_by_kind() {
        let text =
            "                    CPU0       CPU1       \n          HI:          0          1\n      NET_RX:  12  34\n";
        let all = SoftirqCounts::parse(text).unwrap();
        assert_eq!(all.net_rx(), [12, 34]);
        assert_eq!(all.kind("HI"), [0, 1]);
        assert!(all.kind("NONE").is_empty());
        assert!(SoftirqCounts::parse("CPU0\nHI: 1\n").is_err());
        assert!(SoftirqCounts::parse("CPU0\nNET_RX: one\n").is_err());
    }

    #[test]
    fn softnet_columns_are_hexadecimal_in_old_and_new_kernels() {
        let new = "0000000a 00000001 00000002 0 0 0 0 0 0 0 0 00000003 00000005 0 0\n";
        let got = Softnet::parse(new).unwrap().cpus[0];
        assert_eq!(got, SoftnetCpu { cpu: 5, processed: 10, dropped: 1, time_squeeze: 2, backlog: Some(3) });
        let old = "00000001 0 0 0 0 0 0 0 0 0 0\n00000002 0 0 0 0 0 0 0 0 0 0\n";
        let got = Softnet::parse(old).unwrap().cpus[1];
        assert_eq!((got.cpu, got.processed, got.backlog), (1, 2, None));
        assert!(Softnet::parse("zz\n").is_err());
        assert!(Softnet::parse("1 2\n").is_err());
    }
}
