//! Process trees and their threads.

use std::collections::{BTreeMap, BTreeSet};

use abey_text::visible;

use super::{ProcessError, ThreadView, explain, explain_io};

/// Lists the descendants of process `pid`, without itself, by ID. A process whose parent exited is no descendant any more
/// (a daemon that forked into the background).
///
/// # Errors
/// `/proc` cannot be read. A process that does not exist has no descendants.
pub fn descendants(pid: u32) -> Result<Vec<u32>, ProcessError> {
    Ok(below(pid, &parents()?))
}

/// Lists the same as [`descendants`], and reads only files of these processes, however many others the machine has
/// (`/proc/PID/task/TID/children`, proc(5)). A process can be missing whose parent or sibling exits at this moment: its parent
/// gets SIGCHLD. `None` if the kernel was built without these files.
#[must_use]
pub fn descendants_by_parent(pid: u32) -> Option<Vec<u32>> {
    let mut found = BTreeSet::new();
    let mut parents = vec![pid];
    while let Some(parent) = parents.pop() {
        // A process that has exited has no threads.
        for tid in threads(parent).unwrap_or_default() {
            match std::fs::read_to_string(format!("/proc/{parent}/task/{tid}/children")) {
                Ok(children) => {
                    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
                    parents.extend(children.filter(|child| found.insert(*child)));
                }
                Err(_) if tid == pid => return None,
                Err(_) => {}
            }
        }
    }
    Some(found.into_iter().collect())
}

/// Returns the start time of process `pid`, in clock ticks since boot. Process IDs are reused; ID and start time together
/// identify a process until the machine restarts. `None` if it does not exist or is a zombie.
#[must_use]
pub fn start_time(pid: u32) -> Option<u64> {
    identity(pid).map(|(started, _)| started)
}

/// Returns the start time of process `pid`, as [`start_time`] does, and its name.
#[must_use]
pub fn identity(pid: u32) -> Option<(u64, String)> {
    let stat = procfs::process::Process::new(i32::try_from(pid).ok()?).ok()?.stat().ok()?;
    (stat.state != 'Z').then_some((stat.starttime, visible(&stat.comm).into_owned()))
}

/// Lists the threads of process `pid`, by ID.
///
/// # Errors
/// [`ProcessError::NoProcess`] if there is no such process.
pub fn threads(pid: u32) -> Result<Vec<u32>, ProcessError> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).map_err(|e| explain_io(pid, "the threads", &e))?;
    let mut all: Vec<u32> = entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect();
    all.sort_unstable();
    Ok(all)
}

/// Lists the threads of process `pid` and of all its descendants, by ID.
///
/// # Errors
/// [`ProcessError::NoProcess`] if there is no process `pid`.
pub fn tree_threads(pid: u32) -> Result<Vec<u32>, ProcessError> {
    let mut all = BTreeSet::from_iter(threads(pid)?);
    for member in descendants(pid)? {
        match threads(member) {
            Ok(threads) => all.extend(threads),
            Err(ProcessError::NoProcess(_)) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(all.into_iter().collect())
}

pub(super) fn thread_views(pid: u32) -> Result<Vec<ThreadView>, ProcessError> {
    let mut views = Vec::new();
    for tid in threads(pid)? {
        match std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")) {
            Ok(comm) => views.push(ThreadView { tid, comm: visible(comm.trim_end_matches('\n')).into() }),
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {}
            Err(e) => return Err(explain_io(pid, "the threads", &e)),
        }
    }
    Ok(views)
}

/// Returns the parent of every process of this PID namespace.
pub(super) fn parents() -> Result<BTreeMap<u32, u32>, ProcessError> {
    let all = procfs::process::all_processes().map_err(|e| explain(std::process::id(), "the list in /proc", e))?;
    // A process that cannot be read has exited.
    Ok(all.filter_map(|p| p.ok()?.stat().ok()).map(|stat| (stat.pid as u32, stat.ppid as u32)).collect())
}

pub(super) fn below(pid: u32, parents: &BTreeMap<u32, u32>) -> Vec<u32> {
    let mut found = BTreeSet::from([pid]);
    loop {
        let before = found.len();
        found.extend(parents.iter().filter(|&(_, parent)| found.contains(parent)).map(|(&p, _)| p).collect::<Vec<_>>());
        if found.len() == before {
            break;
        }
    }
    found.remove(&pid);
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_find_the_same_descendants() {
        let script = "sleep 100 & sh -c 'sleep 100 & wait' & echo started; wait";
        let mut command = std::process::Command::new("sh");
        let mut shell = command.args(["-c", script]).stdout(std::process::Stdio::piped()).spawn().expect("a shell");
        let all = loop {
            let all = descendants(shell.id()).expect("/proc");
            if all.len() == 3 {
                break all;
            }
            std::thread::yield_now();
        };
        let by_parent = descendants_by_parent(shell.id());
        assert!(by_parent.is_none_or(|found| found == all));
        for pid in all {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.cast_signed()), nix::sys::signal::SIGKILL);
        }
        shell.wait().expect("it has no child any more");
    }

    #[test]
    fn descendants_are_found_at_any_depth_and_in_any_order_of_ids() {
        let parents = BTreeMap::from([(2, 9), (9, 5), (5, 1), (7, 1), (3, 2), (1, 0)]);
        assert_eq!(below(5, &parents), [2, 3, 9]);
        assert_eq!(below(7, &parents), Vec::<u32>::new());
        assert_eq!(below(1, &parents), [2, 3, 5, 7, 9]);
    }
}
