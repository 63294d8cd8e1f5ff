//! CPU time: of CPUs between two readings of `/proc/stat`, and of a process.
//!
//! # Accuracy
//!
//! *Busy* is computed from the idle time: `1 - (idle + iowait) / interval`. On a kernel with CONFIG_NO_HZ_COMMON
//! idle time is measured with nanosecond timestamps at every entry to and exit from the idle loop (interrupts and
//! softirqs on an idle CPU are excluded), and only its display is rounded down to 10 ms (`USER_HZ`). The error of a share over
//! one second is therefore below one percent of the CPU. The interval is measured with the monotonic clock, because the sum of
//! all columns is inexact: without CONFIG_VIRT_CPU_ACCOUNTING and CONFIG_IRQ_TIME_ACCOUNTING, `user`, `system`, `irq` and
//! `softirq` are samples taken at the timer tick, and are wrong for load that is synchronous with the tick. They are not
//! offered for that reason. Stolen time (steal) counts as busy: the CPU could not be used.
//!
//! A process's own CPU time ([`ProcessCpuClock`]) comes from the scheduler and has nanosecond resolution.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use super::{CpuError, CpuList};

const PATH: &str = "/proc/stat";

/// The CPU time used in an interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    /// The share of the CPUs' time that was not idle, from 0 to 1.
    pub busy: f64,
    /// CPU time that was not idle, summed over the CPUs.
    pub busy_time: Duration,
    /// The length of the interval.
    pub interval: Duration,
    /// The largest error of `busy`, because the kernel rounds idle time to 10 ms.
    pub resolution: f64,
}

/// The idle time of each CPU.
#[derive(Debug, Clone)]
pub struct CpuTimes {
    at: Instant,
    tick: Duration,
    idle: BTreeMap<u32, u64>,
}

impl CpuTimes {
    /// Reads `/proc/stat`.
    ///
    /// # Errors
    /// The file cannot be read or has another form.
    pub fn read() -> Result<Self, CpuError> {
        let text = std::fs::read_to_string(PATH).map_err(|source| CpuError::Read { path: PATH.into(), source })?;
        let at = Instant::now();
        let tick = Duration::from_secs(1) / rustix::param::clock_ticks_per_second().max(1) as u32;
        Ok(Self { at, tick, idle: parse(&text)? })
    }

    /// Returns the usage of `cpus` from `earlier` to this reading.
    ///
    /// # Errors
    /// [`CpuError::Offline`] if one of them is missing from either reading, [`CpuError::Empty`] for no CPUs.
    pub fn since(&self, earlier: &Self, cpus: &CpuList) -> Result<Usage, CpuError> {
        if cpus.is_empty() {
            return Err(CpuError::Empty);
        }
        let interval = self.at.saturating_duration_since(earlier.at);
        let mut busy_time = Duration::ZERO;
        for cpu in cpus.iter() {
            let (Some(&now), Some(&then)) = (self.idle.get(&cpu), earlier.idle.get(&cpu)) else {
                return Err(CpuError::Offline { cpu, online: self.idle.keys().copied().collect() });
            };
            // Idle time can decrease by a tick when a CPU leaves idle between the two readings.
            let idle = self.tick * now.saturating_sub(then) as u32;
            busy_time += interval.saturating_sub(idle);
        }
        let seconds = interval.as_secs_f64();
        let share = |time: Duration| if seconds > 0.0 { time.as_secs_f64() / seconds } else { 1.0 };
        Ok(Usage {
            busy: (share(busy_time) / cpus.len() as f64).min(1.0),
            busy_time,
            interval,
            resolution: share(self.tick).min(1.0),
        })
    }
}

