//! What the steps of a journal or an applied state may touch: closed lists, checked before any step is carried out.
//!
//! Steps of the kernel's netlink interfaces name a device and numbers, and can change nothing but delivery settings. Three
//! kinds become paths or texts of files, and are checked here: a device's name, a file of a device, and a drop-in. A drop-in
//! must be one that Abey could have written, because systemd starts programs with what it says.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

use abey_linux::library::FILE_NAME;

use crate::setting::{Assignment, DropIn};
use crate::step::Step;

/// The file name of Abey's drop-ins, which sorts after those of distributions.
pub(crate) const DROP_IN: &str = "50-abey.conf";

/// The files below `/sys/class/net/DEVICE` that Abey writes.
pub(crate) const DEFER_HARD_IRQS: &str = "napi_defer_hard_irqs";
/// See [`DEFER_HARD_IRQS`].
pub(crate) const GRO_FLUSH_TIMEOUT: &str = "gro_flush_timeout";
/// See [`DEFER_HARD_IRQS`].
pub(crate) const THREADED: &str = "threaded";

/// The longest name of a device, without its zero byte (`IFNAMSIZ`).
const MAX_DEVICE_NAME: usize = 15;
/// The longest name of a unit (systemd.unit(5)).
const MAX_UNIT_NAME: usize = 255;

/// The directories that matter to the check of steps that were read from a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds<'a> {
    /// The directory of journals, in which no library may be: a container may have written to it.
    pub(crate) journals: &'a Path,
    /// The directory of drop-ins.
    pub(crate) units: &'a Path,
}

impl Bounds<'_> {
    /// Checks steps.
    ///
    /// # Errors
    /// What the first of them asks for that Abey does not change.
    pub(crate) fn check<'s>(&self, steps: impl IntoIterator<Item = &'s Step>) -> Result<(), String> {
        steps.into_iter().try_for_each(|step| self.check_step(step))
    }

    fn check_step(&self, step: &Step) -> Result<(), String> {
        if let Some(device) = step.device().filter(|name| !is_device_name(name)) {
            return Err(format!("it names the device {device:?}, which no device can be called"));
        }
        match step {
            Step::DeviceFile(file) => {
                let name = &file.setting.file;
                if ![DEFER_HARD_IRQS, GRO_FLUSH_TIMEOUT, THREADED].contains(&name.as_str()) {
                    return Err(format!("it names the file {name:?} of a device, which abey does not write"));
                }
                let is_number = |value: &String| value.parse::<u64>().is_ok();
                let both = is_number(&file.before) && is_number(&file.after);
                both.then_some(()).ok_or_else(|| format!("it has a value for {name} that is no number"))
            }
            Step::DropIn(file) => self.check_drop_in(file),
            _ => Ok(()),
        }
    }

    fn check_drop_in(&self, file: &Assignment<DropIn>) -> Result<(), String> {
        let DropIn { unit, path } = &file.setting;
        if !is_unit_name(unit) || *path != self.units.join(format!("{unit}.d")).join(DROP_IN) {
            return Err(format!("it names the file {path:?}, which is no drop-in of abey"));
        }
        // The text after the change is compared with the file, and never written.
        let before = file.before.as_deref().unwrap_or_default();
        let foreign = foreign_line(before, |path| is_library(path) && self.is_safe_library(path));
        foreign.map_or(Ok(()), |line| Err(format!("it has a drop-in of {unit} with the line {line:?}")))
    }

    /// Whether only root (or this user) can have put a library at this path, and not by way of the directory of journals.
    fn is_safe_library(&self, path: &Path) -> bool {
        let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        !real.starts_with(fs::canonicalize(self.journals).unwrap_or_else(|_| self.journals.to_owned()))
            && [path, &real].into_iter().flat_map(Path::ancestors).all(is_safe)
    }
}

/// Returns the first line of a drop-in that Abey would not have written, if there is one. `is_library` judges the path of a
/// library.
pub(crate) fn foreign_line(text: &str, is_library: impl Fn(&Path) -> bool) -> Option<&str> {
    text.lines().find(|line| !is_ours(line, &is_library))
}

