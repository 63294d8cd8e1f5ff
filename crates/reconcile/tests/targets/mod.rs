//! Fuzz targets of this crate: files in the directory of journals. They run here on random bytes, and under a
//! coverage-guided fuzzer in `fuzz/`.
//!
//! Whatever a file says, nothing may panic, and nothing outside the directories of journals and of drop-ins may change.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use abey_linux::netns::NetNs;
use abey_reconcile::{AppliedState, Step, restore_abandoned};
use serde_json::{Value, json};

const JOURNAL: &str = include_str!("../samples/journal-sample.json");
const STATE: &str = include_str!("../samples/state-sample.state");

/// Texts that a mutation puts in place of others.
const HOSTILE: [&str; 16] = [
    "",
    ".",
    "..",
    "../../../../../../../../OUTSIDE",
    "OUTSIDE",
    "OUTSIDE/../evil.service",
    "UNITS/evil.service.d/50-abey.conf",
    "UNITS/../evil.service.d/50-abey.conf",
    "UNITS/evil.service.d/../../evil",
    "evil.service",
    "../evil.service",
    "[Service]\nExecStart=/bin/sh\n",
    "[Service]\nEnvironment=LD_PRELOAD=OUTSIDE/libabey.so\n",
    "[Service]\nCPUAffinity=0\n",
    "threaded",
    "lo\0",
];

