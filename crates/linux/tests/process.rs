//! Inspection of processes: the test's own, its children, and servers in a namespace of their own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use abey_delivery::EpollBusyPoll;
use abey_linux::process::{
    self, EpollChanges, EpollParams, ProcessError, ProcessView, Protocol, SocketState, inspect, inspect_tree,
};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

mod counters_common;

use counters_common::{Net, SERVER, is_root, set_epoll_params};

const SUSPEND: EpollBusyPoll = EpollBusyPoll { usecs: 0, budget: 64, prefer: true };

fn me() -> ProcessView {
    inspect(std::process::id()).expect("this process")
}

/// A child that is killed and reaped when the test ends.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sleeping() -> Reaped {
    Reaped(Command::new("sleep").arg("20").spawn().expect("sleep"))
}

#[test]
fn sockets_of_every_kind_are_recognized() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let client = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (server, _) = listener.accept().expect("accept");
    let open_udp = UdpSocket::bind("127.0.0.1:0").expect("udp");
    let tied_udp = UdpSocket::bind("127.0.0.1:0").expect("udp");
    tied_udp.connect(open_udp.local_addr().expect("address")).expect("connect");
    let (unix, _other) = std::os::unix::net::UnixStream::pair().expect("unix pair");
    let view = me();
    let of = |fd| view.sockets.iter().find(|s| s.fd == fd);
    let expect = [
        (listener.as_raw_fd(), Protocol::Tcp, SocketState::Listening, listener.local_addr().ok(), None),
        (client.as_raw_fd(), Protocol::Tcp, SocketState::Connected, client.local_addr().ok(), client.peer_addr().ok()),
        (server.as_raw_fd(), Protocol::Tcp, SocketState::Connected, server.local_addr().ok(), server.peer_addr().ok()),
        (open_udp.as_raw_fd(), Protocol::Udp, SocketState::Listening, open_udp.local_addr().ok(), None),
        (
            tied_udp.as_raw_fd(),
            Protocol::Udp,
            SocketState::Connected,
            tied_udp.local_addr().ok(),
            tied_udp.peer_addr().ok(),
        ),
    ];
    for (fd, protocol, state, local, remote) in expect {
        let socket = of(fd).unwrap_or_else(|| panic!("descriptor {fd} is missing from {view:?}"));
        assert_eq!(
            (socket.protocol, socket.state, Some(socket.local), socket.remote),
            (protocol, state, local, remote)
        );
        assert_eq!(socket.napi_id, None, "loopback has no NAPI");
    }
    assert_eq!(of(unix.as_raw_fd()), None);
    let addresses = view.listening_addresses();
    for listening in [listener.local_addr(), open_udp.local_addr()] {
        assert!(addresses.contains(&listening.expect("address")), "{addresses:?}");
    }
}

#[test]
fn an_ipv6_listener_is_recognized() {
    let Ok(listener) = TcpListener::bind("[::1]:0") else {
        eprintln!("skipped: no IPv6 on loopback");
        return;
    };
    let address: SocketAddr = listener.local_addr().expect("address");
    assert!(me().listening_addresses().contains(&address));
}

#[test]
fn an_epoll_instance_shows_what_it_watches_and_the_parameters_in_force() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let client = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (reader, _writer) = std::io::pipe().expect("pipe");
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("epoll");
    let event = || EpollEvent::new(EpollFlags::EPOLLIN, 0);
    epoll.add(&listener, event()).expect("add");
    epoll.add(&client, event()).expect("add");
    epoll.add(reader.as_fd(), event()).expect("add");
    let fd = epoll.0.as_raw_fd();
    let view = || me().epolls.into_iter().find(|e| e.fd == fd).expect("the epoll instance");
    let before = view();
    assert_eq!((before.watched, before.listeners, before.without_napi), (3, 1, 1), "{before:?}");
    assert!(before.napi_ids.is_empty() && before.shared_with.is_empty(), "{before:?}");
    if before.params == EpollParams::Unsupported {
        eprintln!("skipped: this kernel has no busy poll parameters per epoll instance");
        return;
    }
    assert_eq!(before.params, EpollParams::Unset);
    set_epoll_params(fd, SUSPEND);
    assert_eq!(view().params.get(), Some(SUSPEND));
    drop(client);
    assert_eq!(view().watched, 2);
}

