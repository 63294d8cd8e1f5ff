//! Network namespaces that a test makes itself, and devices in them. The tests of the datapath include this file too.
#![allow(dead_code, reason = "each test program uses its part")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns, unshare};

/// Long enough for a machine under load, short enough for a person.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Runs a test in a fresh network namespace, or says why not.
pub(crate) fn in_namespace(test: impl FnOnce() + Send) {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: needs root to make a network namespace");
        return;
    }
    if Command::new("ip").arg("-V").output().is_err() {
        eprintln!("skipped: needs the `ip` program (iproute2)");
        return;
    }
    on_a_thread(|| {
        new_namespace();
        test();
    });
}

/// Moves the calling thread to a fresh namespace.
fn new_namespace() {
    unshare(CloneFlags::CLONE_NEWNET).expect("a namespace");
    // Addresses are ready at once: nobody else can have them.
    for device in ["all", "default"] {
        // A kernel without IPv6 has no such setting.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{device}/accept_dad"), "0");
    }
}

/// A further namespace, which lives as long as the file.
pub(crate) fn another_namespace() -> File {
    on_a_thread(|| {
        new_namespace();
        File::open("/proc/thread-self/ns/net").expect("the namespace")
    })
}

/// Runs `work` inside another namespace.
pub(crate) fn inside<T: Send>(namespace: &File, work: impl FnOnce() -> T + Send) -> T {
    on_a_thread(|| {
        setns(namespace, CloneFlags::CLONE_NEWNET).expect("enter the namespace");
        work()
    })
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Where a namespace can be found, for `ip link set ... netns`.
pub(crate) fn path(namespace: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd())
}

/// Runs `ip` with these words in the namespace of the calling thread.
pub(crate) fn ip(words: &str) {
    run("ip", words);
}

/// Runs a program that must succeed.
pub(crate) fn run(program: &str, words: &str) {
    let output = Command::new(program).args(words.split_whitespace()).output().expect("it runs");
    assert!(output.status.success(), "{program} {words}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Waits for something.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// `near0` (10.8.0.1, fd08::1) in the calling thread's namespace, `far0` (10.8.0.2, fd08::2) in the one returned.
pub(crate) fn veth(queues: u32) -> File {
    let far = another_namespace();
    let path = path(&far);
    let channels = format!("numrxqueues {queues} numtxqueues {queues}");
    ip(&format!(
        "link add near0 address 02:00:00:00:08:01 {channels} type veth peer name far0 address 02:00:00:00:08:02 {channels} netns {path}"
    ));
    configure("near0", 1);
    inside(&far, || configure("far0", 2));
    far
}

/// [`veth`], whose far end computes the checksums of what it sends, which its kernel would leave to a NIC, and keeps a
/// connection on one queue. Needs the program `ethtool`.
pub(crate) fn checked_veth(queues: u32) -> File {
    let far = veth(queues);
    inside(&far, || {
        compute_checksums("far0");
        std::fs::write("/proc/sys/net/core/txrehash", "0").expect("a setting of this kernel");
    });
    far
}

/// Makes the kernel compute the checksums of what it sends over a veth device.
pub(crate) fn compute_checksums(device: &str) {
    run("ethtool", &format!("-K {device} tx off"));
}

/// Gives a device the test network's addresses of host `last`, and brings it up.
pub(crate) fn configure(device: &str, last: u8) {
    ip("link set lo up");
    ip(&format!("addr add 10.8.0.{last}/24 dev {device}"));
    ip(&format!("addr add fd08::{last}/64 dev {device} nodad"));
    ip(&format!("link set {device} up"));
}

/// Tells the kernels at both ends of [`veth`] who is who, so that nobody asks.
pub(crate) fn introduce(far: &File) {
    let introduce = |device: &str, other: u8| {
        for address in [format!("10.8.0.{other}"), format!("fd08::{other}")] {
            ip(&format!("neigh add {address} lladdr 02:00:00:00:08:0{other} dev {device} nud permanent"));
        }
    };
    introduce("near0", 2);
    inside(far, || introduce("far0", 1));
}

/// Whether an XDP program is attached to `near0`.
pub(crate) fn has_program() -> bool {
    let output = Command::new("ip").args(["-details", "link", "show", "near0"]).output().expect("ip");
    String::from_utf8_lossy(&output.stdout).contains("xdp")
}

/// This test program again, to run the test `name` alone, with `variable` in its environment. It inherits the namespace of
/// the calling thread.
pub(crate) fn this_program(name: &str, variable: &str) -> Command {
    let mut program = Command::new(std::env::current_exe().expect("this program"));
    program.args(["--exact", name, "--nocapture"]).env(variable, "1").current_dir("/").stdout(Stdio::null());
    program
}
