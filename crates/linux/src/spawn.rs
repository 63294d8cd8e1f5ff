//! Starting a process in a given place: its namespace, its CPUs, its end.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sched::{CloneFlags, CpuSet, sched_setaffinity, setns};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::Pid;

use crate::netns::NetNs;

/// What [`Command`] cannot say by itself.
pub trait CommandPlace {
    /// Starts the process in this network namespace.
    fn in_netns(&mut self, netns: &NetNs) -> &mut Self;

    /// Starts the process on these CPUs. A number that this machine does not have makes the start fail.
    fn on_cpus(&mut self, cpus: &[usize]) -> &mut Self;

    /// Gives the process these signals back, which this thread has blocked and the process would inherit so.
    fn with_signals(&mut self, blocked: &SigSet) -> &mut Self;

    /// Kills the process when the thread that starts it ends, however it ends. A process that changes its user after
    /// the start is no longer covered (`PR_SET_PDEATHSIG` in `prctl(2)`).
    fn dies_with_parent(&mut self, signal: Signal) -> &mut Self;

    /// Has the process write its number and a newline to this pipe before its program starts, so that whoever reads
    /// there knows of it even when this process is killed at that very moment. The end of the pipe is not seen before.
    fn announces_itself(&mut self, to: OwnedFd) -> &mut Self;
}

impl CommandPlace for Command {
    fn in_netns(&mut self, netns: &NetNs) -> &mut Self {
        // The descriptor is owned by the closure, so that it is still open when the process starts.
        let fd = netns.as_fd().try_clone_to_owned();
        let enter = move || {
            let fd = fd
                .as_ref()
                .map_err(|error| std::io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EBADF)))?;
            setns(fd, CloneFlags::CLONE_NEWNET)?;
            Ok(())
        };
        // SAFETY: between fork and exec only async-signal-safe work is allowed; `setns` is one system call, and the
        // error path allocates nothing.
        unsafe { self.pre_exec(enter) }
    }

    fn on_cpus(&mut self, cpus: &[usize]) -> &mut Self {
        let mut set = CpuSet::new();
        let fits = cpus.iter().all(|cpu| set.set(*cpu).is_ok());
        let pin = move || {
            if !fits {
                return Err(std::io::Error::from_raw_os_error(libc::EINVAL));
            }
            sched_setaffinity(Pid::from_raw(0), &set)?;
            Ok(())
        };
        // SAFETY: `sched_setaffinity` is one system call on memory the closure owns; nothing is allocated.
        unsafe { self.pre_exec(pin) }
    }

    fn with_signals(&mut self, blocked: &SigSet) -> &mut Self {
        let blocked = *blocked;
        let unblock = move || Ok(blocked.thread_unblock()?);
        // SAFETY: `pthread_sigmask` is async-signal-safe and works on memory the closure owns; nothing is allocated.
        unsafe { self.pre_exec(unblock) }
    }

    fn dies_with_parent(&mut self, signal: Signal) -> &mut Self {
        let parent = std::process::id();
        let bind = move || {
            prctl::set_pdeathsig(signal)?;
            // The parent may have died before the signal was asked for: then nobody would ever send it.
            if nix::unistd::getppid().as_raw().cast_unsigned() != parent {
                return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        };
        // SAFETY: `prctl` and `getppid` are async-signal-safe system calls; nothing is allocated.
        unsafe { self.pre_exec(bind) }
    }

    fn announces_itself(&mut self, to: OwnedFd) -> &mut Self {
        let announce = move || {
            let mut line = [b'\n'; 11];
            let (mut first, mut rest) = (line.len() - 1, std::process::id());
            while rest > 0 {
                first -= 1;
                line[first] = b'0' + (rest % 10) as u8;
                rest /= 10;
            }
            // A write this short to a pipe is whole or not at all; a reader that has gone is no reason not to start.
            let _ = nix::unistd::write(&to, &line[first..]);
            Ok(())
        };
        // SAFETY: `getpid` and `write` are async-signal-safe system calls; nothing is allocated.
        unsafe { self.pre_exec(announce) }
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
    fn a_process_gets_blocked_signals_back() {
        let blocked: SigSet = [Signal::SIGUSR1].into_iter().collect();
        let shown = std::thread::spawn(move || {
            blocked.thread_block().expect("block");
            let mut command = Command::new("grep");
            command.args(["SigBlk", "/proc/self/status"]);
            let inherited = command.output().expect("grep runs").stdout;
            (inherited, command.with_signals(&blocked).output().expect("grep runs").stdout)
        });
        let (inherited, given_back) = shown.join().expect("no panic");
        assert_ne!(inherited, given_back);
        assert!(given_back.ends_with(b"0000000000000000\n"), "{given_back:?}");
    }

    #[test]
    fn a_process_announces_itself_before_its_program_starts() {
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let child = Command::new("true").announces_itself(writer.into()).spawn();
        let mut said = String::new();
        // The command, and with it the last writer, went at the end of the statement.
        std::io::Read::read_to_string(&mut reader, &mut said).expect("read");
        let mut child = child.expect("true runs");
        assert_eq!(said, format!("{}\n", child.id()));
        assert!(child.wait().expect("wait").success());
    }

    #[test]
    fn an_impossible_cpu_is_an_error() {
        assert!(Command::new("true").on_cpus(&[100_000]).status().is_err());
    }
}