fn is_ours(line: &str, is_library: impl Fn(&Path) -> bool) -> bool {
    // A backslash at the end continues the line in the next one.
    if line.ends_with('\\') || line.contains(['\r', '\0']) {
        return false;
    }
    if line.is_empty() || line.starts_with('#') || line == "[Service]" {
        return true;
    }
    if let Some(cpus) = line.strip_prefix("CPUAffinity=") {
        return !cpus.is_empty() && cpus.chars().all(|c| c.is_ascii_digit() || c == ',' || c == '-');
    }
    let Some((name, value)) = line.strip_prefix("Environment=").and_then(|line| line.split_once('=')) else {
        return false;
    };
    // White space and quotes would begin another variable, and a percent sign a specifier.
    if value.contains(|c: char| c.is_whitespace() || c.is_control() || "\"'%\\".contains(c)) {
        return false;
    }
    match name {
        "LD_PRELOAD" => is_library(Path::new(value)),
        _ => name.strip_prefix("ABEY_").is_some_and(is_variable_name),
    }
}

/// Whether a path is that of Abey's library, by its name.
pub(crate) fn is_library(path: &Path) -> bool {
    let is_plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
    path.is_absolute() && path.components().all(is_plain) && path.file_name().is_some_and(|name| name == FILE_NAME)
}

/// Whether no other user can replace what this path names. A path that does not exist yet is created by the owner of
/// its directory, which is checked as well.
fn is_safe(path: &Path) -> bool {
    const STICKY: u32 = 0o1000;
    fs::metadata(path).is_err()
        || fs::metadata(path).is_ok_and(|about| {
            let is_own = about.uid() == 0 || about.uid() == rustix::process::geteuid().as_raw();
            is_own && (about.mode() & 0o022 == 0 || about.is_dir() && about.mode() & STICKY != 0)
        })
}

fn is_variable_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

/// Whether the kernel accepts this name for a device.
fn is_device_name(name: &str) -> bool {
    let is_plain = |c: char| !c.is_whitespace() && !c.is_control() && c != '/' && c != ':';
    !matches!(name, "" | "." | "..") && name.len() <= MAX_DEVICE_NAME && name.chars().all(is_plain)
}

/// Whether systemd accepts this name for a unit (systemd.unit(5)).
fn is_unit_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    !name.starts_with('.') && name.len() <= MAX_UNIT_NAME && name.contains('.') && name.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_their_directory_are_refused() {
        for name in ["", ".", "..", "../../etc", "a/b", "sixteen-letters-", "a b", "a\n", "a:b"] {
            assert!(!is_device_name(name), "{name:?}");
        }
        assert!(is_device_name("eth0.100") && is_device_name("a-b_c"));
        for name in ["", "demo", "../x.service", ".x.service", "x/y.service", "x y.service"] {
            assert!(!is_unit_name(name), "{name:?}");
        }
        assert!(is_unit_name("memcached@11211.service"));
    }

    #[test]
    fn a_drop_in_that_starts_a_program_is_not_ours() {
        let bounds = Bounds { journals: Path::new("/run/abey"), units: Path::new("/run/systemd/system") };
        let ours = "# Written by `abey apply` as /etc/abey/policy.toml says.\n[Service]\n\
                    Environment=LD_PRELOAD=/usr/lib/libabey.so\nEnvironment=ABEY_EPOLL=0,64,1\nCPUAffinity=0-3,5\n";
        let foreign =
            |text: &str| foreign_line(text, |path| is_library(path) && bounds.is_safe_library(path)).map(str::to_owned);
        assert_eq!(foreign(ours), None);
        for line in [
            "ExecStart=/bin/sh",
            "ExecStartPre=+/bin/sh",
            "Environment=LD_PRELOAD=/usr/lib/evil.so",
            "Environment=LD_PRELOAD=/run/abey/libabey.so",
            "Environment=LD_PRELOAD=/run/abey/../abey/libabey.so",
            "Environment=LD_PRELOAD=/proc/self/cwd/libabey.so:/x",
            "Environment=LD_PRELOAD=libabey.so",
            "Environment=ABEY_MODE=base LD_PRELOAD=/evil",
            "Environment=\"ABEY_MODE=base\" \"LD_AUDIT=/evil\"",
            "Environment=PATH=/evil",
            "Environment=ABEY_=x",
            "EnvironmentFile=/evil",
            "# a comment \\",
            "[Unit]",
            "CPUAffinity=0 \"",
            " [Service]",
        ] {
            assert_eq!(foreign(&format!("[Service]\n{line}\n")).as_deref(), Some(line));
        }
    }
}
