//! Errors of reading and changing devices.

use std::io;

use super::capability::Capability;
use crate::cpu::CpuError;
use crate::netlink::NetlinkError;

/// Why a device could not be read or changed. `action` is the action in words, with the name of the device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// The driver or this kernel cannot do it.
    #[error("cannot {action}: {reason}")]
    Unsupported {
        /// The device.
        device: String,
        /// The action.
        action: String,
        /// The explanation, with that of the kernel if there is one.
        reason: String,
    },
    /// The caller lacks the privilege.
    #[error("not allowed to {action}: it needs {capability}; {advice}", advice = capability.advice())]
    Denied {
        /// The device.
        device: String,
        /// The action.
        action: String,
        /// The required capability.
        capability: Capability,
    },
    /// The device, queue, interrupt, thread or NAPI instance does not exist (any more).
    #[error("cannot {action}: {what} does not exist any more")]
    Gone {
        /// The device.
        device: String,
        /// The action.
        action: String,
        /// The missing object.
        what: String,
    },
    /// Any other failure.
    #[error("cannot {action}: {reason}")]
    Refused {
        /// The device.
        device: String,
        /// The action.
        action: String,
        /// The kernel's explanation.
        reason: String,
        /// The error number, if the kernel returned one.
        errno: Option<i32>,
    },
}

impl MachineError {
    /// Returns whether the driver or this kernel cannot do it.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::Unsupported { .. })
    }

    /// Returns whether the object does not exist (any more).
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Gone { .. })
    }

    /// Returns the name of the device.
    #[must_use]
    pub fn device(&self) -> &str {
        match self {
            Self::Unsupported { device, .. }
            | Self::Denied { device, .. }
            | Self::Gone { device, .. }
            | Self::Refused { device, .. } => device,
        }
    }

    /// Classifies an error of the kernel by its number. `capability` is the one that the action requires.
    pub fn from_io(device: &str, action: &str, capability: Capability, error: &io::Error) -> Self {
        Self::sort(device, action, capability, error.raw_os_error(), error.to_string())
    }

    /// Classifies a failed netlink request.
    pub fn from_netlink(device: &str, action: &str, error: &NetlinkError) -> Self {
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

/// Returns the kernel's explanation beyond the name of the error number.
fn explanation(reason: &str) -> String {
    match reason.split_once("): ") {
        Some((_, text)) if !text.is_empty() => format!(" ({text})"),
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
    fn unsupported_denied_and_missing_are_distinguished() {
        assert!(sorted(libc::EOPNOTSUPP).is_unsupported());
        assert!(sorted(libc::ENODEV).is_gone());
        assert!(matches!(sorted(libc::EPERM), MachineError::Denied { capability: Capability::NetAdmin, .. }));
        assert!(matches!(sorted(libc::EINVAL), MachineError::Refused { errno: Some(libc::EINVAL), .. }));
        for errno in [libc::EOPNOTSUPP, libc::ENODEV, libc::EPERM, libc::EINVAL] {
            let text = sorted(errno).to_string();
            assert!(text.contains("set 8 channels of eth9"), "{text}");
        }
        assert!(sorted(libc::EPERM).to_string().contains("CAP_NET_ADMIN"), "{}", sorted(libc::EPERM));
    }

    #[test]
    fn the_kernels_own_explanation_is_kept() {
        let reason = "Operation not supported (os error 95): changing the key is not supported".to_owned();
        let action = "set the RSS table of eth9".to_owned();
        let error = NetlinkError::Refused { action: action.clone(), reason, errno: Some(libc::EOPNOTSUPP) };
        let text = MachineError::from_netlink("eth9", &action, &error).to_string();
        assert_eq!(
            text,
            "cannot set the RSS table of eth9: its driver or this kernel does not support it (changing the key is not supported)"
        );
    }
}
