//! What a child process has before its program starts: a namespace, CPUs, an end.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sched::{CloneFlags, setns};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};

/// Settings of a [`Command`] that the standard library does not have.
pub trait SpawnExt {
    /// Starts the process in this network namespace.
    fn in_netns(&mut self, netns: &impl AsFd) -> &mut Self;

    /// Starts the process on these CPUs. A CPU that this machine does not have makes the start fail.
    fn on_cpus(&mut self, cpus: &[usize]) -> &mut Self;

    /// Kills the process when the thread that starts it ends, for whatever reason. A program that changes its user clears
    /// this (`PR_SET_PDEATHSIG` in `prctl(2)`).
    fn dies_with_parent(&mut self) -> &mut Self;

    /// Gives SIGHUP, SIGINT and SIGTERM their default actions. The calling process may ignore them, as the background jobs
    /// of a shell without job control ignore SIGINT, and its child processes would inherit that.
    fn default_signals(&mut self) -> &mut Self;
}

impl SpawnExt for Command {
    fn in_netns(&mut self, netns: &impl AsFd) -> &mut Self {
        // The closure owns a duplicate, so that the descriptor is still open when the process starts.
        let fd = netns.as_fd().try_clone_to_owned();
        let enter = move || {
            let fd = fd
                .as_ref()
                .map_err(|error| io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EBADF)))?;
            setns(fd, CloneFlags::CLONE_NEWNET)?;
            Ok(())
        };
        // SAFETY: between fork and exec only async-signal-safe work is allowed; `setns` is one system call, and the
        // error path allocates nothing.
        unsafe { self.pre_exec(enter) }
    }

    fn on_cpus(&mut self, cpus: &[usize]) -> &mut Self {
        let mut set = CpuSet::new();
        let fits = cpus.iter().all(|cpu| *cpu < CpuSet::MAX_CPU);
        cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
        let pin = move || {
            if !fits {
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            }
            sched_setaffinity(None, &set)?;
            Ok(())
        };
        // SAFETY: `sched_setaffinity` is one system call on memory the closure owns; nothing is allocated.
        unsafe { self.pre_exec(pin) }
    }

    fn dies_with_parent(&mut self) -> &mut Self {
        let parent = std::process::id();
        let bind = move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // A parent that ended before this call does not cause the signal any more.
            if getppid().is_none_or(|now| now.as_raw_pid().cast_unsigned() != parent) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        };
        // SAFETY: `prctl` and `getppid` are async-signal-safe system calls; nothing is allocated.
        unsafe { self.pre_exec(bind) }
    }

    fn default_signals(&mut self) -> &mut Self {
        let reset = || {
            for number in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
                // SAFETY: no handler is installed; the default action needs none.
                if unsafe { libc::signal(number, libc::SIG_DFL) } == libc::SIG_ERR {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        };
        // SAFETY: `signal` is async-signal-safe; nothing is allocated.
        unsafe { self.pre_exec(reset) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_starts_on_the_cpus_asked_for() {
        let output = Command::new("grep").args(["Cpus_allowed_list", "/proc/self/status"]).on_cpus(&[0]).output();
        let output = String::from_utf8(output.expect("grep runs").stdout).expect("ASCII");
        assert_eq!(output.split_whitespace().last(), Some("0"));
    }

    #[test]
    fn an_impossible_cpu_is_an_error() {
        assert!(Command::new("true").on_cpus(&[100_000]).status().is_err());
    }
}
