//! Expiries of the deferral timers of NAPI instances.

use crate::counters::{CountError, Sum, Target};
use crate::cpu::CpuList;
use crate::tracefs::Tracefs;

const KALLSYMS: &str = "/proc/kallsyms";
const HANDLER: &str = "napi_watchdog";

/// A counter of expiries of the per-NAPI timer that gro-flush-timeout and irq-suspend-timeout arm, on all CPUs.
///
/// At least one expiry proves that deferral is active on some device: without defer-hard-irqs (and without packets that GRO
/// holds back) the timer is never armed. The device is unknown, because the event has only the handler. On `suspendX`,
/// expiries under load mean that suspension does *not* work (the safety timer fires).
#[derive(Debug)]
pub struct TimerCounter(Sum);

impl TimerCounter {
    /// Starts counting.
    ///
    /// # Errors
    /// [`CountError::Unsupported`] if the kernel hides the handler's address (`kernel.kptr_restrict`, or a caller
    /// without CAP_SYSLOG); otherwise those of any tracepoint.
    pub fn open() -> Result<Self, CountError> {
        let tracefs = Tracefs::open()?;
        let cpus = CpuList::online()?;
        let filter = format!("function == {:#x}", handler_address()?);
        Sum::tracepoint(&tracefs, ("timer", "hrtimer_expire_entry"), Target::Cpus(&cpus), Some(&filter)).map(Self)
    }

    /// Reads the expiries since the counter was opened.
    ///
    /// # Errors
    /// [`CountError::Read`].
    pub fn read(&mut self) -> Result<u64, CountError> {
        self.0.read()
    }
}

fn handler_address() -> Result<u64, CountError> {
    let what = "expiries of the deferral timer";
    let text = std::fs::read_to_string(KALLSYMS)
        .map_err(|source| CountError::Open { what: format!("{what} ({KALLSYMS})"), source })?;
    let unsupported = |reason: &str| CountError::Unsupported { what: what.into(), reason: reason.into() };
    match find_symbol(&text, HANDLER) {
        Some(0) => Err(unsupported("the kernel hides its addresses; run as root with kernel.kptr_restrict below 2")),
        Some(address) => Ok(address),
        None => Err(unsupported(
            "/proc/kallsyms has no napi_watchdog (CONFIG_KALLSYMS_ALL, or a kernel without NAPI timers)",
        )),
    }
}

// "ffffffff81e609e0 t napi_watchdog", with the module's name after it for a module.
fn find_symbol(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let address = words.next()?;
        (words.nth(1)? == name).then(|| u64::from_str_radix(address, 16).ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::find_symbol;

    #[test]
    fn a_symbol_is_found_by_its_whole_name() {
        let text = "ffffffff81000000 T start\nffffffff81e609e0 t napi_watchdog_x\nffffffff81e609f0 t napi_watchdog\n";
        assert_eq!(find_symbol(text, "napi_watchdog"), Some(0xffff_ffff_81e6_09f0));
        assert_eq!(find_symbol(text, "none"), None);
        assert_eq!(find_symbol("0000000000000000 t napi_watchdog\n", "napi_watchdog"), Some(0));
    }
}
