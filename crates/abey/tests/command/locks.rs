//! Locks of journals and applied states: another user cannot take them, and who holds one is named, while SIGTERM still ends
//! the command that waits.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;

use abey_testbed::spawn::SpawnExt;

use crate::common::{Running, TestBed, UnprivilegedUser, await_that, finish, has};

/// Starts `flock FILE sleep` as this user and waits until it holds the lock.
fn hold(file: &Path, user: u32) -> Running {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".to_owned()]);
    command.args(["flock", "--no-fork"]).arg(file).args(["sleep", "600"]);
    let holder = Running::start(command);
    await_that("flock does not hold the file", || fs::File::open(file).is_ok_and(|file| file.try_lock().is_err()));
    holder
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("permissions");
}

#[test]
fn a_lock_that_another_user_takes_on_the_directory_stops_nothing() {
    if !has("setpriv") || !has("flock") {
        return;
    }
    let Some(testbed) = TestBed::new(1) else { return };
    // As an older version left it, and any user could open it for reading.
    set_mode(testbed.journals(), 0o755);
    let _attack = hold(testbed.journals(), 65534);
    let device = testbed.device.name.as_str();
    finish(testbed.abey("set", &[device, "--mode", "defer50"])).assert_status(0);
    finish(testbed.run_mode("suspend20", &["true"])).assert_status(0);
    let mode = fs::metadata(testbed.journals()).expect("directory").permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "no other user can open the lock from now on");
    let flock = testbed.journals().join("lock");
    let status = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "flock"])
        .args([flock.as_path(), Path::new("true")])
        .status();
    assert!(!status.expect("it starts").success(), "{} can be created or opened", flock.display());
}

#[test]
fn a_command_that_waits_for_a_lock_ends_at_sigterm_and_names_the_holder() {
    if !has("setpriv") || !has("flock") {
        return;
    }
    let Some(testbed) = TestBed::new(1) else { return };
    let lock = testbed.journals().join("lock");
    fs::write(&lock, "").expect("written");
    set_mode(&lock, 0o600);
    let holder = hold(&lock, 0);
    let run = Running::start(testbed.run_mode("defer50", &["sleep", "600"]));
    // It waits: it has the lock open.
    let descriptors = format!("/proc/{}/fd", run.pid());
    await_that("it does not wait for the lock", || {
        let open = fs::read_dir(&descriptors).into_iter().flatten().flatten();
        open.into_iter().any(|file| fs::read_link(file.path()).is_ok_and(|path| path == lock))
    });
    let ended = run.terminate();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    // `flock --no-fork` has become `sleep`.
    let expected = format!("process {} (sleep)", holder.pid());
    assert!(ended.errors.contains(&expected) && ended.errors.contains("signal"), "{ended:?}");
    drop(holder);
    fs::remove_file(&lock).expect("of the test");
    testbed.assert_as_before();
}

#[test]
fn a_user_who_may_not_read_what_earlier_applies_set_sees_a_preview_without_it() {
    let Some(testbed) = TestBed::new(1) else { return };
    let Some(user) = UnprivilegedUser::new() else { return };
    let policy = tempfile::tempdir().expect("directory");
    set_mode(policy.path(), 0o755);
    let file = policy.path().join("policy.toml");
    let device = testbed.device.name.as_str();
    fs::write(&file, format!("version = 1\n[[device]]\nname = \"{device}\"\nmode = \"defer20\"\n")).expect("written");
    set_mode(testbed.journals(), 0o700);
    let mut command = user.command();
    command.in_netns(&testbed.server).args(["apply", "--dry-run", "--journals"]).arg(testbed.journals()).arg(&file);
    let dry = finish(command);
    assert!(dry.assert_status(0).out.contains("0 -> 20us"), "{dry:?}");
    assert!(dry.errors.contains("only root can read"), "{dry:?}");
}

#[test]
fn locks_that_stay_held_are_refused_with_their_holder() {
    if !has("setpriv") || !has("flock") {
        return;
    }
    let Some(testbed) = TestBed::new(1) else { return };
    let lock = testbed.journals().join("lock");
    fs::write(&lock, "").expect("written");
    set_mode(&lock, 0o600);
    let holder = hold(&lock, 0);
    let device = testbed.device.name.as_str();
    let refused = finish(testbed.abey("set", &[device, "--mode", "defer50"]));
    refused.assert_refused(1, &[&format!("process {} (sleep)", holder.pid()), "end it"]);
    holder.signal(Signal::SIGKILL);
    drop(holder);
    // What a holder that was killed leaves is no lock.
    finish(testbed.abey("set", &[device, "--mode", "defer50"])).assert_status(0);
    assert!(!lock.exists());

    let policy = tempfile::tempdir().expect("directory");
    let file = policy.path().join("policy.toml");
    fs::write(&file, format!("version = 1\n[[device]]\nname = \"{device}\"\nmode = \"defer20\"\n")).expect("written");
    let file = file.to_str().expect("UTF-8");
    finish(testbed.abey("apply", &[file])).assert_status(0);
    let states = fs::read_dir(testbed.journals()).expect("directory").flatten().map(|entry| entry.path());
    let state = states.into_iter().find(|path| path.extension().is_some_and(|end| end == "state")).expect("a state");
    let holder = hold(&state, 0);
    fs::write(file, format!("version = 1\n[[device]]\nname = \"{device}\"\nmode = \"base\"\n")).expect("written");
    let refused = finish(testbed.abey("apply", &[file]));
    refused.assert_sentence(1, &[&format!("process {} (sleep)", holder.pid()), "end it"]);
    assert!(testbed.has_mode("defer20"));
    drop(holder);
    finish(testbed.abey("apply", &[file])).assert_status(0);
}