// "cpu1 user nice system idle iowait irq softirq steal guest guest_nice", in ticks.
fn parse(text: &str) -> Result<BTreeMap<u32, u64>, CpuError> {
    let bad = |line: &str| CpuError::Parse { path: PATH.into(), text: line.chars().take(60).collect() };
    let mut idle = BTreeMap::new();
    for line in text.lines().filter(|l| l.starts_with("cpu") && !l.starts_with("cpu ")) {
        let mut words = line.split_whitespace();
        let cpu = words.next().and_then(|w| w[3..].parse().ok()).ok_or_else(|| bad(line))?;
        let columns: Vec<u64> = words.map(str::parse).collect::<Result<_, _>>().map_err(|_| bad(line))?;
        let [_, _, _, idle_ticks, iowait_ticks, ..] = columns[..] else { return Err(bad(line)) };
        idle.insert(cpu, idle_ticks + iowait_ticks);
    }
    if idle.is_empty() { Err(bad(text)) } else { Ok(idle) }
}

/// The CPU-time clock of a process: user and system time of all its threads, including exited ones, in nanoseconds
/// (`clock_getcpuclockid(3)`). On a kernel without CONFIG_IRQ_TIME_ACCOUNTING it includes interrupts and softirqs that
/// interrupted the process. It does not include children.
#[derive(Debug, Clone, Copy)]
pub struct ProcessCpuClock {
    pid: u32,
    clock: nix::time::ClockId,
}

impl ProcessCpuClock {
    /// Opens the clock of process `pid`.
    ///
    /// # Errors
    /// [`CpuError::NoProcess`] when there is no such process.
    pub fn of(pid: u32) -> Result<Self, CpuError> {
        let no_process = CpuError::NoProcess(pid);
        let Ok(raw) = i32::try_from(pid) else { return Err(no_process) };
        let clock = nix::time::clock_getcpuclockid(nix::unistd::Pid::from_raw(raw)).map_err(|_| no_process)?;
        Ok(Self { pid, clock })
    }

    /// CPU time used since the process began.
    ///
    /// # Errors
    /// [`CpuError::NoProcess`] if it does not exist.
    pub fn read(&self) -> Result<Duration, CpuError> {
        match nix::time::clock_gettime(self.clock) {
            Ok(time) => Ok(time.into()),
            Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ESRCH) => Err(CpuError::NoProcess(self.pid)),
            Err(e) => Err(CpuError::Read {
                path: format!("the CPU clock of process {}", self.pid),
                source: io::Error::from(e),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(at: Instant, idle: &[(u32, u64)]) -> CpuTimes {
        CpuTimes { at, tick: Duration::from_millis(10), idle: idle.iter().copied().collect() }
    }

    #[test]
    fn busy_is_what_was_not_idle() {
        let start = Instant::now();
        let earlier = reading(start, &[(0, 100), (1, 0)]);
        let later = reading(start + Duration::from_secs(1), &[(0, 175), (1, 0)]);
        let usage = |cpus: &str| later.since(&earlier, &cpus.parse().unwrap()).unwrap();
        assert!((usage("0").busy - 0.25).abs() < 1e-9);
        assert!((usage("1").busy - 1.0).abs() < 1e-9);
        assert!((usage("0-1").busy - 0.625).abs() < 1e-9);
        assert_eq!(usage("0-1").busy_time, Duration::from_millis(1250));
        assert!((usage("0").resolution - 0.01).abs() < 1e-9);
        assert!(matches!(later.since(&earlier, &CpuList::from(2)), Err(CpuError::Offline { cpu: 2, .. })));
        assert!(matches!(later.since(&earlier, &CpuList::default()), Err(CpuError::Empty)));
    }

    #[test]
    fn stat_is_read_per_cpu_with_iowait_as_idle() {
        let text = "cpu  1 2 3 4 5 6 7 8 0 0\ncpu0 1 2 3 40 5 6 7 8 0 0\ncpu3 1 2 3 50 0 6 7 8 0 0\nintr 1 2\n";
        assert_eq!(parse(text).unwrap(), BTreeMap::from([(0, 45), (3, 50)]));
        for bad in ["", "cpu0 1 2\n", "cpu0 1 2 3 x 5\n", "cpux 1 2 3 4 5\n"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
