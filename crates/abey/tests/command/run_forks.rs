//! `abey run --world datapath`: programs that give a connection to another process.
//!
//! Each connection begins in the datapath, which the kernel's counter of accepted connections shows, and then moves to the
//! kernel, which both processes share.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{Running, SERVER, TestBed, await_that, has};
use crate::xdp::{accepted_by_kernel, connect, start, testbed};
use abey_testbed::spawn::SpawnExt;

/// Waits until the datapath has the port: then the kernel accepts no connection any more.
pub(crate) fn await_datapath(testbed: &TestBed, run: &mut Running) {
    await_that("the datapath does not come", || {
        assert!(!run.has_ended(), "{}", run.errors_so_far());
        !testbed.datapaths().is_empty()
    });
}

/// Waits until the datapath has the port. Sends `request` on new connections until the kernel does not accept them. Returns
/// the number of connections.
fn await_port(testbed: &TestBed, run: &mut Running, port: u16, request: &str) -> usize {
    await_datapath(testbed, run);
    let mut count = 0;
    await_that("the kernel accepts all connections", || {
        let before = accepted_by_kernel(testbed);
        exchange(testbed, port, request);
        count += 1;
        accepted_by_kernel(testbed) == before
    });
    count
}

/// Sends `request`, ends the sending side, and returns all that comes back.
#[track_caller]
fn exchange(testbed: &TestBed, port: u16, request: &str) -> String {
    let mut stream = connect(testbed, port).expect("connected");
    stream.write_all(request.as_bytes()).expect("written");
    stream.shutdown(Shutdown::Write).expect("shut down");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    answer
}

/// Gives each connection to a child in the way that the client names, and then writes to its own standard output.
const GIVES: &str = "
import array, os, socket, subprocess, sys

def vfork(fd):
    subprocess.run(['sh', '-c', 'cat; echo from the child'], stdin=fd, stdout=fd, check=True)

def spawn(fd):
    actions = [(os.POSIX_SPAWN_DUP2, fd, 0), (os.POSIX_SPAWN_DUP2, fd, 1)]
    child = os.posix_spawn('/bin/sh', ['sh', '-c', 'cat; echo from the child'], os.environ, file_actions=actions)
    assert os.waitpid(child, 0)[1] == 0

def fork(fd):
    child = os.fork()
    if child == 0:
        os.dup2(fd, 0)
        os.dup2(fd, 1)
        os.execv('/bin/sh', ['sh', '-c', 'cat; echo from the child'])
    assert os.waitpid(child, 0)[1] == 0

def inherit(fd):
    subprocess.run(['bash', '-c', f'cat <&{fd} >&{fd}; echo from the child >&{fd}'], pass_fds=[fd], check=True)

def unused(fd):
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    os.write(fd, os.read(fd, 100) + b'from the child\\n')

def forked_writer(fd):
    child = os.fork()
    if child == 0:
        with socket.socket(fileno=fd) as c:
            while data := c.recv(100):
                c.sendall(data)
            c.sendall(b'from the child\\n')
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

def passed(fd):
    one, other = socket.socketpair()
    child = os.fork()
    if child == 0:
        os.close(fd)
        data, ancillary, _, _ = other.recvmsg(1, 100)
        (level, kind, bytes), = ancillary
        with socket.socket(fileno=array.array('i', bytes)[0]) as c:
            while data := c.recv(100):
                c.sendall(data)
            c.sendall(b'from the child\\n')
        os._exit(0)
    one.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [fd]))])
    assert os.waitpid(child, 0)[1] == 0

def passed_to_itself(fd):
    one, other = socket.socketpair()
    one.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [fd]))])
    data, ancillary, _, _ = other.recvmsg(1, 100)
    with socket.socket(fileno=array.array('i', ancillary[0][2])[0]) as c:
        while data := c.recv(100):
            c.sendall(data)
        c.sendall(b'from the child\\n')

def urgent(fd):
    with socket.socket(fileno=os.dup(fd)) as c:
        c.send(b'!', socket.MSG_OOB)
        while data := c.recv(100):
            c.sendall(data)
        c.sendall(b'from the child\\n')

def splice(fd):
    reads, writes = os.pipe()
    while count := os.splice(fd, writes, 1000):
        os.splice(reads, fd, count)
    os.write(fd, b'from the child\\n')

server = socket.create_server(('', 80))
while True:
    connection, _ = server.accept()
    name = b''
    while not name.endswith(b'\\n'):
        name += connection.recv(1)
    way = globals()[name.decode().strip()]
    way(connection.fileno())
    os.write(1, b'%s done\\n' % name.strip())
    connection.sendall(b'from the parent\\n')
    connection.close()
";

