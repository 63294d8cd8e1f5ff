//! Names of targets in messages.

use std::collections::BTreeSet;
use std::fmt;

use abey_linux::cpu::CpuList;

/// Queues of a device, or a datapath.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetName {
    /// The device, or the NIC of a datapath.
    pub device: String,
    /// The receive queues; `None` for all.
    pub queues: Option<BTreeSet<u32>>,
    /// The current IDs of the NAPI instances.
    pub napis: Vec<u32>,
}

impl TargetName {
    /// Returns the queues as a list such as `0-3,8`, or `all`.
    pub fn queues(&self) -> String {
        self.queues.as_ref().map_or_else(|| "all".to_owned(), list)
    }
}

impl fmt::Display for TargetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, queues, napis } = self;
        match queues {
            None => write!(f, "{device} all queues")?,
            Some(queues) if queues.len() == 1 => write!(f, "{device} queue {}", list(queues))?,
            Some(queues) => write!(f, "{device} queues {}", list(queues))?,
        }
        match &napis[..] {
            [] => Ok(()),
            napis => write!(f, " (NAPI {})", list(napis)),
        }
    }
}

/// Formats numbers as a list such as `0-3,8`.
fn list<'a>(numbers: impl IntoIterator<Item = &'a u32>) -> String {
    numbers.into_iter().copied().collect::<CpuList>().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_names_queues_and_instances() {
        let name = |queues: Option<&[u32]>, napis: &[u32]| {
            let queues = queues.map(|queues| queues.iter().copied().collect());
            TargetName { device: "eth0".to_owned(), queues, napis: napis.to_vec() }.to_string()
        };
        assert_eq!(name(Some(&[3]), &[260]), "eth0 queue 3 (NAPI 260)");
        assert_eq!(name(Some(&[0, 1, 2, 5]), &[257, 258, 259, 262]), "eth0 queues 0-2,5 (NAPI 257-259,262)");
        assert_eq!(name(None, &[]), "eth0 all queues");
    }
}
