//! Network namespaces for tests, and threads in them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns, unshare};

/// A limit that only a hang reaches, also on a machine under load.
pub const HANG_LIMIT: Duration = Duration::from_secs(20);

/// Runs a test on a thread in a new network namespace, or prints why it cannot.
///
/// # Panics
/// When the test does, or when the namespace cannot be made.
pub fn in_namespace(test: impl FnOnce() + Send) {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: needs root to make a network namespace");
        return;
    }
    if Command::new("ip").arg("-V").output().is_err() {
        eprintln!("skipped: needs the `ip` program (iproute2)");
        return;
    }
    on_a_thread(|| {
        enter_new();
        test();
    });
}

/// Moves the calling thread to a new namespace.
fn enter_new() {
    unshare(CloneFlags::CLONE_NEWNET).expect("a namespace");
    // Makes addresses usable at once: there is no other host that could have them.
    for device in ["all", "default"] {
        // A kernel without IPv6 has no such setting.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{device}/accept_dad"), "0");
    }
}

/// Makes a namespace, which lives as long as the file.
///
/// # Panics
/// When the namespace cannot be made.
#[must_use]
pub fn another_namespace() -> File {
    on_a_thread(|| {
        enter_new();
        File::open("/proc/thread-self/ns/net").expect("the namespace")
    })
}

/// Runs `work` on a thread inside another namespace and returns its result.
///
/// # Panics
/// When `work` does, or when the namespace cannot be entered.
pub fn inside<T: Send>(namespace: &impl AsFd, work: impl FnOnce() -> T + Send) -> T {
    enter(namespace, work).expect("enter the namespace")
}

/// Runs `work` on a thread inside another namespace and returns its result.
pub(crate) fn enter<T: Send>(namespace: &dyn AsFd, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let namespace = namespace.as_fd();
    on_a_thread(|| {
        setns(namespace, CloneFlags::CLONE_NEWNET)?;
        Ok(work())
    })
}

/// Runs `work` on a new thread: a thread leaves its namespace by ending, which cannot fail.
fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Runs `work` on a thread that has this user and no capabilities, as another local user would, and returns its result.
///
/// # Panics
/// When `work` does, or when the user cannot be changed: it needs root.
pub fn as_user<T: Send>(user: u32, work: impl FnOnce() -> T + Send) -> T {
    on_a_thread(|| {
        let user = Some(rustix::process::Uid::from_raw(user));
        // The system call changes the calling thread alone, unlike the function of the C library.
        rustix::thread::set_thread_res_uid(user, user, user).expect("another user");
        work()
    })
}

/// Returns a path to the namespace, for `ip link set ... netns`.
#[must_use]
pub fn path(namespace: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd())
}

/// Runs `ip` with these words in the namespace of the calling thread.
///
/// # Panics
/// When it fails.
pub fn ip(words: &str) {
    run("ip", words);
}

/// Runs a program that must succeed.
///
/// # Panics
/// When it fails.
pub fn run(program: &str, words: &str) {
    let output = Command::new(program).args(words.split_whitespace()).output().expect("it runs");
    assert!(output.status.success(), "{program} {words}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Waits until `done` returns true.
///
/// # Panics
/// After [`HANG_LIMIT`].
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + HANG_LIMIT;
    while !done() {
        assert!(Instant::now() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns a command that runs the test `name` of this test program alone, with `variable` in its environment. The child
/// inherits the namespace of the calling thread.
///
/// # Panics
/// When the path of this program is unknown.
#[must_use]
pub fn this_program(name: &str, variable: &str) -> Command {
    let mut program = Command::new(std::env::current_exe().expect("this program"));
    program.args(["--exact", name, "--nocapture"]).env(variable, "1").current_dir("/").stdout(Stdio::null());
    program
}
