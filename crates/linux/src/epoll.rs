//! The busy-poll parameters of an epoll instance.
//!
//! `EPIOCSPARAMS` and `EPIOCGPARAMS` (Linux 6.9) work on the epoll descriptor itself, with a `struct epoll_params` of
//! eight bytes. Source: `ioctl_eventpoll(2)` and Linux `Documentation/networking/napi.rst`, "epoll-based busy polling".

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use abey_delivery::{EpollBusyPoll, Nanos, SettingsError, UNPRIVILEGED_BUDGET};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags};
use rustix::thread::CapabilitySet;

/// `struct epoll_params`; the padding must be zero.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct EpollParams {
    busy_poll_usecs: u32,
    busy_poll_budget: u16,
    prefer_busy_poll: u8,
    pad: u8,
}

mod ioctl {
    use super::EpollParams;

    /// The type of the epoll calls in the kernel's ioctl numbers.
    const EPOLL: u8 = 0x8a;

    nix::ioctl_write_ptr!(set_params, EPOLL, 1, EpollParams);
    nix::ioctl_read!(get_params, EPOLL, 2, EpollParams);
}

/// Why busy-poll parameters could not be set or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EpollError {
    /// The parameters are out of range for every caller. Nothing was changed.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The kernel allows a larger budget only to a process with `CAP_NET_ADMIN`. Nothing was changed.
    #[error(
        "an epoll busy-poll budget of {budget} packets needs CAP_NET_ADMIN: run as root or choose at most {UNPRIVILEGED_BUDGET}"
    )]
    BudgetNotPermitted {
        /// The requested budget.
        budget: u16,
    },
    /// The kernel has no such ioctl, or was built without busy polling.
    #[error(
        "this kernel cannot set busy polling per epoll instance (EPIOCSPARAMS): use Linux 6.9 or newer with CONFIG_NET_RX_BUSY_POLL"
    )]
    Unsupported,
    /// The descriptor is open, but not an epoll instance.
    #[error("file descriptor {0} is not an epoll instance: pass one that epoll_create1 returned")]
    NotEpoll(i32),
    /// Any other failure.
    #[error("cannot {action} the busy-poll parameters of epoll instance {fd}: {source}")]
    Kernel {
        /// `set` or `read`.
        action: &'static str,
        /// The descriptor.
        fd: i32,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// Sets the busy-poll parameters of the epoll instance `fd`.
///
/// # Errors
/// [`EpollError`]. Values out of range, and a budget that this process may not choose, are refused without a system call.
pub fn set(fd: BorrowedFd<'_>, busy_poll: &EpollBusyPoll) -> Result<(), EpollError> {
    busy_poll.validate()?;
    check_budget(busy_poll.budget)?;
    put(
        fd,
        EpollParams {
            busy_poll_usecs: busy_poll.usecs,
            busy_poll_budget: busy_poll.budget,
            prefer_busy_poll: u8::from(busy_poll.prefer),
            pad: 0,
        },
    )
}

/// Clears the parameters of the epoll instance `fd`, so that `net.core.busy_poll` applies, as for a new one.
///
/// # Errors
/// [`EpollError`].
pub fn clear(fd: BorrowedFd<'_>) -> Result<(), EpollError> {
    put(fd, EpollParams::default())
}

fn put(fd: BorrowedFd<'_>, params: EpollParams) -> Result<(), EpollError> {
    // SAFETY: `params` has the layout that the call reads and is valid for it; `fd` is open.
    let answer = unsafe { ioctl::set_params(fd.as_raw_fd(), &raw const params) };
    match answer {
        Ok(_) => Ok(()),
        // A capability in a user namespace appears to be sufficient, but the kernel requires the initial namespace.
        Err(Errno::EPERM) => Err(EpollError::BudgetNotPermitted { budget: params.busy_poll_budget }),
        Err(errno) => Err(refused("set", fd, errno)),
    }
}

/// Reads the busy-poll parameters of the epoll instance `fd`.
///
/// All of a new instance are zero; a budget of 0 means the kernel's default of 8 packets.
///
/// # Errors
/// [`EpollError`].
pub fn get(fd: BorrowedFd<'_>) -> Result<EpollBusyPoll, EpollError> {
    let mut params = EpollParams::default();
    // SAFETY: `params` has the layout that the call writes and is valid for it; `fd` is open.
    unsafe { ioctl::get_params(fd.as_raw_fd(), &raw mut params) }.map_err(|errno| refused("read", fd, errno))?;
    Ok(EpollBusyPoll {
        usecs: params.busy_poll_usecs,
        budget: params.busy_poll_budget,
        prefer: params.prefer_busy_poll != 0,
    })
}

/// Returns whether this kernel has busy-poll parameters per epoll instance. Tries a new instance, because distributions backport
/// features to older versions.
///
/// # Errors
/// [`EpollError::Kernel`] if the probe itself failed, for example for lack of descriptors.
pub fn supported() -> Result<bool, EpollError> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|errno| EpollError::Kernel {
        action: "probe",
        fd: -1,
        source: errno.into(),
    })?;
    match get(epoll.0.as_fd()) {
        Ok(_) => Ok(true),
        // The descriptor is an epoll instance, so ENOTTY means that the kernel has no such ioctl.
        Err(EpollError::Unsupported | EpollError::NotEpoll(_)) => Ok(false),
        Err(other) => Err(other),
    }
}

