//! Journals and state files that another user, or a container, could have written: they are refused in one sentence, and
//! nothing of them is carried out.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use abey_linux::netns::NetNs;
use abey_reconcile::{AppliedState, restore_abandoned};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::write;

/// The user of the attacks.
const NOBODY: u32 = 65534;

/// A directory of journals with one of a process that no longer runs, and a file that the journal would change.
struct Fixture {
    place: TempDir,
    journals: PathBuf,
    units: PathBuf,
    victim: PathBuf,
}

impl Fixture {
    fn new() -> Self {
        let place = tempfile::tempdir().expect("directory");
        let path = |name: &str| place.path().join(name);
        let (journals, units, victim) = (path("journals"), path("units"), path("victim"));
        for directory in [&journals, &units] {
            fs::create_dir(directory).expect("directory");
            fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).expect("mode");
        }
        fs::write(&victim, "1").expect("written");
        Self { place, journals, units, victim }
    }

    fn journal(&self) -> PathBuf {
        self.journals.join("4194304-0.json")
    }

    /// Writes a journal with this step.
    fn with(&self, step: &Value) -> &Self {
        let inode = NetNs::current().expect("namespace").inode();
        let journal = json!({ "pid": 4_194_304, "started": 1, "netns_inode": inode, "steps": [step] });
        write(&self.journal(), journal.to_string().as_bytes());
        self
    }

    /// A step that writes "2" to the victim, by way of a device's files.
    fn escape(&self) -> Value {
        let file = format!("../../../..{}", self.victim.display());
        json!({ "device-file": { "device": "lo", "file": file, "before": "2", "after": "1" } })
    }

    /// A step that writes a drop-in with this text.
    fn drop_in(&self, path: &Path, before: &str) -> Value {
        json!({ "drop-in": { "unit": "abey-test.service", "path": path, "before": before, "after": null } })
    }

    fn own_drop_in(&self) -> PathBuf {
        self.units.join("abey-test.service.d/50-abey.conf")
    }

    /// Restores and expects a refusal with these words, after which nothing has changed.
    #[track_caller]
    fn assert_refused(&self, words: &[&str]) {
        let error = restore_abandoned(&self.journals, &self.units).expect_err("refused").to_string();
        for word in words {
            assert!(error.contains(word), "no `{word}` in: {error}");
        }
        assert_eq!(error.lines().count(), 1, "{error}");
        assert_eq!(fs::read_to_string(&self.victim).expect("readable"), "1");
        assert!(fs::symlink_metadata(self.journal()).is_ok(), "the journal stays for root to look at");
        let units: Vec<_> = fs::read_dir(&self.units).expect("directory").flatten().collect();
        assert!(units.is_empty(), "{units:?}");
    }
}

fn is_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("skipped: needs root to give files to another user");
    }
    root
}

#[test]
fn a_file_of_a_device_is_one_of_a_closed_list() {
    let fixture = Fixture::new();
    fixture.with(&fixture.escape()).assert_refused(&["4194304-0.json", "nothing in it is carried out", "a device"]);
    let step = json!({ "device-file": { "device": "../../../tmp", "file": "threaded", "before": "2", "after": "1" } });
    fixture.with(&step).assert_refused(&["names the device"]);
    let step = json!({ "device-file": { "device": "lo", "file": "mtu", "before": "2", "after": "1" } });
    fixture.with(&step).assert_refused(&["\"mtu\""]);
    let step = json!({ "device-file": { "device": "lo", "file": "threaded", "before": "0\n1", "after": "1" } });
    fixture.with(&step).assert_refused(&["no number"]);
}

#[test]
fn a_drop_in_is_abeys_own_file_with_abeys_own_text() {
    let fixture = Fixture::new();
    let text = "[Service]\nCPUAffinity=0\n";
    fixture.with(&fixture.drop_in(&fixture.place.path().join("evil.service"), text)).assert_refused(&["evil.service"]);
    let outside = fixture.units.join("abey-test.service.d/../../victim");
    fixture.with(&fixture.drop_in(&outside, text)).assert_refused(&["no drop-in of abey"]);
    let other = fixture.units.join("sshd.service.d/50-abey.conf");
    fixture.with(&fixture.drop_in(&other, text)).assert_refused(&["no drop-in of abey"]);
    for line in ["ExecStart=/bin/sh", "Environment=LD_PRELOAD=/tmp/evil.so", "Environment=ABEY_X=1 LD_PRELOAD=/evil"] {
        let text = format!("[Service]\n{line}\n");
        fixture.with(&fixture.drop_in(&fixture.own_drop_in(), &text)).assert_refused(&[line]);
    }
    // A library in the directory of journals, to which a container may have written.
    let line = format!("Environment=LD_PRELOAD={}", fixture.journals.join("libabey.so").display());
    fixture.with(&fixture.drop_in(&fixture.own_drop_in(), &line)).assert_refused(&["LD_PRELOAD"]);
    // What Abey writes is restored: this would fail if everything were refused.
    fixture.with(&fixture.drop_in(&fixture.own_drop_in(), text));
    let restored = restore_abandoned(&fixture.journals, &fixture.units).expect("restored");
    assert_eq!((restored.len(), fs::read_to_string(fixture.own_drop_in()).expect("written").as_str()), (1, text));
    assert!(!fixture.journal().exists());
}

