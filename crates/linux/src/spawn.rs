//! What a child process has before its program starts: a namespace and unblocked signals.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sched::{CloneFlags, setns};
use nix::sys::signal::SigSet;

/// Settings of a [`Command`] that the standard library does not have.
pub trait CommandSetup {
    /// Starts the process in this network namespace.
    fn in_netns(&mut self, netns: &impl AsFd) -> &mut Self;

    /// Unblocks these signals, which the process would otherwise inherit as blocked from the calling thread.
    fn unblock_signals(&mut self, blocked: &SigSet) -> &mut Self;

    /// Makes the process write its ID and a newline to this pipe before its program starts, so that the reader knows the ID
    /// even if the calling process is killed at that moment. The reader reaches the end of the pipe only afterwards.
    fn write_pid_to(&mut self, pipe: OwnedFd) -> &mut Self;
}

impl CommandSetup for Command {
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

    fn unblock_signals(&mut self, blocked: &SigSet) -> &mut Self {
        let blocked = *blocked;
        let unblock = move || Ok(blocked.thread_unblock()?);
        // SAFETY: `pthread_sigmask` is async-signal-safe and works on memory the closure owns; nothing is allocated.
        unsafe { self.pre_exec(unblock) }
    }

    fn write_pid_to(&mut self, pipe: OwnedFd) -> &mut Self {
        let write_pid = move || {
            let mut line = [b'\n'; 11];
            let (mut first, mut rest) = (line.len() - 1, std::process::id());
            while rest > 0 {
                first -= 1;
                line[first] = b'0' + (rest % 10) as u8;
                rest /= 10;
            }
            // A write this short to a pipe is atomic. A closed reader is no reason not to start.
            let _ = rustix::io::write(&pipe, &line[first..]);
            Ok(())
        };
        // SAFETY: `getpid` and `write` are async-signal-safe system calls; nothing is allocated.
        unsafe { self.pre_exec(write_pid) }
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::Signal;

    use super::*;

    #[test]
    fn a_process_gets_blocked_signals_back() {
        let blocked: SigSet = [Signal::SIGUSR1].into_iter().collect();
        let shown = std::thread::spawn(move || {
            blocked.thread_block().expect("block");
            let mut command = Command::new("grep");
            command.args(["SigBlk", "/proc/self/status"]);
            let inherited = command.output().expect("grep runs").stdout;
            (inherited, command.unblock_signals(&blocked).output().expect("grep runs").stdout)
        });
        let (inherited, unblocked) = shown.join().expect("no panic");
        assert_ne!(inherited, unblocked);
        assert!(unblocked.ends_with(b"0000000000000000\n"), "{unblocked:?}");
    }

    #[test]
    fn a_process_writes_its_id_before_its_program_starts() {
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let child = Command::new("true").write_pid_to(writer.into()).spawn();
        let mut text = String::new();
        // The command, and with it the last writer, was dropped at the end of the statement.
        std::io::Read::read_to_string(&mut reader, &mut text).expect("read");
        let mut child = child.expect("true runs");
        assert_eq!(text, format!("{}\n", child.id()));
        assert!(child.wait().expect("wait").success());
    }
}
