//! Without privileges: the shared-memory NIC works, and the error of the others names the capability they need.

use std::os::unix::process::CommandExt;
use std::process::Command;

use abey_nic::{Frame, LinkState, MemoryEnd, OpenError, Options, open};

const CHILD: &str = "ABEY_NIC_UNPRIVILEGED";
const OTHER_USER: u32 = 65_534;

#[test]
fn a_user_without_privileges() {
    if !nix::unistd::geteuid().is_root() {
        child();
        return;
    }
    let program = std::env::current_exe().expect("this program");
    let started = Command::new(program)
        .args(["--exact", "as_another_user", "--nocapture"])
        .env(CHILD, "1")
        .gid(OTHER_USER)
        .uid(OTHER_USER)
        .current_dir("/")
        .output();
    match started {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => eprintln!("skipped: user {OTHER_USER} cannot run the test program: {error}"),
    }
}

/// Not a test by itself: runs as another user, if its environment variable is set.
#[test]
fn as_another_user() {
    if std::env::var_os(CHILD).is_some() {
        assert_eq!(nix::unistd::geteuid().as_raw(), OTHER_USER);
        child();
    }
}

fn child() {
    // Any device with the usual MTU; it is refused before it is changed.
    let mut devices = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let usual =
        devices.find(|device| std::fs::read_to_string(device.path().join("mtu")).is_ok_and(|mtu| mtu == "1500\n"));
    let device = usual.map(|device| format!("af_xdp:{}", device.file_name().to_string_lossy()));
    for name in std::iter::once("tap:abt9".to_owned()).chain(device) {
        let error = open(&name, &Options::default()).expect_err(&name);
        assert!(matches!(error, OpenError::Permission { .. }), "{error}");
        assert!(error.to_string().contains("run as root"), "{error}");
    }
    let name = format!("memory:test-unprivileged-{}", std::process::id());
    let mut options = Options::default();
    options.end = MemoryEnd::Create;
    let mut creator = open(&name, &options).expect("create");
    let mut attacher = open(&name, &Options::default()).expect("attach");
    let (mut near, mut far) = (creator.take_queues(), attacher.take_queues());
    while near[0].link() == LinkState::Down {
        std::thread::yield_now();
    }
    let frame = Frame::from(&[7; 100][..]);
    assert_eq!(near[0].transmit(std::slice::from_ref(&frame)).expect("transmit"), 1);
    let mut into = Frame::burst(4, 1500);
    assert_eq!(far[0].receive(&mut into).expect("receive"), 1);
    assert_eq!(into[0], frame);
}
