//! The capabilities that changing a machine requires, and how to grant them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One capability of `capabilities(7)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Capability {
    /// Devices, their queues and NAPI instances, within the user namespace that owns the network namespace.
    #[serde(rename = "CAP_NET_ADMIN")]
    NetAdmin,
    /// CPUs and scheduling class of kernel threads.
    #[serde(rename = "CAP_SYS_NICE")]
    SysNice,
    /// Files owned by root: `/proc/irq` and `/sys` check only file permissions.
    #[serde(rename = "CAP_DAC_OVERRIDE")]
    DacOverride,
    /// Entering another network namespace, and mounting its `/sys`.
    #[serde(rename = "CAP_SYS_ADMIN")]
    SysAdmin,
}

impl Capability {
    /// Returns its name in `capabilities(7)`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::SysNice => "CAP_SYS_NICE",
            Self::DacOverride => "CAP_DAC_OVERRIDE",
            Self::SysAdmin => "CAP_SYS_ADMIN",
        }
    }

    /// Returns how to grant it, as a clause.
    #[must_use]
    pub fn advice(self) -> String {
        let name = self.name();
        format!("run as root, grant it in a unit with AmbientCapabilities={name}, or to the command with `setcap`")
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
