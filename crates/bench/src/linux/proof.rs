//! Proof that a mode is active, by counters and not by configuration.

use abey_delivery::Mode;
use abey_linux::counters::{Count, CountError, NetStat, Work, WorkCounter};
use abey_linux::polls::{PollCounter, PollCounts, TimerCounter};
use abey_linux::process;

/// Counters of a separate run before the measurement, because they cost CPU time.
pub(super) struct ProofCounters {
    polls: PollCounter,
    timers: TimerCounter,
    system_calls: WorkCounter,
    server: u32,
    busy_packets: Option<u64>,
}

/// The counts of the proof.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ProofCounts {
    pub(super) polls: PollCounts,
    /// Expiries of deferral and suspension timers on the whole machine.
    pub(super) timers: u64,
    /// Packets received by busy polls in the server's namespace.
    pub(super) busy_packets: Option<u64>,
    /// System calls of the server's processes.
    pub(super) system_calls: Option<u64>,
}

impl ProofCounters {
    pub(super) fn open(device: &str, kthreads: &[u32], server: u32) -> Result<Self, CountError> {
        let threads = process::tree_threads(server).map_err(|_| CountError::NoProcess(server))?;
        Ok(Self {
            polls: PollCounter::open_for(device, kthreads, &threads)?,
            timers: TimerCounter::open()?,
            system_calls: WorkCounter::on_process_tree(server, &[Count::SystemCalls])?,
            server,
            busy_packets: busy_packets(server),
        })
    }

    pub(super) fn close(mut self) -> Result<ProofCounts, CountError> {
        let busy_packets = busy_packets(self.server).zip(self.busy_packets);
        let work: Work = self.system_calls.read()?;
        Ok(ProofCounts {
            polls: self.polls.read()?,
            timers: self.timers.read()?,
            busy_packets: busy_packets.map(|(now, before)| now.saturating_sub(before)),
            system_calls: work.get(Count::SystemCalls),
        })
    }
}

/// Returns the packets received by busy polls in the namespace of a process (`BusyPollRxPackets` of `/proc/PID/net/netstat`).
fn busy_packets(pid: u32) -> Option<u64> {
    NetStat::read_pid(pid).ok()?.busy_poll_rx_packets()
}

impl ProofCounts {
    /// Describes the counts that prove the mode active, or why they do not.
    pub(super) fn prove(&self, mode: Mode) -> Result<String, String> {
        let PollCounts { softirq, softirq_with_work, busy_with_work, kthread, kthread_with_work, .. } = self.polls;
        if self.polls.total() == 0 {
            return Err("no packet went through the device's NAPI instance".to_owned());
        }
        let settings = mode.settings();
        let busy = self.busy_packets.unwrap_or(0);
        match mode {
            Mode::Threaded | Mode::ThreadedBusy if kthread_with_work == 0 => {
                Err(format!("its thread polled {kthread} times without a packet, the softirq polled {softirq} times"))
            }
            Mode::Threaded | Mode::ThreadedBusy => {
                Ok(format!("{kthread_with_work} polls with packets by the NAPI thread, {softirq} in softirq"))
            }
            _ if settings.epoll.is_some() && busy_with_work == 0 => {
                Err(format!("the server's threads found no packet by busy polling, the softirq polled {softirq} times"))
            }
            _ if settings.epoll.is_some() => Ok(format!(
                "{busy_with_work} busy polls with packets by the server ({busy} packets), {softirq_with_work} polls with \
                 packets in softirq, {} timer expiries",
                self.timers
            )),
            _ if settings.napi.defers() && self.timers == 0 => {
                Err(format!("the deferral timer never fired, the softirq polled {softirq} times"))
            }
            _ if settings.napi.defers() => Ok(format!(
                "{softirq_with_work} polls with packets in softirq of {softirq}, {} timer expiries",
                self.timers
            )),
            _ if busy_with_work > 0 || softirq_with_work == 0 => Err(format!(
                "the server busy polled {busy_with_work} times with packets, the softirq polled {softirq_with_work} times with \
                 packets"
            )),
            _ => Ok(format!("{softirq_with_work} polls with packets in softirq, none by busy polling")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(polls: PollCounts, timers: u64) -> ProofCounts {
        ProofCounts { polls, timers, busy_packets: Some(polls.busy_with_work), system_calls: None }
    }

    fn softirq(count: u64) -> PollCounts {
        PollCounts { softirq: count, softirq_with_work: count, ..PollCounts::default() }
    }

    fn is_proved(mode: &str, polls: PollCounts, timers: u64) -> bool {
        counts(polls, timers).prove(mode.parse().expect("mode")).is_ok()
    }

    #[test]
    fn each_mode_is_proved_by_its_own_counters() {
        let busy = PollCounts { busy: 9, busy_with_work: 5, ..softirq(3) };
        let thread = PollCounts { kthread: 9, kthread_with_work: 5, ..softirq(3) };
        for (mode, polls, timers) in [
            ("base", softirq(9), 0),
            ("defer50", softirq(9), 4),
            ("napibusy", busy, 0),
            ("fullbusy", busy, 0),
            ("suspend20", busy, 2),
            ("threaded", thread, 0),
        ] {
            assert!(is_proved(mode, polls, timers), "{mode}");
        }
    }

    #[test]
    fn an_inactive_mode_is_not_proved() {
        for mode in ["napibusy", "fullbusy", "suspend20", "threaded"] {
            assert!(!is_proved(mode, softirq(9), 9), "{mode} with polls in softirq only");
        }
        assert!(!is_proved("defer50", softirq(9), 0), "deferral whose timer never fires");
        assert!(!is_proved("base", PollCounts { busy: 5, busy_with_work: 5, ..softirq(1) }, 0), "base that busy polls");
        for mode in ["base", "defer50", "suspend20", "threaded"] {
            assert!(!is_proved(mode, PollCounts::default(), 9), "{mode} without a single poll");
        }
    }
}