/// Sets how long a blocking receive on the socket `fd` polls its own queue before it sleeps (`SO_BUSY_POLL`, `socket(7)`).
/// The time is rounded up to whole microseconds.
///
/// # Errors
/// The kernel's error: `EPERM` if the time is above `net.core.busy_read` and the process lacks `CAP_NET_ADMIN`, `EINVAL` if it
/// is above 2^31 us.
pub fn set_socket_busy_poll(fd: BorrowedFd<'_>, span: Nanos) -> io::Result<()> {
    let usecs =
        i32::try_from(span.as_nanos().div_ceil(1_000)).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: the option's value is one int, which is valid for the call; `fd` is open.
    let answer = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BUSY_POLL,
            (&raw const usecs).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Refuses a budget that the kernel would refuse for lack of a capability.
fn check_budget(budget: u16) -> Result<(), EpollError> {
    if budget <= UNPRIVILEGED_BUDGET {
        return Ok(());
    }
    // If the capabilities cannot be read, the kernel checks.
    let lacking =
        rustix::thread::capabilities(None).is_ok_and(|sets| !sets.effective.contains(CapabilitySet::NET_ADMIN));
    if lacking { Err(EpollError::BudgetNotPermitted { budget }) } else { Ok(()) }
}

fn refused(action: &'static str, fd: BorrowedFd<'_>, errno: Errno) -> EpollError {
    match errno {
        Errno::EOPNOTSUPP | Errno::ENOSYS => EpollError::Unsupported,
        // Any file returns ENOTTY for an unknown ioctl, also an epoll instance of an older kernel.
        Errno::ENOTTY if is_epoll(fd) => EpollError::Unsupported,
        // A descriptor opened with O_PATH returns EBADF.
        Errno::ENOTTY | Errno::EINVAL | Errno::EBADF if !is_epoll(fd) => EpollError::NotEpoll(fd.as_raw_fd()),
        errno => EpollError::Kernel { action, fd: fd.as_raw_fd(), source: errno.into() },
    }
}

/// Returns whether `/proc` shows the open file as an epoll instance.
fn is_epoll(fd: BorrowedFd<'_>) -> bool {
    std::fs::read_link(format!("/proc/thread-self/fd/{}", fd.as_raw_fd()))
        .is_ok_and(|target| target.as_os_str() == "anon_inode:[eventpoll]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn new_epoll() -> Epoll {
        Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("an epoll instance")
    }

    fn is_unsupported() -> bool {
        let unsupported = !supported().expect("the probe runs");
        if unsupported {
            eprintln!("skipped: this kernel has no EPIOCSPARAMS");
        }
        unsupported
    }

    proptest! {
        #[test]
        fn what_is_set_is_read_back(usecs in 0..=i32::MAX as u32, budget in 1..=UNPRIVILEGED_BUDGET, prefer: bool) {
            if !is_unsupported() {
                let (epoll, params) = (new_epoll(), EpollBusyPoll { usecs, budget, prefer });
                set(epoll.0.as_fd(), &params).expect("set");
                prop_assert_eq!(get(epoll.0.as_fd()).expect("get"), params);
            }
        }
    }

    #[test]
    fn wrong_parameters_change_nothing() {
        if is_unsupported() {
            return;
        }
        let epoll = new_epoll();
        let before = get(epoll.0.as_fd()).expect("get");
        for wrong in [(0, 0), (u32::MAX, 8)] {
            let params = EpollBusyPoll { usecs: wrong.0, budget: wrong.1, prefer: true };
            assert!(matches!(set(epoll.0.as_fd(), &params), Err(EpollError::Settings(_))), "{params:?}");
        }
        assert_eq!(get(epoll.0.as_fd()).expect("get"), before);
    }

    #[test]
    fn a_large_budget_without_the_capability_is_refused() {
        if is_unsupported() {
            return;
        }
        let large = EpollBusyPoll { usecs: 64, budget: UNPRIVILEGED_BUDGET + 1, prefer: true };
        // Capabilities are per thread: dropping one here does not affect other tests.
        let refused = std::thread::spawn(move || {
            let mut sets = rustix::thread::capabilities(None).expect("capabilities are readable");
            sets.effective.remove(CapabilitySet::NET_ADMIN);
            rustix::thread::set_capabilities(None, sets).expect("a capability can be given up");
            set(new_epoll().0.as_fd(), &large)
        })
        .join()
        .expect("the thread ends");
        assert!(matches!(refused, Err(EpollError::BudgetNotPermitted { budget: 65 })), "{refused:?}");
    }

    #[test]
    fn another_file_is_reported_as_not_an_epoll_instance() {
        let file = tempfile::tempfile().expect("a file");
        assert!(matches!(get(file.as_fd()), Err(EpollError::NotEpoll(fd)) if fd == file.as_raw_fd()));
    }

    #[test]
    fn the_busy_poll_time_of_a_socket_is_rounded_up_to_microseconds() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        match set_socket_busy_poll(socket.as_fd(), Nanos::from_nanos(49_001)) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => eprintln!("skipped: no CAP_NET_ADMIN"),
            answer => {
                answer.expect("set");
                let mut value = 0i32;
                let mut length = size_of::<i32>() as libc::socklen_t;
                // SAFETY: both pointers are valid for values of the given sizes.
                let got = unsafe {
                    libc::getsockopt(
                        socket.as_raw_fd(),
                        libc::SOL_SOCKET,
                        libc::SO_BUSY_POLL,
                        (&raw mut value).cast(),
                        &raw mut length,
                    )
                };
                assert_eq!((got, value), (0, 50));
            }
        }
    }
}
