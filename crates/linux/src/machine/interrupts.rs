//! The interrupt of a queue, found by the interrupt's name if the driver does not report it to the kernel.

use serde::{Deserialize, Serialize};

use crate::counters::{InterruptLine, Interrupts};

/// How the interrupt of a NAPI instance was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IrqSource {
    /// The kernel reports it for the NAPI instance.
    Kernel,
    /// By this name in `/proc/interrupts`, which has the device's name or bus address and the number of the queue.
    Name(String),
}

/// Finds the interrupt of a receive queue by its name: the device's (`eth0-TxRx-3`, `mlx5_comp3@pci:0000:3b:00.0`,
/// `virtio2-input.3`) and, last in it, the queue's number. The names differ between drivers, but all have these two parts.
/// `None` if no name or several names match.
pub(super) fn irq_of_queue(interrupts: &Interrupts, device: &Names<'_>, queue: u32) -> Option<(u32, String)> {
    let mut matching = interrupts.lines.iter().filter_map(|line| {
        let name = device.name_in(line)?;
        (queue_number(name, device) == Some(queue)).then(|| Some((line.irq.parse().ok()?, name.to_owned())))?
    });
    let found = matching.next()?;
    matching.next().is_none().then_some(found)
}

/// The parts of interrupt names that identify a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names<'a> {
    /// The device's name.
    pub(super) device: &'a str,
    /// The name of its parent device: `virtio2`, or a PCI address.
    pub(super) parent: Option<&'a str>,
}

impl Names<'_> {
    /// Returns the interrupt's name, if it belongs to the device.
    fn name_in<'l>(&self, line: &'l InterruptLine) -> Option<&'l str> {
        // The name follows the interrupt controller and the kind. A shared interrupt has several names, and belongs to no queue.
        let name = line.description.rsplit(' ').next()?;
        let mut words = name.split(|letter: char| !letter.is_ascii_alphanumeric() && !"_:".contains(letter));
        let parent = self.parent.filter(|parent| !parent.is_empty());
        let by_device = words.any(|word| word == self.device);
        let by_parent = parent.is_some_and(|parent| {
            let start = name.find(parent);
            // `virtio21-input.0` contains `virtio2` too.
            start
                .is_some_and(|at| !name[at + parent.len()..].starts_with(|letter: char| letter.is_ascii_alphanumeric()))
        });
        (by_device || by_parent).then_some(name)
    }
}

/// Returns the number of the receive queue in an interrupt's name.
fn queue_number(name: &str, device: &Names<'_>) -> Option<u32> {
    // Transmit queues only, or not for a queue.
    let words =
        ["output", "config", "tx-", "-tx", "async", "misc", "ctrl", "mgmt", "control", "admin", "event", "pages"];
    let lower = name.to_ascii_lowercase();
    let both = lower.contains("txrx") || lower.contains("tx-rx") || lower.contains("rx-tx");
    if !both && words.iter().any(|word| lower.contains(word)) {
        return None;
    }
    // The queue's number is the last one in the rest of the name.
    let mut rest = name.replacen(device.device, "", 1);
    if let Some(parent) = device.parent {
        rest = rest.replacen(parent, "", 1);
    }
    let rest = rest.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let digits = rest.rsplit(|letter: char| !letter.is_ascii_digit()).next()?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interrupts(names: &[&str]) -> Interrupts {
        let line = |(irq, name): (u32, &&str)| InterruptLine {
            irq: irq.to_string(),
            counts: vec![0],
            description: format!("PCI-MSIX-0000:00:03.0 {irq}-edge {name}"),
        };
        Interrupts { cpus: vec![0], lines: (30..).zip(names).map(line).collect() }
    }

    fn found(names: &[&str], device: &str, parent: Option<&str>, queue: u32) -> Option<u32> {
        irq_of_queue(&interrupts(names), &Names { device, parent }, queue).map(|(irq, _)| irq)
    }

    #[test]
    fn the_names_of_common_drivers_are_understood() {
        let virtio = ["virtio2-config", "virtio2-input.0", "virtio2-output.0", "virtio2-input.1", "virtio21-input.0"];
        assert_eq!(found(&virtio, "eth0", Some("virtio2"), 0), Some(31));
        assert_eq!(found(&virtio, "eth0", Some("virtio2"), 1), Some(33));
        assert_eq!(found(&virtio, "eth0", Some("virtio2"), 2), None);
        let intel = ["ice-eth10-TxRx-0", "ice-eth1-TxRx-0", "ice-eth1-TxRx-1", "ice-0000:3b:00.0:misc"];
        assert_eq!(found(&intel, "eth1", Some("0000:3b:00.0"), 0), Some(31));
        assert_eq!(found(&intel, "eth1", Some("0000:3b:00.0"), 1), Some(32));
        let mlx5 = ["mlx5_async0@pci:0000:3b:00.0", "mlx5_comp0@pci:0000:3b:00.0", "mlx5_comp1@pci:0000:3b:00.1"];
        assert_eq!(found(&mlx5, "eth0", Some("0000:3b:00.0"), 0), Some(31));
        assert_eq!(found(&mlx5, "eth1", Some("0000:3b:00.1"), 1), Some(32));
        assert_eq!(found(&["ens5-Tx-Rx-0", "ens5-Tx-Rx-1", "ena-mgmnt@pci:0000:00:05.0"], "ens5", None, 1), Some(31));
        assert_eq!(found(&["eth0-rx-0", "eth0-tx-0"], "eth0", None, 0), Some(30));
    }

    #[test]
    fn an_ambiguous_or_missing_number_is_none() {
        assert_eq!(found(&["eth0-rx-0", "eth0-fdir-0"], "eth0", None, 0), None);
        assert_eq!(found(&["eth0"], "eth0", None, 0), None);
    }
}
