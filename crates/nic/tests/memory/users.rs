//! Attacks of another local user on the shared-memory NIC of root, and peers of another user that are wanted.

use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};

use abey_nic::{LinkState, MemoryEnd, OpenError, Options, open};
use abey_testbed::namespace::as_user;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, bind, connect, listen, recv, socket,
};

use super::{attach, create, exchange, unique, until};
use crate::peer::Peer;

const ROOT: u32 = 0;
const OTHER: u32 = 65_533;

fn is_root() -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: needs root to act as another user");
    }
    is_root
}

fn address(owner: u32, name: &str) -> UnixAddr {
    UnixAddr::new_abstract(format!("abey-nic/{owner}/{name}").as_bytes()).expect("an address")
}

fn raw() -> OwnedFd {
    socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).expect("a socket")
}

/// Connects to a NIC, and returns the length of the message that its creator sends: 0 if it hangs up.
fn knock(owner: u32, name: &str) -> usize {
    let connection = raw();
    connect(connection.as_raw_fd(), &address(owner, name)).expect("connected");
    recv(connection.as_raw_fd(), &mut [0; 4096], MsgFlags::empty()).unwrap_or(0)
}

/// Before: an offer of 64 bytes with root's memory.
#[test]
fn another_user_gets_no_memory_of_root() {
    if !is_root() {
        return;
    }
    let name = unique("others");
    let mut nic = create(&name);
    let mut queues = nic.take_queues();
    for _ in 0..20 {
        assert_eq!(as_user(OTHER, || knock(ROOT, &name)), 0);
    }
    assert_eq!(queues[0].link(), LinkState::Down);
    let peer = Peer::start("attach", &name);
    until("a peer of root attaches", || queues[0].link() == LinkState::Up);
    exchange(&mut queues, 200);
    peer.kill();
}

#[test]
fn root_takes_no_nic_of_another_user() {
    if !is_root() {
        return;
    }
    let name = unique("theirs");
    let mut options = Options::default();
    options.end = MemoryEnd::Create;
    let _theirs = as_user(OTHER, || open(&format!("memory:{name}"), &options)).expect("created");
    let missing = attach(&name).expect_err("root has none of that name");
    assert!(matches!(missing, OpenError::NotCreated { .. }), "{missing}");
    assert_eq!(knock(OTHER, &name), 0, "root is no exception for other users either");
}

/// Before: root mapped the memory of any process that listened.
#[test]
fn a_name_that_another_user_took_is_reported() {
    if !is_root() {
        return;
    }
    let name = unique("squat");
    let squatter = as_user(OTHER, || {
        let socket = raw();
        bind(socket.as_raw_fd(), &address(ROOT, &name)).expect("an abstract name is free for all");
        listen(&socket, Backlog::new(8).expect("a backlog")).expect("listening");
        socket
    });
    let refused = attach(&name).expect_err("another user listens").to_string();
    assert!(refused.contains("user 65533") && refused.contains("accepts user 0 only"), "{refused}");
    let mut options = Options::default();
    options.end = MemoryEnd::Create;
    let refused = open(&format!("memory:{name}"), &options).expect_err("the name is taken").to_string();
    let own = std::process::id();
    assert!(refused.contains(&format!("user 65533 (pid {own}) listens under its name")), "{refused}");
    drop(squatter);
    create(&name);
}

#[test]
fn another_user_who_is_named_is_a_peer() {
    if !is_root() {
        return;
    }
    let name = unique("named");
    let mut options = Options::default();
    options.end = MemoryEnd::Create;
    let mut nic = open(&format!("memory:{name},user={OTHER}"), &options).expect("created");
    let queues = nic.take_queues();
    assert_eq!(knock(ROOT, &name), 0, "its own user is not the one who was named");
    let wrong = as_user(OTHER - 1, || open(&format!("memory:{name},user=root"), &Options::default()));
    assert!(wrong.is_err(), "not named");
    let theirs = as_user(OTHER, || open(&format!("memory:{name},user=root"), &Options::default()));
    let _theirs = theirs.expect("attached");
    until("the link comes up", || queues[0].link() == LinkState::Up);
    let unknown = open("memory:x,user=abey-no-such", &options).expect_err("no such user").to_string();
    assert!(unknown.contains("there is no such user"), "{unknown}");
}

const CHILD: &str = "ABEY_NIC_TEST_EXHAUSTED";

/// Not a test by itself: a creator without descriptors left, until its standard input ends.
#[test]
fn exhausted() {
    let Ok(name) = std::env::var(CHILD) else { return };
    let _nic = create(&name);
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("the limit");
    setrlimit(Resource::RLIMIT_NOFILE, 64, hard).expect("a limit");
    let mut open = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        open.push(file);
    }
    eprintln!("ready");
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Before: the connections stayed in the backlog, and the thread that accepts was never asleep.
#[test]
fn a_creator_without_descriptors_closes_what_it_cannot_accept() {
    let name = unique("exhausted");
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "users::exhausted", "--nocapture"])
        .env(CHILD, &name)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let mut said = std::io::BufReader::new(child.stderr.take().expect("piped"));
    std::io::BufRead::read_line(&mut said, &mut String::new()).expect("a line");
    let owner = nix::unistd::geteuid().as_raw();
    for _ in 0..5 {
        assert_eq!(knock(owner, &name), 0);
    }
    drop(child.stdin.take());
    assert!(child.wait().expect("it ends").success());
}

const NAMESPACE: &str = "ABEY_NIC_TEST_NAMESPACE";

/// Not a test by itself: root of a user namespace, who attacks the NIC of the machine's root and waits at a name of root's own.
#[test]
fn root_of_another_namespace() {
    let Ok(name) = std::env::var(NAMESPACE) else { return };
    assert!(nix::unistd::geteuid().is_root());
    let stolen = attach(&name);
    assert!(stolen.is_err(), "root of a user namespace has the memory of the machine's root");
    let _nic = create(&format!("{name}-inside"));
    eprintln!("ready");
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn root_of_a_user_namespace_is_not_root() {
    if !is_root() {
        return;
    }
    let name = unique("namespace");
    let nic = create(&name);
    let user = OTHER.to_string();
    let mut child = Command::new("setpriv")
        .args(["--reuid", &user, "--regid", &user, "--clear-groups", "unshare", "--user", "--map-root-user"])
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", "users::root_of_another_namespace", "--nocapture"])
        .env(NAMESPACE, &name)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("setpriv is a program of every system");
    let (mut said, mut line) = (std::io::BufReader::new(child.stderr.take().expect("piped")), String::new());
    std::io::BufRead::read_line(&mut said, &mut line).expect("a line");
    if line.starts_with("unshare:") || line.starts_with("setpriv:") {
        child.wait().expect("it has ended");
        eprintln!("skipped: no user namespace: {line}");
        return;
    }
    assert_eq!(line, "ready\n");
    let inside = format!("{name}-inside");
    let refused = attach(&inside).expect_err("root takes it for a NIC of root's").to_string();
    assert!(refused.contains(&format!("user {OTHER}")), "{refused}");
    assert_eq!(knock(ROOT, &inside), 0, "and the machine's root is unknown in there");
    drop(child.stdin.take());
    assert!(child.wait().expect("it ends").success());
    drop(nic);
}
