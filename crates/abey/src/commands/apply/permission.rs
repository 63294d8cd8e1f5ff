//! What this process may not do, said before anything is changed.

use abey_linux::apply::{Change, Step};
use abey_linux::machine::Capability;
use abey_policy::{Act, Planned};
use rustix::thread::{CapabilitySet, capabilities};

use crate::failure::Failure;

/// Checks that this process has the capabilities for all of these.
///
/// Where they hold for another user namespace than the device's, the kernel says so itself when it is asked.
pub(super) fn check(planned: &[Planned]) -> Result<(), Failure> {
    let root = rustix::process::geteuid().is_root();
    let has = effective()?;
    for planned in planned {
        for needed in needs(&planned.act, root) {
            if !has.contains(flag(needed)) {
                return Err(lacks(&format!("what {} asks for", planned.origin), needed));
            }
        }
    }
    Ok(())
}

/// Checks that this process may pin processes of other users.
pub(super) fn check_pinning() -> Result<(), Failure> {
    let needed = Capability::SysNice;
    if rustix::process::geteuid().is_root() || effective()?.contains(flag(needed)) {
        return Ok(());
    }
    Err(lacks("giving a program its CPUs", needed))
}

/// Checks that this process may put these back.
pub(super) fn check_back<'a>(steps: impl Iterator<Item = &'a Step>) -> Result<(), Failure> {
    let root = rustix::process::geteuid().is_root();
    let has = effective()?;
    for step in steps {
        let needed = match step {
            Step::Thread { before, after, .. } if root && before.scheduling == after.scheduling => continue,
            Step::Irq { .. } | Step::Process { .. } | Step::DropIn { .. } if root => continue,
            Step::Thread { .. } | Step::Process { .. } => Capability::SysNice,
            Step::Irq { .. } | Step::DropIn { .. } => Capability::DacOverride,
            _ => Capability::NetAdmin,
        };
        if !has.contains(flag(needed)) {
            let what = step.device().unwrap_or("a program");
            return Err(lacks(&format!("putting back what was applied to {what} before"), needed));
        }
    }
    Ok(())
}

fn lacks(what: &str, needed: Capability) -> Failure {
    Failure::lacks(format!("{what} needs {needed}, which this process does not have: {}", needed.advice()))
}

fn effective() -> Result<CapabilitySet, Failure> {
    let sets = capabilities(None);
    Ok(sets
        .map_err(|error| Failure::check(format!("cannot read the capabilities of this process: {error}")))?
        .effective)
}

/// What an act takes. Files below /proc and /sys belong to root, and threads of the kernel as well.
fn needs(act: &Act, root: bool) -> Vec<Capability> {
    let mut needed = Vec::new();
    let Act::Change(change) = act else { return vec![Capability::NetAdmin] };
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
