//! The driver of a device (`ETHTOOL_GDRVINFO`).

use serde::{Deserialize, Serialize};

use super::ioctl::{Ethtool, Operation, put_u32};
use crate::device::DeviceId;
use crate::machine::MachineError;

/// The driver of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Driver {
    /// Its name, such as `ice` or `veth`.
    pub name: String,
    /// Its version; for drivers in the kernel tree that of the kernel.
    pub version: String,
    /// The version of the device's firmware; empty if there is none.
    pub firmware: String,
    /// The bus address, such as the PCI address `0000:3b:00.0`, or empty.
    pub bus: String,
}

/// `struct ethtool_drvinfo`: the command, five strings, and counts.
mod abi {
    pub(super) const COMMAND: u32 = 0x3;
    pub(super) const SIZE: usize = 196;
    pub(super) const NAME: std::ops::Range<usize> = 4..36;
    pub(super) const VERSION: std::ops::Range<usize> = 36..68;
    pub(super) const FIRMWARE: std::ops::Range<usize> = 68..100;
    pub(super) const BUS: std::ops::Range<usize> = 100..132;
}

impl Ethtool {
    /// Reads the driver of a device.
    ///
    /// # Errors
    /// The device does not exist any more, or its driver does not support the command.
    pub fn driver(&self, device: &DeviceId) -> Result<Driver, MachineError> {
        let mut info = vec![0; abi::SIZE];
        put_u32(&mut info, 0, abi::COMMAND);
        let action = format!("read the driver of {device}");
        self.call(Operation { device, action: &action }, &mut info)?;
        Ok(decode(&info))
    }
}

fn decode(info: &[u8]) -> Driver {
    let text = |range: std::ops::Range<usize>| {
        let bytes = &info[range];
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    };
    let firmware = text(abi::FIRMWARE);
    Driver {
        name: text(abi::NAME),
        version: text(abi::VERSION),
        firmware: if firmware == "N/A" { String::new() } else { firmware },
        bus: text(abi::BUS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_end_at_their_zero_or_their_field() {
        let mut info = vec![0; abi::SIZE];
        info[4..8].copy_from_slice(b"veth");
        info[36..68].fill(b'9');
        info[100..112].copy_from_slice(b"0000:3b:00.0");
        let driver = decode(&info);
        assert_eq!((driver.name.as_str(), driver.bus.as_str()), ("veth", "0000:3b:00.0"));
        assert_eq!((driver.version, driver.firmware), ("9".repeat(32), String::new()));
    }
}
