//! The capabilities that changes take, checked before anything is changed.

use abey_linux::machine::Capability;
use abey_policy::{Action, Change, Planned};
use rustix::thread::{CapabilitySet, capabilities};

use crate::error::ReconcileError;
use crate::step::Step;

/// Checks that this process has the capabilities for the planned actions.
///
/// If the process has them in another user namespace than the device's, the kernel refuses the changes later.
pub(crate) fn check(planned: &[Planned]) -> Result<(), ReconcileError> {
    let root = rustix::process::geteuid().is_root();
    let effective = effective()?;
    for planned in planned {
        for needed in needed_for(&planned.action, root) {
            if !effective.contains(flag(needed)) {
                return Err(missing(&format!("what {} asks for", planned.origin), needed));
            }
        }
    }
    Ok(())
}

/// Checks that this process may set the CPUs of processes of other users.
pub(crate) fn check_pinning() -> Result<(), ReconcileError> {
    let needed = Capability::SysNice;
    if rustix::process::geteuid().is_root() || effective()?.contains(flag(needed)) {
        return Ok(());
    }
    Err(missing("setting the CPUs of a program", needed))
}

/// Checks that this process has the capabilities for undoing the steps.
pub(crate) fn check_undo<'a>(steps: impl Iterator<Item = &'a Step>) -> Result<(), ReconcileError> {
    let root = rustix::process::geteuid().is_root();
    let effective = effective()?;
    for step in steps {
        let Some(needed) = step.capability(root) else { continue };
        if !effective.contains(flag(needed)) {
            let what = step.device().unwrap_or("a program");
            return Err(missing(&format!("restoring the settings of {what} from before an earlier apply"), needed));
        }
    }
    Ok(())
}

fn missing(what: &str, needed: Capability) -> ReconcileError {
    let advice = needed.advice();
    ReconcileError::Impossible(format!("{what} needs {needed}, which this process does not have: {advice}"))
}

fn effective() -> Result<CapabilitySet, ReconcileError> {
    let failed = |error| ReconcileError::Failed(format!("cannot read the capabilities of this process: {error}"));
    Ok(capabilities(None).map_err(failed)?.effective)
}

/// Returns the capabilities that an action takes. Files below `/proc` and `/sys` belong to root, as do kernel threads.
fn needed_for(action: &Action, root: bool) -> Vec<Capability> {
    let mut needed = Vec::new();
    let Action::Change(change) = action else { return vec![Capability::NetAdmin] };
    match change {
        Change::Irq { .. } | Change::DropIn { .. } => {}
        Change::Thread { scheduling, .. } => {
            if !root || scheduling.is_some() {
                needed.push(Capability::SysNice);
            }
            return needed;
        }
        _ => needed.push(Capability::NetAdmin),
    }
    if !root && matches!(change, Change::Irq { .. } | Change::Xps { .. }) {
        needed.push(Capability::DacOverride);
    }
    needed
}

fn flag(capability: Capability) -> CapabilitySet {
    match capability {
        Capability::NetAdmin => CapabilitySet::NET_ADMIN,
        Capability::SysNice => CapabilitySet::SYS_NICE,
        Capability::DacOverride => CapabilitySet::DAC_OVERRIDE,
        _ => CapabilitySet::SYS_ADMIN,
    }
}
