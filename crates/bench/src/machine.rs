//! Facts about the machine that a reader needs to judge the figures.

use std::fs;

use procfs::Current;
use serde::{Deserialize, Serialize};

/// The machine of a bench. Unknown facts are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The CPU's name.
    pub cpu_model: Option<String>,
    /// Number of online CPUs.
    pub cpus: Option<usize>,
    /// Kernel release, as `uname -r`.
    pub kernel: Option<String>,
    /// Whether it runs under a hypervisor, by the CPU flag.
    pub hypervisor: Option<bool>,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Whether this user could count cycles and instructions.
    pub hardware_counters: bool,
    /// When the bench was started, as shown in the report.
    pub date: String,
}

impl Machine {
    /// Reads the facts from `/proc`; the arguments add the rest.
    pub fn read(hardware_counters: bool, date: &str) -> Self {
        let cpuinfo = procfs::CpuInfo::current().ok();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").ok();
        let memory = procfs::Meminfo::current().ok();
        Self {
            kernel: kernel.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()),
            memory_bytes: memory.map(|memory| memory.mem_total),
            hardware_counters,
            date: date.to_owned(),
            ..cpuinfo.map(|info| from_cpuinfo(&info)).unwrap_or_default()
        }
    }

    /// Returns the known facts as names and texts, in the order of the report.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let count = self.cpus.map(|cpus| if cpus == 1 { "1 CPU".to_owned() } else { format!("{cpus} CPUs") });
        let host = |yes| if yes { "virtual machine" } else { "no hypervisor" }.to_owned();
        let memory = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1u32 << 30));
        let counters = if self.hardware_counters { "cycles and instructions" } else { "none" };
        [
            ("Processor", self.cpu_model.clone()),
            ("CPUs", count),
            ("Host", self.hypervisor.map(host)),
            ("Memory", self.memory_bytes.map(memory)),
            ("Kernel", self.kernel.as_ref().map(|kernel| format!("Linux {kernel}"))),
            ("Hardware counters", Some(counters.to_owned())),
            ("Date", Some(self.date.clone()).filter(|text| !text.is_empty())),
        ]
        .into_iter()
        .filter_map(|(name, text)| Some((name, text?)))
        .collect()
    }
}

/// Returns the facts of `/proc/cpuinfo`. Its fields differ by architecture: only x86 has flags and a model for every CPU.
fn from_cpuinfo(info: &procfs::CpuInfo) -> Machine {
    Machine {
        cpu_model: info.model_name(0).map(str::to_owned),
        cpus: Some(info.num_cores()).filter(|cpus| *cpus > 0),
        hypervisor: info.flags(0).map(|flags| flags.contains(&"hypervisor")),
        ..Machine::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfs::FromRead;

    fn parse(text: &str) -> Machine {
        from_cpuinfo(&procfs::CpuInfo::from_read(text.as_bytes()).expect("well-formed"))
    }

    #[test]
    fn an_x86_virtual_machine_is_recognized() {
        let cpu = |n: u32| format!("processor\t: {n}\nmodel name\t: Some CPU @ 3GHz\nflags\t\t: fpu hypervisor lm\n\n");
        let machine = parse(&(cpu(0) + &cpu(1)));
        assert_eq!(machine.cpu_model.as_deref(), Some("Some CPU @ 3GHz"));
        assert_eq!((machine.cpus, machine.hypervisor), (Some(2), Some(true)));
    }

    #[test]
    fn facts_that_arm_lacks_are_left_out() {
        let machine = parse("processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd\n\n");
        assert_eq!((machine.cpu_model.clone(), machine.cpus, machine.hypervisor), (None, Some(1), None));
        assert!(machine.facts().iter().all(|(name, _)| !["Processor", "Host", "Kernel"].contains(name)));
    }

    #[test]
    fn the_facts_of_this_machine_are_read() {
        let machine = Machine::read(false, "today");
        assert_eq!((machine.date.as_str(), machine.hardware_counters), ("today", false));
        assert!(
            machine.kernel.is_some()
                && machine.cpus.is_some()
                && machine.memory_bytes.is_some_and(|bytes| bytes > 1 << 20)
        );
    }
}