#[test]
fn a_journal_of_another_user_is_refused() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::new();
    let step = fixture.drop_in(&fixture.own_drop_in(), "[Service]\n");
    fixture.with(&step);
    chown(fixture.journal(), Some(NOBODY), None).expect("chown");
    fixture.assert_refused(&["belongs to user 65534"]);
    chown(fixture.journal(), Some(0), None).expect("chown");
    fs::set_permissions(fixture.journal(), fs::Permissions::from_mode(0o606)).expect("mode");
    fixture.assert_refused(&["other users may write to it (mode 0606)"]);
}

#[test]
fn a_journal_that_is_no_plain_file_is_refused() {
    let fixture = Fixture::new();
    let elsewhere = fixture.place.path().join("elsewhere.json");
    fixture.with(&fixture.drop_in(&fixture.own_drop_in(), "[Service]\n"));
    fs::rename(fixture.journal(), &elsewhere).expect("moved");
    symlink(&elsewhere, fixture.journal()).expect("link");
    fixture.assert_refused(&["symbolic link"]);
    fs::remove_file(fixture.journal()).expect("removed");
    fs::hard_link(&elsewhere, fixture.journal()).expect("link");
    fixture.assert_refused(&["hard link"]);
    fs::remove_file(fixture.journal()).expect("removed");
    // Reading a FIFO would block until another process opens it.
    nix::unistd::mkfifo(&fixture.journal(), nix::sys::stat::Mode::S_IRUSR).expect("FIFO");
    fixture.assert_refused(&["not a regular file"]);
    fs::remove_file(fixture.journal()).expect("removed");
    fs::create_dir(fixture.journal()).expect("directory");
    fixture.assert_refused(&["not a regular file"]);
}

#[test]
fn a_directory_that_others_could_write_is_refused_and_one_that_they_could_read_is_closed() {
    let fixture = Fixture::new();
    let step = fixture.drop_in(&fixture.own_drop_in(), "[Service]\n");
    fixture.with(&step);
    let set_mode = |mode| fs::set_permissions(&fixture.journals, fs::Permissions::from_mode(mode)).expect("mode");
    let mode = || fs::metadata(&fixture.journals).expect("directory").permissions().mode() & 0o7777;
    set_mode(0o1777);
    fixture.assert_refused(&["other users may write to it (mode 1777)"]);
    set_mode(0o755);
    if is_root() {
        chown(&fixture.journals, Some(NOBODY), None).expect("chown");
        fixture.assert_refused(&["belongs to user 65534"]);
        chown(&fixture.journals, Some(0), None).expect("chown");
    }
    let link = fixture.place.path().join("link");
    symlink(&fixture.journals, &link).expect("link");
    let error = restore_abandoned(&link, &fixture.units).expect_err("refused").to_string();
    assert!(error.contains("not a directory"), "{error}");
    assert_eq!(restore_abandoned(&fixture.journals, &fixture.units).expect("restored").len(), 1);
    assert_eq!(mode(), 0o700, "an older version's directory is closed");
}

#[test]
fn a_state_file_is_checked_as_a_journal_is() {
    let fixture = Fixture::new();
    let path = fixture.journals.join("applied-7.state");
    let state = |step: Value| json!({ "watcher": null, "kept": [{ "ifindex": 1, "queue": null, "step": step }] });
    write(&path, state(fixture.escape()).to_string().as_bytes());
    let read = || AppliedState::read(&fixture.journals, &fixture.units, 7);
    let open = || AppliedState::open(&fixture.journals, &fixture.units, 7);
    for error in [read().expect_err("refused"), open().expect_err("refused")] {
        assert!(error.to_string().contains("which abey does not write"), "{error}");
    }
    write(&path, state(fixture.drop_in(&fixture.own_drop_in(), "[Service]\n")).to_string().as_bytes());
    assert_eq!(read().expect("ours").len(), 1);
    if is_root() {
        chown(&path, Some(NOBODY), None).expect("chown");
        for error in [read().expect_err("refused"), open().expect_err("refused")] {
            assert!(error.to_string().contains("belongs to user 65534"), "{error}");
        }
    }
}

#[test]
fn one_refused_journal_does_not_keep_others_from_being_restored() {
    let fixture = Fixture::new();
    fixture.with(&fixture.escape());
    fs::rename(fixture.journal(), fixture.journals.join("4194304-7.json")).expect("renamed");
    fixture.with(&fixture.drop_in(&fixture.own_drop_in(), "[Service]\n"));
    let refused = |error: String| assert!(error.contains("4194304-7.json"), "{error}");
    refused(restore_abandoned(&fixture.journals, &fixture.units).expect_err("one is refused").to_string());
    assert!(fixture.own_drop_in().exists() && !fixture.journal().exists());
    assert_eq!(fs::metadata(fixture.journal()).expect_err("restored").kind(), ErrorKind::NotFound);
}

#[test]
fn journals_of_a_container_in_its_own_directory_are_not_read() {
    let fixture = Fixture::new();
    fixture.with(&fixture.drop_in(&fixture.own_drop_in(), "[Service]\n"));
    let container = fixture.journals.join("daemonset");
    fs::create_dir(&container).expect("directory");
    fs::rename(fixture.journal(), container.join("1-0.json")).expect("moved");
    assert_eq!(restore_abandoned(&fixture.journals, &fixture.units).expect("nothing to do"), []);
    assert!(!fixture.own_drop_in().exists() && container.join("1-0.json").exists());
}