#[test]
fn two_descriptors_of_one_epoll_instance_are_recognized() {
    let one = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("epoll");
    let other = one.0.try_clone().expect("a second descriptor");
    let alone = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("epoll");
    let tree = inspect_tree(std::process::id()).expect("tree");
    let shared_with = |fd| tree[0].epolls.iter().find(|e| e.fd == fd).expect("listed").shared_with.clone();
    let here = |epoll: &std::os::fd::OwnedFd| (std::process::id(), epoll.as_raw_fd());
    // Other tests inspect this process at the same time: their duplicates of these may be listed as well.
    assert!(shared_with(one.0.as_raw_fd()).contains(&here(&other)));
    assert!(shared_with(other.as_raw_fd()).contains(&here(&one.0)));
    assert!(!shared_with(one.0.as_raw_fd()).contains(&here(&alone.0)));
    assert!(!shared_with(alone.0.as_raw_fd()).iter().any(|fd| [here(&one.0), here(&other)].contains(fd)));
}

#[test]
fn a_child_is_found_with_its_parent_and_its_threads() {
    let child = sleeping();
    let (me, pid) = (std::process::id(), child.0.id());
    let tree = inspect_tree(me).expect("tree");
    assert_eq!(tree[0].pid, me);
    assert!(tree[0].children.contains(&pid), "{:?}", tree[0].children);
    assert!(tree[0].threads.len() > 1, "{:?}", tree[0].threads);
    let its = tree.iter().find(|v| v.pid == pid).expect("the child");
    assert_eq!((its.parent, its.network_namespace), (me, tree[0].network_namespace));
    assert_eq!(its.threads.iter().map(|t| t.tid).collect::<Vec<_>>(), [pid]);
    assert!(process::descendants(me).expect("descendants").contains(&pid));
    let threads = process::tree_threads(me).expect("threads");
    assert!(threads.contains(&pid) && threads.contains(&(nix::unistd::gettid().as_raw() as u32)), "{threads:?}");
}

#[test]
fn inspection_leaves_no_descriptor_open() {
    let child = sleeping();
    let count = || std::fs::read_dir("/proc/self/fd").expect("fd").count();
    // Other tests of this binary open descriptors meanwhile, but not hundreds.
    let before = count();
    for _ in 0..300 {
        inspect(child.0.id()).expect("child");
        inspect_tree(std::process::id()).expect("tree");
    }
    assert!(count() < before + 200);
}

#[test]
fn inaccessible_processes_are_errors() {
    assert!(matches!(inspect(u32::MAX - 1), Err(ProcessError::NoProcess(_))));
    assert!(matches!(inspect(0), Err(ProcessError::NoProcess(0))));
    let mut child = sleeping();
    let pid = child.0.id();
    child.0.kill().expect("kill");
    assert!(child.0.wait().is_ok());
    assert!(matches!(inspect(pid), Err(ProcessError::NoProcess(_))));
    let (sender, receiver) = std::sync::mpsc::channel();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        sender.send(nix::unistd::gettid().as_raw() as u32).expect("sent");
        let _ = stopped.recv();
    });
    let tid = receiver.recv().expect("tid");
    let error = inspect(tid).expect_err("a thread is no process");
    assert!(matches!(error, ProcessError::IsThread { pid, .. } if pid == std::process::id()), "{error}");
    drop(stop);
    thread.join().expect("thread");
}

#[test]
fn without_permission_the_reason_is_given() {
    if !is_root() {
        return;
    }
    // A child under another user's number inspects this process through the same code: the test program itself.
    let me = std::env::current_exe().expect("the test program");
    let copy = std::env::temp_dir().join(format!("abey-process-{}", std::process::id()));
    // By another process: what this one writes, its other threads' children have open, and could not be started (ETXTBSY).
    let copied = Command::new("cp").args([&me, &copy]).status().expect("cp starts");
    assert!(copied.success(), "a copy anybody may run");
    let output = Command::new(&copy)
        .args(["--exact", "inspect_from_another_process", "--ignored", "--nocapture"])
        .env("ABEY_TEST_TARGET", std::process::id().to_string())
        .uid(65_534)
        .gid(65_534)
        .output();
    std::fs::remove_file(&copy).expect("the copy");
    let text = String::from_utf8_lossy(&output.expect("run").stdout).into_owned();
    assert!(text.contains("is not permitted") && text.contains("CAP_SYS_PTRACE"), "{text}");
}

