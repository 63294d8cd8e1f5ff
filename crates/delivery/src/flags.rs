//! The flags of a NAPI instance, in the kernel's vocabulary.

use std::fmt;

/// The flags of a NAPI instance at one moment, as in its state word in Linux (`NAPI_STATE_*`).
///
/// A view for displays and checks; the instance itself keeps its state as types.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(u8);

impl Flags {
    /// The instance has an owner: it is on a poll list, or being polled.
    pub const SCHEDULED: Self = Self(1);
    /// An interrupt came while the instance had an owner.
    pub const MISSED: Self = Self(1 << 1);
    /// The instance is disabled, or waits for its owner to release it.
    pub const DISABLED: Self = Self(1 << 2);
    /// The owner is a busy poller.
    pub const IN_BUSY_POLL: Self = Self(1 << 3);
    /// A busy poller asked the owner to yield early.
    pub const PREFER_BUSY_POLL: Self = Self(1 << 4);
    /// A thread polls the instance instead of the softirq.
    pub const THREADED: Self = Self(1 << 5);
    /// That thread never sleeps.
    pub const THREADED_BUSY_POLL: Self = Self(1 << 6);

    const NAMES: [(Self, &str); 7] = [
        (Self::SCHEDULED, "scheduled"),
        (Self::MISSED, "missed"),
        (Self::DISABLED, "disabled"),
        (Self::IN_BUSY_POLL, "in-busy-poll"),
        (Self::PREFER_BUSY_POLL, "prefer-busy-poll"),
        (Self::THREADED, "threaded"),
        (Self::THREADED_BUSY_POLL, "threaded-busy-poll"),
    ];

    /// Returns whether all of `other`'s flags are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns these flags, and `other`'s too if `on`.
    pub(crate) const fn with(self, other: Self, on: bool) -> Self {
        if on { Self(self.0 | other.0) } else { self }
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Flags {
    /// Writes the names of the set flags with spaces between them, or `-`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> =
            Self::NAMES.iter().filter(|(flag, _)| self.contains(*flag)).map(|(_, name)| *name).collect();
        f.pad(&if names.is_empty() { "-".to_owned() } else { names.join(" ") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_shown_by_name() {
        assert_eq!(Flags::default().to_string(), "-");
        let flags = Flags::default().with(Flags::SCHEDULED, true).with(Flags::MISSED, true);
        assert_eq!(flags.to_string(), "scheduled missed");
        assert!(flags.contains(Flags::MISSED) && !flags.contains(Flags::DISABLED));
    }
}
