//! Why something about a device could not be read or changed.

use std::io;

use super::capability::Capability;
use crate::cpu::CpuError;
use crate::netlink::NetlinkError;

/// Why something about a device could not be read or changed; `action` says what was tried, with the device's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// The driver or this kernel cannot do it.
    #[error("cannot {action}: {reason}")]
    Unsupported {
        /// The device.
        device: String,
        /// What was tried.
        action: String,
        /// Who cannot, and the kernel's explanation where it gave one.
        reason: String,
    },
    /// The caller may not.
    #[error("not allowed to {action}: it needs {capability}; {advice}", advice = capability.advice())]
    Denied {
        /// The device.
        device: String,
        /// What was tried.
        action: String,
        /// What the caller lacks.
        capability: Capability,
    },
    /// The device, queue, interrupt, thread or NAPI instance is not there (any more).
    #[error("cannot {action}: {what} has gone")]
    Gone {
        /// The device.
        device: String,
        /// What was tried.
        action: String,
        /// What is not there.
        what: String,
    },
    /// Everything else.
    #[error("cannot {action}: {reason}")]
    Refused {
        /// The device.
        device: String,
        /// What was tried.
        action: String,
        /// What the kernel answered.
        reason: String,
        /// The error number it came with, if it came from the kernel.
        errno: Option<i32>,
    },
}

impl MachineError {
    /// Whether the driver or this kernel cannot do it.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::Unsupported { .. })
    }

    /// Whether what it is about is not there (any more).
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Gone { .. })
    }

    /// The device it is about.
    #[must_use]
    pub fn device(&self) -> &str {
        match self {
            Self::Unsupported { device, .. }
            | Self::Denied { device, .. }
            | Self::Gone { device, .. }
            | Self::Refused { device, .. } => device,
        }
    }

    /// Sorts an answer of the kernel by its error number; `capability` is what the operation takes.
    pub(crate) fn from_io(device: &str, action: &str, capability: Capability, error: &io::Error) -> Self {
        Self::sort(device, action, capability, error.raw_os_error(), error.to_string())
    }

    pub(crate) fn from_netlink(device: &str, action: &str, error: &NetlinkError) -> Self {
        let (device, action) = (device.to_owned(), action.to_owned());
        match error {
            NetlinkError::Namespace(error) => Self::Refused { device, action, reason: error.to_string(), errno: None },
            NetlinkError::Missing { family, .. } => {
                let reason = format!("this kernel has no `{family}` netlink interface; use a newer kernel");
                Self::Unsupported { device, action, reason }
            }
            NetlinkError::Denied { .. } => Self::Denied { device, action, capability: Capability::NetAdmin },
            NetlinkError::Refused { reason, errno, .. } => {
                Self::sort(&device, &action, Capability::NetAdmin, *errno, reason.clone())
            }
        }
    }

    pub(crate) fn from_cpu(device: &str, action: &str, capability: Capability, error: &CpuError) -> Self {
        let (device, action) = (device.to_owned(), action.to_owned());
        match error {
            CpuError::NoProcess(tid) => Self::Gone { device, action, what: format!("thread {tid}") },
            CpuError::NoIrq(irq) => Self::Gone { device, action, what: format!("IRQ {irq}") },
            CpuError::FixedIrq(_) => Self::Unsupported { device, action, reason: error.to_string() },
            CpuError::NoPermission { .. } => Self::Denied { device, action, capability },
            CpuError::Read { source, .. } | CpuError::Change { source, .. } => {
                Self::from_io(&device, &action, capability, source)
            }
            _ => Self::Refused { device, action, reason: error.to_string(), errno: None },
        }
    }

    fn sort(device: &str, action: &str, capability: Capability, errno: Option<i32>, reason: String) -> Self {
        let (device, action) = (device.to_owned(), action.to_owned());
        match errno {
            Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::ENOSYS) => {
                let reason = format!("its driver or this kernel does not support it{}", explanation(&reason));
                Self::Unsupported { device, action, reason }
            }
            Some(libc::EPERM | libc::EACCES) => Self::Denied { device, action, capability },
            Some(libc::ENODEV | libc::ENXIO | libc::ESRCH) => {
                Self::Gone { what: format!("the device {device}"), device, action }
            }
            _ => Self::Refused { device, action, reason, errno },
        }
    }
}

/// What the kernel said beyond the name of the error number.
fn explanation(reason: &str) -> String {
    match reason.split_once("): ") {
        Some((_, said)) if !said.is_empty() => format!(" ({said})"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(errno: i32) -> MachineError {
        let error = io::Error::from_raw_os_error(errno);
        MachineError::from_io("eth9", "set 8 channels of eth9", Capability::NetAdmin, &error)
    }

    #[test]
    fn unsupported_denied_and_gone_are_told_apart() {
        assert!(sorted(libc::EOPNOTSUPP).is_unsupported());
        assert!(sorted(libc::ENODEV).is_gone());
        assert!(matches!(sorted(libc::EPERM), MachineError::Denied { capability: Capability::NetAdmin, .. }));
        assert!(matches!(sorted(libc::EINVAL), MachineError::Refused { errno: Some(libc::EINVAL), .. }));
        for errno in [libc::EOPNOTSUPP, libc::ENODEV, libc::EPERM, libc::EINVAL] {
            let said = sorted(errno).to_string();
            assert!(said.contains("set 8 channels of eth9"), "{said}");
        }
        assert!(sorted(libc::EPERM).to_string().contains("CAP_NET_ADMIN"), "{}", sorted(libc::EPERM));
    }

    #[test]
    fn the_kernels_own_explanation_is_kept() {
        let reason = "Operation not supported (os error 95): changing the key is not supported".to_owned();
        let action = "set the RSS table of eth9".to_owned();
        let error = NetlinkError::Refused { action: action.clone(), reason, errno: Some(libc::EOPNOTSUPP) };
        let said = MachineError::from_netlink("eth9", &action, &error).to_string();
        assert_eq!(
            said,
            "cannot set the RSS table of eth9: its driver or this kernel does not support it (changing the key is not supported)"
        );
    }
}