#[test]
#[ignore = "the other half of `without_permission_the_reason_is_given`"]
fn inspect_from_another_process() {
    let Ok(target) = std::env::var("ABEY_TEST_TARGET") else {
        eprintln!("skipped: no process to inspect");
        return;
    };
    match inspect(target.parse().expect("a number")) {
        Err(error @ ProcessError::NoPermission { .. }) => println!("{error}"),
        other => panic!("not refused: {other:?}"),
    }
}

const SERVER_SCRIPT: &str = r"
import os, select, socket, sys
s = socket.create_server((sys.argv[1], 0))
shared = select.epoll()
ready, tell = os.pipe()
pid = os.fork()
e = select.epoll()
e.register(s, select.EPOLLIN)
if not pid:
    os.write(tell, b'x')
if pid:
    os.read(ready, 1)
    print(s.getsockname()[1], flush=True)
    c, _ = s.accept()
    e.register(c, select.EPOLLIN)
    c.send(c.recv(1))
sys.stdin.read()
";

#[test]
fn a_server_with_a_worker_in_another_namespace_shows_the_napi_it_receives_from() {
    let Some(net) = Net::new('i') else { return };
    let spawn = || {
        Command::new("python3")
            .args(["-c", SERVER_SCRIPT, &SERVER.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
    };
    let Ok(mut child) = net.server.run(spawn).expect("enter") else {
        eprintln!("skipped: needs python3");
        return;
    };
    // Closing its input ends the parent and the worker it forked.
    let _input = child.stdin.take();
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut line).expect("the port");
    let child = Reaped(child);
    let address = SocketAddr::new(SERVER, line.trim().parse().expect("a port"));
    let mut stream = net.connect(address.port());
    stream.write_all(b"x").expect("send");
    stream.read_exact(&mut [0]).expect("reply");
    let tree = inspect_tree(child.0.id()).expect("tree");
    let napi = net.napi().id;
    assert_eq!(tree.len(), 2, "{tree:?}");
    assert!(tree.iter().all(|v| v.network_namespace == net.server.inode() && v.listening_addresses() == [address]));
    let [parent, worker] = [&tree[0], &tree[1]];
    assert_eq!(worker.parent, parent.pid);
    assert_eq!(parent.napi_ids().into_iter().collect::<Vec<_>>(), [(napi, 1)]);
    assert!(worker.napi_ids().is_empty(), "{worker:?}");
    let [shared, own] = &parent.epolls[..] else { panic!("{parent:?}") };
    assert_eq!((shared.watched, &shared.shared_with), (0, &vec![(worker.pid, shared.fd)]));
    assert_eq!((own.watched, own.listeners, own.without_napi), (2, 1, 0));
    assert_eq!(own.napi_ids.iter().collect::<Vec<_>>(), [(&napi, &1)]);
    assert!(own.shared_with.is_empty() && worker.epolls.len() == 2, "{worker:?}");
}

#[test]
fn the_epoll_parameters_of_a_running_process_are_changed_and_put_back() {
    if !abey_linux::epoll::supported().expect("the probe runs") {
        eprintln!("skipped: this kernel has no EPIOCSPARAMS");
        return;
    }
    // The child has a descriptor of the same instance, so that the parameters can be seen from here.
    let epoll = Epoll::new(EpollCreateFlags::empty()).expect("an epoll instance");
    let child = sleeping();
    let now = || abey_linux::epoll::get(epoll.0.as_fd()).expect("get");
    let (before, pid) = (now(), child.0.id());
    let mut changes = EpollChanges::default();
    let missing = u32::try_from(i32::MAX).expect("a number");
    let count = match changes.set(&[pid, missing], Some(SUSPEND)) {
        Err(ProcessError::NoPermission { .. }) => {
            return eprintln!("skipped: other processes may not be looked at here");
        }
        other => other.expect("set"),
    };
    assert!(count >= 1 && now() == SUSPEND, "{count} {:?}", now());
    assert_eq!(changes.notes().len(), count);
    let busy = EpollBusyPoll { usecs: 64, ..SUSPEND };
    changes.set(&[pid], Some(busy)).expect("set");
    assert_eq!(now(), busy);
    changes.set(&[pid], None).expect("set");
    assert_eq!(now(), before);
    changes.set(&[pid], Some(SUSPEND)).expect("set");
    changes.restore().expect("restore");
    assert_eq!(now(), before);
}
