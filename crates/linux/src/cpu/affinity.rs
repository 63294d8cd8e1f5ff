//! The CPUs that processes, threads and interrupts may use.

use std::fs::OpenOptions;
use std::io::{self, Write};

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::CpuSet;

use super::{CpuError, CpuList};

/// Returns the CPUs that thread `tid` may run on (`sched_getaffinity(2)`).
///
/// # Errors
/// [`CpuError::NoProcess`] if it does not exist.
pub fn thread_affinity(tid: u32) -> Result<CpuList, CpuError> {
    let set = rustix::thread::sched_getaffinity(Some(as_pid(tid)?)).map_err(|e| explain("read the CPUs of", tid, e))?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).map(|cpu| cpu as u32).collect())
}

/// Pins thread `tid` to `cpus` (`sched_setaffinity(2)`). Threads that it creates later inherit this.
///
/// # Errors
/// A CPU is not online, the thread does not exist, or the caller lacks the privilege.
pub fn set_thread_affinity(tid: u32, cpus: &CpuList) -> Result<(), CpuError> {
    cpus.check_online()?;
    let mut set = CpuSet::new();
    for cpu in cpus.iter() {
        set.set(cpu as usize);
    }
    rustix::thread::sched_setaffinity(Some(as_pid(tid)?), &set).map_err(|e| explain("pin", tid, e))
}

/// Returns the CPUs that at least one thread of process `pid` may run on.
///
/// # Errors
/// [`CpuError::NoProcess`] if it does not exist.
pub fn process_affinity(pid: u32) -> Result<CpuList, CpuError> {
    let mut all = Vec::new();
    for tid in threads(pid)? {
        match thread_affinity(tid) {
            Ok(cpus) => all.extend(cpus.iter()),
            Err(CpuError::NoProcess(_)) => {}
            Err(e) => return Err(e),
        }
    }
    if all.is_empty() { Err(CpuError::NoProcess(pid)) } else { Ok(all.into_iter().collect()) }
}

/// Pins every thread of process `pid` to `cpus`, including threads that are created meanwhile.
///
/// # Errors
/// Those of [`set_thread_affinity`]. Some threads may be pinned already.
pub fn set_process_affinity(pid: u32, cpus: &CpuList) -> Result<(), CpuError> {
    // A thread created during a pass inherits the CPUs of its creator, which may not have been pinned yet.
    let mut pinned = std::collections::BTreeSet::new();
    loop {
        let new: Vec<u32> = threads(pid)?.into_iter().filter(|tid| !pinned.contains(tid)).collect();
        if new.is_empty() {
            return Ok(());
        }
        for tid in new {
            match set_thread_affinity(tid, cpus) {
                Err(CpuError::NoProcess(_)) if tid != pid => {}
                other => other?,
            }
            pinned.insert(tid);
        }
    }
}

/// Returns the CPUs that interrupt `irq` may be delivered to (`/proc/irq/<irq>/smp_affinity_list`).
///
/// # Errors
/// [`CpuError::NoIrq`] if there is no such interrupt.
pub fn irq_affinity(irq: u32) -> Result<CpuList, CpuError> {
    read_irq(irq, "smp_affinity_list")
}

/// Returns the CPUs that the interrupt controller chose for interrupt `irq` among the allowed ones
/// (`/proc/irq/<irq>/effective_affinity_list`).
///
/// # Errors
/// [`CpuError::NoIrq`] if there is no such interrupt, or this kernel does not show them.
pub fn effective_irq_affinity(irq: u32) -> Result<CpuList, CpuError> {
    read_irq(irq, "effective_affinity_list")
}

fn read_irq(irq: u32, file: &str) -> Result<CpuList, CpuError> {
    let path = format!("/proc/irq/{irq}/{file}");
    let text = std::fs::read_to_string(path).map_err(|e| explain_irq(irq, "reading its CPUs", e))?;
    Ok(text.trim().parse()?)
}

/// Restricts interrupt `irq` to `cpus`.
///
/// # Errors
/// A CPU is not online, there is no such interrupt, the caller is not root, or it is [`CpuError::FixedIrq`].
pub fn set_irq_affinity(irq: u32, cpus: &CpuList) -> Result<(), CpuError> {
    cpus.check_online()?;
    let mut file = OpenOptions::new().write(true).open(irq_path(irq)).map_err(|e| explain_irq(irq, "moving it", e))?;
    file.write_all(cpus.to_string().as_bytes()).map_err(|e| match e.raw_os_error() {
        Some(libc::EPERM | libc::EIO) => CpuError::FixedIrq(irq),
        _ => explain_irq(irq, "moving it", e),
    })
}

fn irq_path(irq: u32) -> String {
    format!("/proc/irq/{irq}/smp_affinity_list")
}

fn explain_irq(irq: u32, what: &str, source: io::Error) -> CpuError {
    match source.kind() {
        io::ErrorKind::NotFound => CpuError::NoIrq(irq),
        io::ErrorKind::PermissionDenied => CpuError::NoPermission { what: format!("IRQ {irq}: {what}") },
        _ => CpuError::Change { what: format!("handle IRQ {irq} ({what})"), source },
    }
}

fn threads(pid: u32) -> Result<Vec<u32>, CpuError> {
    let path = format!("/proc/{pid}/task");
    let entries = match std::fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(CpuError::NoProcess(pid)),
        Err(source) => return Err(CpuError::Read { path, source }),
    };
    Ok(entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect())
}

fn as_pid(tid: u32) -> Result<Pid, CpuError> {
    i32::try_from(tid).ok().and_then(Pid::from_raw).ok_or(CpuError::NoProcess(tid))
}

fn explain(what: &str, tid: u32, errno: Errno) -> CpuError {
    match errno {
        Errno::SRCH => CpuError::NoProcess(tid),
        Errno::PERM | Errno::ACCESS => CpuError::NoPermission { what: format!("to {what} process {tid}") },
        other => CpuError::Change { what: format!("{what} process {tid}"), source: other.into() },
    }
}
