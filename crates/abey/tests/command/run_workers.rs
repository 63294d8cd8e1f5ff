//! `abey run --world datapath`: servers with several processes that have dropped their privileges, on one NIC.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::{Finished, Running, TestBed, at, await_some, await_that, finish, has, send};
use crate::xdp::{accepted_by_kernel, ask, get, start, testbed};
use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A directory with a configuration for nginx, in which it writes its files.
struct Nginx(tempfile::TempDir);

impl Nginx {
    fn new(workers: usize) -> Self {
        let place = tempfile::tempdir().expect("directory");
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).expect("permissions");
        let here = place.path().display();
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let temporary: String = temporary.iter().map(|name| format!("{name}_temp_path {here}/{name};\n")).collect();
        let text = format!(
            "worker_processes {workers}; error_log {here}/log; pid {here}/pid; events {{}}
             http {{ access_log off; {temporary}
               server {{ listen {}; location / {{ return 200 \"$pid\"; }} }} }}",
            at(80)
        );
        fs::write(place.path().join("conf"), text).expect("written");
        Self(place)
    }

    fn start(&self, testbed: &TestBed, mode: &str, options: &[&str], daemon: bool) -> Running {
        let here = self.0.path().to_str().expect("UTF-8");
        let (conf, more) = (format!("{here}/conf"), if daemon { "daemon on;" } else { "daemon off;" });
        start(testbed, mode, options, &["nginx", "-p", here, "-e", "stderr", "-c", &conf, "-g", more])
    }

    fn master(&self) -> u32 {
        let path = self.0.path().join("pid");
        await_some("no master", || fs::read_to_string(&path).ok()?.trim().parse().ok())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.0.path().join("log")).unwrap_or_default()
    }
}

/// Returns the ID of the process that answers a request. Panics if the request is not answered.
#[track_caller]
fn answering_process(testbed: &TestBed) -> u32 {
    get(testbed, 80).expect("answered").parse().expect("a process")
}

/// Waits until each of `count` processes has answered, all over the datapath, and none of `old`.
#[track_caller]
fn await_workers(testbed: &TestBed, count: usize, old: &BTreeSet<u32>) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let mut calm = 0;
    await_that("not every worker answers over the datapath", || {
        let before = accepted_by_kernel(testbed);
        let Ok(Ok(one)) = get(testbed, 80).map(|body| body.parse()) else { return false };
        calm = if accepted_by_kernel(testbed) == before && !old.contains(&one) { calm + 1 } else { 0 };
        if calm == 0 {
            found.clear();
        } else {
            found.insert(one);
        }
        calm >= 10 && found.len() == count
    });
    found
}

fn user_of(pid: u32) -> u32 {
    use std::os::unix::fs::MetadataExt;
    Path::new(&format!("/proc/{pid}")).metadata().expect("it runs").uid()
}

#[test]
fn nginx_has_a_worker_for_each_queue_and_replaces_them_all() {
    if !has("nginx") {
        return;
    }
    let Some(testbed) = testbed(2) else { return };
    let nginx = Nginx::new(2);
    let server = nginx.start(&testbed, "suspend20", &["--strict"], false);
    let first = await_workers(&testbed, 2, &BTreeSet::new());
    assert!(first.iter().all(|worker| user_of(*worker) != 0), "workers have no privileges");
    // `abey status` shows their datapaths.
    for worker in &first {
        let shown = finish(crate::common::abey(&["status", "--interval", "10ms", "--pid", &worker.to_string()]));
        shown.assert_status(0);
        assert!(shown.out.contains(&format!("nginx (pid {worker})")), "{shown:?}");
    }
    // And those of the master and of `abey run`, which have none themselves, with a note on the namespace that they are in.
    for pid in [nginx.master(), server.pid()] {
        let shown = finish(crate::common::abey(&["status", "--interval", "10ms", "--pid", &pid.to_string()]));
        shown.assert_status(0);
        for worker in &first {
            assert!(shown.out.contains(&format!("nginx (pid {worker})")), "{shown:?}");
            assert!(
                shown.out.contains(&format!("of pid {worker} is in the network namespace of process ")),
                "{shown:?}"
            );
        }
    }
    // A worker that dies releases its queue, and its successor claims it.
    let dead = *first.first().expect("two");
    send(dead, Signal::SIGKILL);
    let second = await_workers(&testbed, 2, &BTreeSet::from([dead]));
    // All are replaced. Only connections that an old worker had not accepted when it stopped listening are lost.
    send(nginx.master(), Signal::SIGHUP);
    let mut lost = 0;
    await_that("old workers still answer", || {
        let answer = get(&testbed, 80);
        lost += u32::from(answer.is_err());
        answer.is_ok_and(|pid| !second.contains(&pid.parse().expect("a process")))
    });
    assert!(lost <= 2, "{lost} requests were lost");
    await_workers(&testbed, 2, &second);
    let ended = server.terminate();
    ended.assert_status(0);
    assert_eq!(ended.errors, "", "{}", nginx.log());
    crate::xdp::await_nothing_left(&testbed, "nginx has ended");
}

/// nginx uses EPOLLET: if a wait loses the event of a request, the request is never answered.
#[test]
fn requests_that_arrive_at_any_time_during_a_wait_are_answered() {
    if !has("nginx") {
        return;
    }
    let Some(testbed) = testbed(2) else { return };
    let nginx = Nginx::new(2);
    let server = nginx.start(&testbed, "suspend20", &["--strict"], false);
    await_workers(&testbed, 2, &BTreeSet::new());
    let streams: Vec<_> = (0..4).map(|_| crate::xdp::connect(&testbed, 80).expect("connected")).collect();
    let clients =
        streams.into_iter().zip(1..).map(|(stream, seed)| std::thread::spawn(move || ask_often(stream, seed)));
    let clients: Vec<_> = clients.collect();
    clients.into_iter().for_each(|client| client.join().expect("every request was answered"));
    server.terminate().assert_status(0);
}

/// Sends requests on one connection, with pauses of about the time that a wait busy polls before it sleeps.
fn ask_often(mut stream: std::net::TcpStream, seed: u64) {
    use std::io::{Read, Write};
    let mut random = StdRng::seed_from_u64(seed);
    // nginx answers 1000 requests on a connection before it closes it.
    for request in 0..1000 {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("written");
        let mut answer = [0; 1024];
        let length = stream.read(&mut answer).unwrap_or_else(|error| panic!("request {request}: {error}"));
        assert!(answer[..length].starts_with(b"HTTP/1.1 200"), "request {request}");
        std::thread::sleep(std::time::Duration::from_micros(random.random_range(0..1024)));
    }
}

#[test]
fn nginx_in_the_background_with_one_worker_has_every_queue() {
    if !has("nginx") {
        return;
    }
    let Some(testbed) = testbed(2) else { return };
    let nginx = Nginx::new(1);
    let server = nginx.start(&testbed, "base", &[], true);
    await_workers(&testbed, 1, &BTreeSet::new());
    let before = accepted_by_kernel(&testbed);
    for _ in 0..40 {
        answering_process(&testbed);
    }
    assert_eq!(accepted_by_kernel(&testbed), before);
    send(nginx.master(), Signal::SIGQUIT);
    let ended = server.end();
    ended.assert_status(0);
    assert!(!ended.errors.contains("libabey.so"), "{ended:?}");
}

#[test]
fn a_worker_without_a_queue_uses_the_kernel_and_strict_ends_the_program() {
    if !has("nginx") {
        return;
    }
    let Some(testbed) = testbed(1) else { return };
    let nginx = Nginx::new(2);
    let server = nginx.start(&testbed, "base", &[], false);
    await_workers(&testbed, 1, &BTreeSet::new());
    let line = "the one queue of af_xdp:";
    await_that("nothing is said", || server.errors_so_far().contains(line));
    assert_eq!(server.errors_so_far().matches(line).count(), 1);
    answering_process(&testbed);
    server.terminate().assert_status(0);
    let ended = nginx.start(&testbed, "base", &["--strict"], false).end();
    ended.assert_status(3);
    assert!(ended.errors.contains("a process needs one of its own; --strict has ended the program"), "{ended:?}");
}

#[test]
fn memcached_drops_its_privileges_and_keeps_every_queue() {
    if !has("memcached") {
        return;
    }
    let Some(testbed) = testbed(2) else { return };
    let server = start(
        &testbed,
        "suspend20",
        &["--strict"],
        &["memcached", "-u", "nobody", "-l", &at(0).ip().to_string(), "-p", "11211", "-t", "2"],
    );
    let store = "set a 0 0 1\r\nx\r\nget a\r\nquit\r\n";
    await_that("memcached does not answer", || ask(&testbed, 11211, store).is_ok());
    let before = accepted_by_kernel(&testbed);
    for _ in 0..20 {
        assert_eq!(ask(&testbed, 11211, store).expect("answered"), "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n");
    }
    assert_eq!(accepted_by_kernel(&testbed), before);
    assert_ne!(user_of(server.await_program("memcached")[0]), 0);
}

/// Without `insecure-fork-wanted` a worker that is not root may not start threads once it runs.
#[test]
fn haproxys_worker_has_every_queue() {
    if !has("haproxy") {
        return;
    }
    let Some(testbed) = testbed(2) else { return };
    let here = tempfile::tempdir().expect("directory");
    let conf = here.path().join("conf");
    let text = format!(
        "global\n user nobody\n insecure-fork-wanted\ndefaults\n mode http\n timeout client 5s\n timeout server 5s\n timeout connect 5s\n\
         frontend f\n bind {}\n http-request return status 200 content-type text/plain lf-string %pid\n",
        at(80)
    );
    fs::write(&conf, text).expect("written");
    let conf = conf.to_str().expect("UTF-8");
    let server = start(&testbed, "suspend20", &["--strict"], &["haproxy", "-W", "-db", "-q", "-f", conf]);
    let first = await_workers(&testbed, 1, &BTreeSet::new());
    assert!(first.iter().all(|worker| user_of(*worker) != 0), "the worker has no privileges");
    server.signal(Signal::SIGTERM);
    assert_eq!(server.end().errors, "");
}

/// Workers that are forked before the first socket is made; each makes its own listener.
const FORKS_FIRST: &str = "
import os, socket, sys
for worker in range(2):
    if os.fork() == 0:
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        s.bind((sys.argv[1], 80))
        s.listen()
        while True:
            c, _ = s.accept()
            c.recv(1000)
            c.sendall(b'HTTP/1.1 200 OK\\r\\n\\r\\n%d' % os.getpid())
            c.close()
os.wait()
";

#[test]
fn workers_that_are_forked_before_they_listen_have_a_queue_each() {
    if !has("python3") {
        return;
    }
    let Some(testbed) = testbed(2) else { return };
    let address = at(0).ip().to_string();
    let server = start(&testbed, "base", &["--strict"], &["python3", "-c", FORKS_FIRST, &address]);
    let workers = await_workers(&testbed, 2, &BTreeSet::new());
    let mut below = server.programs("python3");
    below.retain(|pid| workers.contains(pid));
    assert_eq!(below.len(), 2);
}

/// Runs a Python program over a NIC without a peer: it opens the datapath and then executes `rest`.
fn run_without_peer(options: &[&str], rest: &str) -> Finished {
    // A separate control directory: a connection from another test's `abey status` would be one more descriptor.
    let place = tempfile::tempdir().expect("directory");
    let first = "
import os, socket, sys
os.environ['ABEY_CONTROL_DIR'] = sys.argv[1]
s = socket.create_server(('10.0.0.1', 80))
def use(s):
    s.setblocking(False)
    try: s.accept()
    except OSError: pass
def low(): return {fd for fd in os.listdir('/proc/self/fd') if int(fd) < 512}
before = low()
use(s)
";
    let nic = crate::common::unique("memory:abey-workers-");
    let all = [&["run", "--world", "datapath", "--mode", "base", "--nic", &nic], options].concat();
    let mut command = crate::common::abey(&all);
    command.args(["--", "python3", "-c", &format!("{first}{rest}")]).arg(place.path());
    finish(command)
}

#[test]
fn a_child_that_uses_a_udp_socket_that_the_kernel_cannot_have_gets_a_message() {
    if !has("python3") {
        return;
    }
    let child = "
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.bind(('10.0.0.1', 81))
child = os.fork()
if child == 0:
    u.getsockname()
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
";
    let ended = run_without_peer(&[], child);
    ended.assert_status(0);
    assert_eq!(ended.errors.matches("used a UDP socket of its parent").count(), 1, "{ended:?}");
    run_without_peer(&["--strict"], child).assert_status(3);
}

#[test]
fn a_program_that_closes_all_descriptors_keeps_the_datapath_and_the_lowest_numbers_are_free() {
    if !has("python3") {
        return;
    }
    let close = "
assert low() == before, (low(), before)
os.closerange(3, 100000)
for fd in range(3, 1200):
    try: os.close(fd)
    except OSError: pass
assert os.open('/dev/null', os.O_RDONLY) == 3
use(socket.create_server(('10.0.0.1', 81)))
print(len([fd for fd in os.listdir('/proc/self/fd') if int(fd) >= 512]))
";
    let ended = run_without_peer(&["--strict"], close);
    ended.assert_status(0);
    assert!(ended.out.trim().parse::<u32>().is_ok_and(|left| left > 3), "{ended:?}");
}

#[test]
fn a_program_that_changes_its_user_when_it_starts_is_left_run_without_peer() {
    if !crate::common::is_root() {
        return;
    }
    let Some(unprivileged) = crate::common::UnprivilegedUser::new() else { return };
    let here = tempfile::tempdir().expect("directory");
    fs::set_permissions(here.path(), fs::Permissions::from_mode(0o755)).expect("permissions");
    let program = here.path().join("env");
    crate::common::copy_program(&crate::common::which("env").expect("coreutils are installed"), &program);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("permissions");
    let nic = crate::common::unique("memory:abey-workers-");
    let run = |options: &[&str]| {
        let mut command = unprivileged.command();
        command.args(["run", "--journals"]).arg(unprivileged.journals());
        command.args(["--world", "datapath", "--mode", "base", "--nic", &nic]).args(options);
        command.arg("--").arg(&program).arg("true");
        finish(command)
    };
    run(&[]).assert_sentence(0, &["changes its user when it starts", "it runs on the kernel's"]);
    run(&["--strict"]).assert_refused(3, &["changes its user when it starts", "leave out --strict"]);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("permissions");
    // Version 2 of `struct vfs_cap_data` (capabilities(7)), with the effective flag and CAP_NET_BIND_SERVICE.
    let capabilities: Vec<u8> =
        [0x0200_0001_u32, 1 << 10, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    let flags = rustix::fs::XattrFlags::empty();
    if let Err(error) = rustix::fs::setxattr(&program, "security.capability", &capabilities, flags) {
        eprintln!("skipped: no file capabilities in {}: {error}", here.path().display());
        return;
    }
    run(&[]).assert_sentence(0, &["gains capabilities when it starts", "it runs on the kernel's"]);
}

#[test]
fn a_server_without_privileges_uses_a_shared_memory_nic_of_root() {
    if !crate::common::is_root() || !has("memcached") {
        return;
    }
    let nic = crate::common::unique("memory:abey-workers-");
    let mut command =
        crate::common::abey(&["run", "--world", "datapath", "--mode", "base", "--nic", &nic, "--strict", "--"]);
    command.args(["memcached", "-u", "nobody", "-l", "10.0.0.1", "-p", "11211"]);
    let server = Running::start(command);
    let load = ["load", "memcached", "10.0.0.1:11211", "--nic", &nic, "--keys", "10", "--rate", "1k"];
    let time = ["--duration", "50ms", "--warmup", "1ms", "--json"];
    await_that("no load goes well", || finish(crate::common::abey(&[&load[..], &time].concat())).status.success());
    assert_ne!(user_of(server.await_program("memcached")[0]), 0);
}
