//! Journals and state files of the version before settings had a type for each kind: they are read, and written again
//! byte for byte.

mod hostile;
mod random;
mod targets;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use abey_reconcile::{AppliedState, RUNTIME_UNITS, Restored, Step, restore_abandoned};
use serde_json::{Value, from_value, to_value};

const JOURNAL: &str = include_str!("samples/journal-sample.json");
const STATE: &str = include_str!("samples/state-sample.state");

/// Writes a file as Abey does, whatever the umask.
fn write(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("mode");
}

#[test]
fn a_journal_of_an_older_version_is_read_and_its_steps_serialise_to_the_same() {
    let journal: Value = serde_json::from_str(JOURNAL).expect("JSON");
    let steps: Vec<Step> = from_value(journal["steps"].clone()).expect("steps");
    assert_eq!(to_value(&steps).expect("JSON"), journal["steps"]);
    let pretty = serde_json::to_string_pretty(&steps).expect("JSON").replace('\n', "\n  ");
    assert!(JOURNAL.contains(&pretty), "{pretty}");
}

#[test]
fn a_journal_of_an_older_version_is_restored() {
    // The process and the namespace of the journal do not exist any more, so that there is nothing to write.
    let directory = tempfile::tempdir().expect("directory");
    let mut journal: Value = serde_json::from_str(JOURNAL).expect("JSON");
    (journal["pid"], journal["netns_inode"]) = (4_194_304.into(), 1.into());
    write(&directory.path().join("4194304-0.json"), journal.to_string().as_bytes());
    let restored = restore_abandoned(directory.path(), Path::new(RUNTIME_UNITS)).expect("restored");
    let steps = journal["steps"].as_array().expect("a list");
    assert_eq!(restored.len(), steps.len());
    assert!(restored.iter().all(|one| matches!(one, Restored::Missing(_))), "{restored:?}");
}

#[test]
fn a_state_file_of_an_older_version_is_written_again_byte_for_byte() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("applied-7.state");
    write(&path, STATE.as_bytes());
    let mut state = AppliedState::open(directory.path(), Path::new(RUNTIME_UNITS), 7).expect("readable");
    let kinds: std::collections::BTreeSet<String> = state
        .entries()
        .iter()
        .filter_map(|applied| to_value(&applied.step).ok()?.as_object()?.keys().next().cloned())
        .collect();
    assert_eq!(kinds.len(), 14, "every kind of step: {kinds:?}");
    // Another watcher makes the file be written; the rest of it stays.
    state.set_watching(true);
    state.save().expect("written");
    let written = fs::read_to_string(&path).expect("readable");
    let steps = |text: &str| text[text.find("\"kept\"").expect("a list")..].to_owned();
    assert_eq!(steps(&written), steps(STATE));
}

#[test]
fn arbitrary_journals_change_nothing_outside_their_directories() {
    random::fuzz("journal", targets::journal);
}

#[test]
fn arbitrary_states_change_nothing_outside_their_directory() {
    random::fuzz("state", targets::state);
}