fn gives(ways: &[&str]) {
    if !has("python3") {
        return;
    }
    let Some(testbed) = testbed(1) else { return };
    let mut server = start(&testbed, "base", &["--strict"], &["python3", "-u", "-c", GIVES]);
    let count = await_port(&testbed, &mut server, 80, "unused\nhello\n");
    let before = accepted_by_kernel(&testbed);
    let mut printed = "unused done\n".repeat(count);
    for way in ways {
        for _ in 0..3 {
            let answer = exchange(&testbed, 80, &format!("{way}\nhello {way}\n"));
            assert_eq!(answer, format!("hello {way}\nfrom the child\nfrom the parent\n"), "{}", server.errors_so_far());
            printed += &format!("{way} done\n");
        }
    }
    assert_eq!(accepted_by_kernel(&testbed), before, "the kernel has accepted connections");
    assert_eq!(server.out_so_far(), printed);
}

#[test]
fn a_childs_output_goes_to_the_client_and_the_parents_does_not() {
    gives(&["vfork", "spawn", "fork"]);
}

#[test]
fn an_inherited_connection_is_used_by_a_child_and_its_parent() {
    gives(&["inherit", "forked_writer"]);
}

#[test]
fn a_connection_is_passed_to_another_process_and_to_the_same() {
    gives(&["passed", "passed_to_itself"]);
}

#[test]
fn urgent_data_and_splice_are_the_kernels() {
    gives(&["urgent", "splice"]);
}

/// Ends in the way of its argument after it has forked a child, which goes on with the connection.
const LEAVES: &str = "
import os, signal, socket, sys, time
server = socket.create_server(('', 80))
while True:
    connection, _ = server.accept()
    if connection.recv(1) != b't':
        break
    connection.close()
parent = os.getpid()
if os.fork():
    if sys.argv[1] == 'exit':
        sys.exit()
    if sys.argv[1] == '_exit':
        os._exit(0)
    time.sleep(1000)
if sys.argv[1] == 'kill':
    os.kill(parent, signal.SIGKILL)
while os.getppid() == parent:
    time.sleep(0.01)
try:
    connection.sendall(b'h' + connection.recv(100) + b'from the child\\n')
except OSError as error:
    print('no connection')
";

#[test]
fn a_child_keeps_a_connection_when_its_parent_ends() {
    if !has("python3") {
        return;
    }
    for way in ["exit", "_exit"] {
        let Some(testbed) = testbed(1) else { return };
        let mut server = start(&testbed, "base", &["--strict"], &["python3", "-u", "-c", LEAVES, way]);
        await_port(&testbed, &mut server, 80, "t");
        assert_eq!(exchange(&testbed, 80, "hello\n"), "hello\nfrom the child\n", "{way}: {}", server.errors_so_far());
    }
}

#[test]
fn a_child_gets_an_error_when_its_parent_was_killed() {
    if !has("python3") {
        return;
    }
    let Some(testbed) = testbed(1) else { return };
    let mut server = start(&testbed, "base", &[], &["python3", "-u", "-c", LEAVES, "kill"]);
    await_port(&testbed, &mut server, 80, "t");
    let mut stream = connect(&testbed, 80).expect("connected");
    stream.write_all(b"hello").expect("written");
    await_that("the child does not say so", || server.out_so_far() == "no connection\n");
    // The kernel answers the next segment with a reset.
    let _ = stream.write_all(b"hello");
    assert!(stream.read(&mut [0; 10]).is_err());
}

#[test]
fn a_fork_alone_leaves_a_connection_where_it_is() {
    gives(&["unused"]);
}

/// Runs `program`, a server that echoes what it reads, and asks it over many connections, several at a time.
fn echoes(port: u16, program: &[&str]) {
    let Some(testbed) = testbed(1) else { return };
    let mut server = start(&testbed, "base", &[], program);
    await_port(&testbed, &mut server, port, "hello");
    let before = accepted_by_kernel(&testbed);
    let long = "x".repeat(200_000);
    for _ in 0..5 {
        let mut streams: Vec<_> = (0..4).map(|_| connect(&testbed, port).expect("connected")).collect();
        for stream in &mut streams {
            stream.write_all(b"hello").expect("written");
        }
        for mut stream in streams {
            let mut sender = stream.try_clone().expect("a copy");
            let sent = long.clone();
            let sender = std::thread::spawn(move || {
                sender.write_all(sent.as_bytes()).expect("written");
                sender.shutdown(Shutdown::Write).expect("shut down");
            });
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap_or_else(|error| panic!("{error}: {}", server.errors_so_far()));
            sender.join().expect("written");
            assert!(answer.strip_prefix("hello") == Some(&long), "{} bytes", answer.len());
        }
    }
    assert!(!server.has_ended(), "{}", server.errors_so_far());
    assert_eq!(accepted_by_kernel(&testbed), before, "the kernel has accepted connections");
}

