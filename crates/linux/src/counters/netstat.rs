//! The protocol counters of one network namespace (`/proc/<pid>/net/netstat` and `snmp`).

use std::collections::BTreeMap;
use std::path::Path;

use super::{ProcTableError, read_table};

/// Counters by name, for example `TcpExt.BusyPollRxPackets`, since the namespace was created.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetStat {
    values: BTreeMap<String, u64>,
}

impl NetStat {
    /// Reads the counters of the calling thread's network namespace.
    ///
    /// # Errors
    /// `/proc` is not mounted, or a file has another form.
    pub fn read_self() -> Result<Self, ProcTableError> {
        Self::read_from(Path::new("/proc/thread-self/net"))
    }

    /// Reads the counters of the network namespace of process (or thread) `pid`.
    ///
    /// # Errors
    /// The process does not exist, or the caller lacks the privilege.
    pub fn read_pid(pid: u32) -> Result<Self, ProcTableError> {
        Self::read_from(Path::new(&format!("/proc/{pid}/net")))
    }

    /// Reads the counters from a directory such as `/proc/1234/net`.
    ///
    /// # Errors
    /// A file in it cannot be read or has another form.
    pub fn read_from(directory: &Path) -> Result<Self, ProcTableError> {
        let mut all = Self::default();
        for file in ["netstat", "snmp"] {
            let path = directory.join(file);
            all.values.extend(Self::parse(&path, &read_table(&path)?)?.values);
        }
        Ok(all)
    }

    /// Returns the counter `group.name`, or `None` if this kernel has none of that name.
    #[must_use]
    pub fn get(&self, group: &str, name: &str) -> Option<u64> {
        self.values.get(&format!("{group}.{name}")).copied()
    }

    /// Returns the packets that busy polling received from the devices of this namespace (`TcpExt.BusyPollRxPackets`, of any
    /// protocol); `None` on a kernel without busy polling. It excludes the final poll of a busy poll with `prefer`, so it is a
    /// little less than the packets of the polls that [`crate::polls`] counts.
    #[must_use]
    pub fn busy_poll_rx_packets(&self) -> Option<u64> {
        self.get("TcpExt", "BusyPollRxPackets")
    }

    /// Returns all counters, by `group.name`.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.values.iter().map(|(name, value)| (name.as_str(), *value))
    }

    // Pairs of lines: "TcpExt: NameA NameB", then "TcpExt: 1 2". Negative values are gauges, not counters.
    fn parse(path: &Path, text: &str) -> Result<Self, ProcTableError> {
        let bad = |line: &str| ProcTableError::Parse { path: path.into(), text: line.chars().take(60).collect() };
        let mut values = BTreeMap::new();
        let mut lines = text.lines();
        while let Some(head) = lines.next() {
            let row = lines.next().ok_or_else(|| bad(head))?;
            let (group, names) = head.split_once(':').ok_or_else(|| bad(head))?;
            let (row_group, numbers) = row.split_once(':').ok_or_else(|| bad(row))?;
            let (names, numbers): (Vec<_>, Vec<_>) =
                (names.split_whitespace().collect(), numbers.split_whitespace().collect());
            if group != row_group || names.len() != numbers.len() {
                return Err(bad(row));
            }
            for (name, number) in names.into_iter().zip(numbers) {
                let value: i128 = number.parse().map_err(|_| bad(number))?;
                if let Ok(value) = u64::try_from(value) {
                    values.insert(format!("{group}.{name}"), value);
                }
            }
        }
        Ok(Self { values })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_paired() {
        let text = "Tcp: MaxConn InSegs\nTcp: -1 18446744073709551615\nTcpExt: BusyPollRxPackets\nTcpExt: 42\n";
        let all = NetStat::parse(Path::new("x"), text).unwrap();
        assert_eq!(all.busy_poll_rx_packets(), Some(42));
        assert_eq!(all.get("Tcp", "InSegs"), Some(u64::MAX));
        assert_eq!(all.get("Tcp", "MaxConn"), None);
        assert_eq!(all.iter().count(), 2);
    }

    #[test]
    fn lines_that_do_not_match_are_errors() {
        for text in ["Tcp: A B\nTcp: 1\n", "Tcp: A\nUdp: 1\n", "Tcp: A\n", "Tcp: A\nTcp: x\n", "Tcp A\nTcp 1\n"] {
            let error = NetStat::parse(Path::new("/proc/x"), text).unwrap_err();
            assert!(error.to_string().contains("/proc/x"), "{text:?} gave {error}");
        }
    }
}
