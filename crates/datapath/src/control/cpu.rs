//! CPU time by context: that of the application's threads and of the runtime's own, and the part of it in the kernel.

use std::fs;

use rustix::param::clock_ticks_per_second;
use rustix::thread::Pid;

use super::status::{ContextCpu, Role};
use crate::threads::ThreadStats;

/// Returns the CPU time of the process's threads by context, the application's first.
pub(super) fn by_context(own: &[(ThreadStats, Role)]) -> Vec<ContextCpu> {
    let mut contexts: Vec<ContextCpu> = Vec::new();
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten();
    for tid in tasks.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok()) {
        // The thread may have ended.
        let Some((cpu_ns, kernel_ns)) = times(tid) else { continue };
        let role = own.iter().find(|(stats, _)| stats.tid == tid).map(|(_, role)| *role);
        match contexts.iter_mut().find(|context| context.role == role) {
            Some(context) => {
                context.threads += 1;
                context.cpu_ns += cpu_ns;
                context.kernel_ns += kernel_ns;
            }
            None => contexts.push(ContextCpu { role, threads: 1, cpu_ns, kernel_ns }),
        }
    }
    contexts.sort_by_key(|context| context.role.map(|role| role as u8));
    contexts
}

/// Returns the CPU time of a thread and the part of it in the kernel: `schedstat` and the 15th field of `stat`
/// (`proc_pid_stat(5)`).
fn times(tid: u32) -> Option<(u64, u64)> {
    Pid::from_raw(tid.cast_signed())?;
    let read = |file: &str| fs::read_to_string(format!("/proc/self/task/{tid}/{file}")).ok();
    let cpu_ns = read("schedstat")?.split(' ').next()?.parse().ok()?;
    let stat = read("stat")?;
    // The name may contain any character, and ends with the last parenthesis. The state is the third field.
    let ticks: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(12)?.parse().ok()?;
    Some((cpu_ns, ticks * (1_000_000_000 / clock_ticks_per_second().max(1))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_are_not_the_runtimes_are_the_applications() {
        let end = std::time::Instant::now() + std::time::Duration::from_millis(5);
        while std::time::Instant::now() < end {}
        let contexts = by_context(&[]);
        assert_eq!(contexts.len(), 1, "{contexts:?}");
        assert!(contexts[0].role.is_none() && contexts[0].threads > 0 && contexts[0].cpu_ns > 0, "{contexts:?}");
    }
}