/// Directories for one case: those that Abey has, and one beside them that nothing may write to.
struct Place {
    root: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let root = tempfile::tempdir().expect("directory");
        for name in ["journals", "units", "outside"] {
            fs::create_dir(root.path().join(name)).expect("directory");
        }
        fs::write(root.path().join("outside/file"), "as it was").expect("written");
        Self { root }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Writes a file into the directory of journals as Abey does.
    fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.path("journals").join(name);
        fs::write(&path, bytes).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("mode");
    }

    /// Puts the paths of this place into a hostile text.
    fn text(&self, hostile: &str) -> String {
        let path = |name| self.path(name).to_str().expect("UTF-8").to_owned();
        hostile.replace("OUTSIDE", &path("outside")).replace("UNITS", &path("units"))
    }

    /// Asserts that drop-ins of units are all that was written.
    fn assert_untouched(&self) {
        let mut entries = names(self.root.path());
        entries.sort();
        assert_eq!(entries, ["journals", "outside", "units"]);
        assert_eq!(names(&self.path("outside")), ["file"]);
        assert_eq!(fs::read_to_string(self.path("outside/file")).expect("a file"), "as it was");
        for unit in names(&self.path("units")) {
            assert!(unit.ends_with(".d"), "{unit}");
            let files = names(&self.path("units").join(&unit));
            assert_eq!(files, ["50-abey.conf"], "{unit}");
            let text = fs::read_to_string(self.path("units").join(&unit).join("50-abey.conf")).expect("a file");
            assert!(!text.contains("ExecStart") && !text.contains("outside"), "{text}");
        }
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("directory").flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Restores from a journal: `data` is the file, or, after a first byte below 128, changes of a valid one.
pub(crate) fn journal(data: &[u8]) {
    let place = Place::new();
    let file = match data.split_first() {
        Some((first, rest)) if *first < 128 => mutated(&journal_of(&place), rest, &place),
        Some((_, rest)) => rest.to_vec(),
        None => Vec::new(),
    };
    place.write("4194304-0.json", &executable(&file));
    let restored = restore_abandoned(&place.path("journals"), &place.path("units"));
    if let Err(error) = restored {
        assert!(!error.to_string().is_empty());
    }
    place.assert_untouched();
}

/// Reads and rewrites an applied state: `data` as for [`journal`].
pub(crate) fn state(data: &[u8]) {
    let place = Place::new();
    let file = match data.split_first() {
        Some((first, rest)) if *first < 128 => {
            let sample = serde_json::from_str(STATE).expect("JSON");
            mutated(&sample, rest, &place)
        }
        Some((_, rest)) => rest.to_vec(),
        None => Vec::new(),
    };
    place.write("applied-7.state", &file);
    let (journals, units) = (place.path("journals"), place.path("units"));
    let read = AppliedState::read(&journals, &units, 7);
    for applied in read.iter().flatten() {
        // What a report prints.
        applied.step.changes().iter().for_each(|change| assert!(!change.to_string().is_empty()));
        check_paths(&applied.step, &units);
    }
    let opened = AppliedState::open(&journals, &units, 7);
    assert_eq!(read.is_ok(), opened.is_ok());
    if let Ok(mut state) = opened {
        state.set_watching(true);
        state.save().expect("written");
        assert_eq!(read.expect("the same file"), state.entries());
    }
    place.assert_untouched();
}

/// Asserts what a step that was accepted may name.
fn check_paths(step: &Step, units: &Path) {
    if let Some(device) = step.device() {
        assert!(!device.is_empty() && !device.contains('/') && device != "..", "{device}");
    }
    match step {
        Step::DropIn(file) => assert!(file.setting.path.starts_with(units) && no_way_up(&file.setting.path)),
        Step::DeviceFile(file) => {
            assert!(["threaded", "gro_flush_timeout", "napi_defer_hard_irqs"].contains(&file.setting.file.as_str()));
        }
        _ => {}
    }
}

fn no_way_up(path: &Path) -> bool {
    path.components().all(|part| part != std::path::Component::ParentDir)
}

/// A journal with a drop-in and a device's file beside what the sample has.
fn journal_of(place: &Place) -> Value {
    let mut journal: Value = serde_json::from_str(JOURNAL).expect("JSON");
    let path = place.path("units").join("demo.service.d/50-abey.conf");
    let drop_in = json!({ "unit": "demo.service", "path": path, "before": "[Service]\n", "after": null });
    let file = json!({ "device": "lo", "file": "threaded", "before": "0", "after": "0" });
    journal["pid"] = 4_194_304.into();
    journal["steps"] = json!([{ "drop-in": drop_in }, { "device-file": file }, journal["steps"][0]]);
    journal
}

/// Returns the file with the inode of this network namespace, so that it is carried out, if it can change nothing but
/// drop-ins and files that do not exist; with that of no namespace otherwise, so that it is parsed and checked.
fn executable(file: &[u8]) -> Vec<u8> {
    let Ok(mut journal) = serde_json::from_slice::<Value>(file) else { return file.to_vec() };
    if !journal.is_object() {
        return file.to_vec();
    }
    let harmless = |step: &Value| {
        let no_device = |file: &Value| file["device"].as_str().is_some_and(|name| name.contains('/'));
        step.get("drop-in").is_some() || step.get("device-file").is_some_and(no_device)
    };
    let harmless = journal["steps"].as_array().is_some_and(|steps| steps.iter().all(harmless));
    let inode = NetNs::current().expect("namespace").inode();
    journal["netns_inode"] = if harmless { inode.into() } else { 1.into() };
    journal.to_string().into_bytes()
}

/// Returns a document as text after changes: three bytes of `script` for each.
fn mutated(document: &Value, script: &[u8], place: &Place) -> Vec<u8> {
    let (mut document, mut bytes) = (document.clone(), None);
    for change in script.chunks_exact(3) {
        let (at, value) = (usize::from(change[1]), change[2]);
        match change[0] % 4 {
            0 | 1 => {
                let text = place.text(HOSTILE[usize::from(value) % HOSTILE.len()]);
                replace_nth_string(&mut document, &mut { at }, &text);
            }
            2 if document["steps"].as_array().is_some_and(|steps| steps.len() > 1) => {
                let steps = document["steps"].as_array_mut().expect("checked");
                steps.remove(at % steps.len());
            }
            _ => {
                let bytes = bytes.get_or_insert_with(|| document.to_string().into_bytes());
                let at = (at << 8 | usize::from(value)) % bytes.len();
                bytes[at] = value;
            }
        }
    }
    bytes.unwrap_or_else(|| document.to_string().into_bytes())
}

/// Replaces the `nth` text of a document, counted from the first.
fn replace_nth_string(value: &mut Value, nth: &mut usize, by: &str) {
    match value {
        Value::String(text) if *nth == 0 => {
            by.clone_into(text);
            *nth = usize::MAX;
        }
        Value::String(_) => *nth = nth.saturating_sub(1),
        Value::Array(values) => values.iter_mut().for_each(|value| replace_nth_string(value, nth, by)),
        Value::Object(fields) => fields.values_mut().for_each(|value| replace_nth_string(value, nth, by)),
        _ => {}
    }
}