const FORKING: &str = "
import socketserver

class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)

class Server(socketserver.ForkingTCPServer):
    allow_reuse_address = True
    max_children = 20

Server(('', 81), Echo).serve_forever()
";

#[test]
fn pythons_forking_server_answers_every_connection() {
    if has("python3") {
        echoes(81, &["python3", "-c", FORKING]);
    }
}

#[test]
fn socat_that_forks_answers_every_connection() {
    if has("socat") {
        echoes(82, &["socat", "TCP-LISTEN:82,fork,reuseaddr", "PIPE"]);
        echoes(82, &["socat", "TCP-LISTEN:82,fork,reuseaddr", "EXEC:cat"]);
        echoes(82, &["socat", "TCP-LISTEN:82,fork,reuseaddr", "EXEC:cat,nofork"]);
    }
}

#[test]
fn inetd_answers_every_connection() {
    if !has("inetd") {
        return;
    }
    let place = tempfile::tempdir().expect("directory");
    let configuration = place.path().join("inetd.conf");
    std::fs::write(&configuration, "83 stream tcp nowait root /bin/cat cat\n").expect("written");
    echoes(83, &["inetd", "-i", configuration.to_str().expect("UTF-8")]);
}

/// Returns the path of a program of PostgreSQL, which Debian installs outside PATH.
fn postgres(program: &str) -> Option<String> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let paths = versions.flatten().map(|version| version.path().join("bin").join(program));
    Some(paths.filter(|path| path.is_file()).max()?.to_str()?.to_owned())
}

/// Runs a program as the user of PostgreSQL, which refuses to run as root.
const AS_POSTGRES: [&str; 5] = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--"];

/// Makes a database cluster that anybody may use.
fn database(directory: &Path, initdb: &str) {
    let made = Command::new("install").args(["-d", "-o", "postgres"]).arg(directory).status().expect("install starts");
    assert!(made.success());
    let mut command = Command::new(AS_POSTGRES[0]);
    command.args(&AS_POSTGRES[1..]).args([initdb, "--auth=trust", "--no-sync", "-D"]).arg(directory);
    let output = command.stdin(Stdio::null()).output().expect("initdb starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::write(directory.join("pg_hba.conf"), "host all all 0.0.0.0/0 trust\n").expect("written");
}

#[test]
fn postgresql_keeps_its_sums_under_pgbench() {
    let (Some(server), Some(initdb), Some(pgbench), Some(psql)) =
        (postgres("postgres"), postgres("initdb"), postgres("pgbench"), postgres("psql"))
    else {
        eprintln!("skipped: PostgreSQL is not installed");
        return;
    };
    let Some(testbed) = testbed(1) else { return };
    let place = tempfile::tempdir_in("/var/tmp").expect("directory");
    allow_all(place.path());
    let directory = place.path().join("data");
    database(&directory, &initdb);
    let directory = directory.to_str().expect("UTF-8");
    let options = ["-D", directory, "-h", "*", "-k", "", "-c", "fsync=off", "-c", "max_connections=40"];
    let program = [&AS_POSTGRES[..], &[&server], &options].concat();
    let mut run = start(&testbed, "base", &[], &program);
    let peer = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(["-h", &SERVER.to_string(), "-U", "postgres"]).args(arguments).arg("postgres");
        command.in_netns(&testbed.client);
        let output = command.stdin(Stdio::null()).env("PGCONNECT_TIMEOUT", "30").output().expect("it starts");
        (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let must = |program: &str, arguments: &[&str]| {
        let (is_good, printed) = peer(program, arguments);
        assert!(is_good, "{printed}\n{}", run.errors_so_far());
        printed
    };
    await_that("PostgreSQL does not answer", || peer(&psql, &["-c", "select 1"]).0);
    let before = accepted_by_kernel(&testbed);
    must(&pgbench, &["-i", "-q"]);
    let printed = must(&pgbench, &["-c", "10", "-j", "2", "-t", "50"]);
    assert!(printed.contains("number of failed transactions: 0"), "{printed}");
    // Each transaction on a connection of its own.
    let printed = must(&pgbench, &["-n", "-C", "-c", "4", "-t", "10"]);
    assert!(printed.contains("number of failed transactions: 0"), "{printed}");
    let sums = "select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history),
        (select sum(tbalance) from pgbench_tellers) = (select sum(bbalance) from pgbench_branches)";
    assert_eq!(must(&psql, &["-At", "-c", sums]).trim(), "t|t");
    assert_eq!(accepted_by_kernel(&testbed), before, "the kernel has accepted connections");
    assert!(!run.has_ended() && !run.errors_so_far().contains("recovery"), "{}", run.errors_so_far());
}

pub(crate) fn allow_all(directory: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755)).expect("permissions");
}
