//! Who is at the other end of a Unix socket (SO_PEERCRED and SO_PEERPIDFD, `unix(7)`).
//!
//! The kernel translates the numbers into the namespaces of the reader. A process that the reader's PID namespace does not
//! contain has the number 0, and a user that the reader's user namespace does not map has the overflow number (65534,
//! `user_namespaces(7)`). Both are *unknown* here rather than a number.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::LazyLock;

use nix::sys::socket::{getsockopt, sockopt as nix_sockopt};

use crate::sockopt;

/// The default of `/proc/sys/kernel/overflowuid`.
const OVERFLOW_USER: u32 = 65_534;

/// Credentials of the process that connected, or that called `listen`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    pid: Option<u32>,
    user: Option<u32>,
}

impl PeerCredentials {
    /// Returns the credentials of the process at the other end of a connection; of a listening socket, those of the process
    /// that called `listen`.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        let peer = getsockopt(&socket.as_fd(), nix_sockopt::PeerCredentials)?;
        Ok(Self::from_numbers(peer.pid(), peer.uid(), *UNMAPPED_USER))
    }

    fn from_numbers(pid: i32, user: u32, unmapped: Option<u32>) -> Self {
        let pid = u32::try_from(pid).ok().filter(|pid| *pid > 0);
        Self { pid, user: Some(user).filter(|user| Some(*user) != unmapped) }
    }

    /// Returns the process, or `None` if this process's PID namespace does not contain it.
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Returns the effective user, or `None` if this process's user namespace does not map it.
    pub fn user(&self) -> Option<u32> {
        self.user
    }

    /// Returns whether the process runs as this user. Not if the user is unknown.
    pub fn is_user(&self, user: u32) -> bool {
        self.user == Some(user)
    }
}

/// Returns a descriptor that becomes readable when the process that connected has ended, or `None` before Linux 6.5. It
/// works across PID namespaces, and the process's number cannot have been used again.
pub fn peer_pidfd(socket: impl AsFd) -> Option<OwnedFd> {
    sockopt::peer_pidfd(socket).ok()
}

/// The number that stands for users who are not mapped into this process's user namespace; `None` if all are.
static UNMAPPED_USER: LazyLock<Option<u32>> = LazyLock::new(|| {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
    let overflow = overflow.and_then(|text| text.trim().parse().ok()).unwrap_or(OVERFLOW_USER);
    (!maps_every_user(&map)).then_some(overflow)
});

/// Returns whether a `uid_map` has every number except that of no user.
fn maps_every_user(map: &str) -> bool {
    let lengths = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    lengths.sum::<u64>() >= u64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn numbers_that_stand_for_nobody_are_unknown() {
        let unknown = PeerCredentials::from_numbers(0, OVERFLOW_USER, Some(OVERFLOW_USER));
        assert_eq!((unknown.pid(), unknown.user()), (None, None));
        assert!(!unknown.is_user(OVERFLOW_USER) && !unknown.is_user(0));
        let known = PeerCredentials::from_numbers(7, OVERFLOW_USER, None);
        assert_eq!((known.pid(), known.user()), (Some(7), Some(OVERFLOW_USER)));
        assert!(maps_every_user("         0          0 4294967295\n"));
        assert!(!maps_every_user("0 1000 1\n") && !maps_every_user("0 100000 65536\n") && !maps_every_user(""));
    }

    #[test]
    fn the_own_process_is_known() {
        let (near, _far) = UnixStream::pair().expect("a pair");
        let peer = PeerCredentials::of(&near).expect("credentials");
        assert_eq!(peer.pid(), Some(std::process::id()));
        assert!(peer.is_user(nix::unistd::geteuid().as_raw()) || *UNMAPPED_USER == Some(OVERFLOW_USER));
    }
}
