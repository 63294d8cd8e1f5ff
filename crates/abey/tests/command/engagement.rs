//! What a mode does not reach is said in one line, and ends a `--strict` run: judged from outside, by the sockets of each
//! process and how it waits for them.

use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::common::{Finished, HANG_LIMIT, Running, TestBed, at, await_some, await_that, has, which};
use crate::xdp::connect;
use nix::sys::signal::Signal;

/// The worlds of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum World {
    Kernel,
    Datapath,
}

use World::{Datapath, Kernel};

/// Returns `abey run` of a program in a world.
fn run(testbed: &TestBed, world: World, mode: &str, options: &[&str], program: &[&str]) -> Running {
    let nic = testbed.nic();
    let world: &[&str] = match world {
        Kernel => &["--dev", &testbed.device.name],
        Datapath => &["--world", "datapath", "--nic", &nic],
    };
    Running::start(testbed.run(&[world, &["--mode", mode], options].concat(), program))
}

/// Returns the lines of the judge.
fn lines(errors: &str) -> Vec<&str> {
    errors.lines().filter(|line| line.contains("is not active for")).collect()
}

/// Returns what the server echoes on a new connection.
fn echo(testbed: &TestBed, port: u16) -> Option<String> {
    let mut stream = connect(testbed, port).ok()?;
    stream.write_all(b"hello\n").ok()?;
    let mut answer = [0; 6];
    stream.read_exact(&mut answer).ok()?;
    String::from_utf8(answer.to_vec()).ok()
}

/// Asserts that the program is reported in one line with these words and runs on, and that `--strict` ends it.
#[track_caller]
fn assert_reported(testbed: &TestBed, world: World, mode: &str, program: &[&str], words: &[&str]) {
    let running = run(testbed, world, mode, &[], program);
    let line =
        await_some("it is not reported", || lines(&running.errors_so_far()).first().map(|line| line.to_string()));
    assert!(line.starts_with(&format!("abey: {mode} is not active for ")), "{line}");
    assert!(words.iter().all(|word| line.contains(word)), "not all of {words:?} in {line}");
    let ended = running.terminate();
    assert_eq!(lines(&ended.errors), [line], "{world:?}: {ended:?}");
    let strict = run(testbed, world, mode, &["--strict"], program).end();
    assert_ended(&strict, words);
}

/// Asserts that `--strict` has ended a program.
#[track_caller]
fn assert_ended(ended: &Finished, words: &[&str]) {
    ended.assert_status(3);
    let said = lines(&ended.errors);
    assert!(said.len() == 1 && said[0].ends_with("--strict has ended the program"), "{ended:?}");
    assert!(words.iter().all(|word| said[0].contains(word)), "not all of {words:?} in {said:?}");
}

/// A directory with programs that are built for a test.
struct Programs(tempfile::TempDir);

impl Programs {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("directory"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str, text: &str) -> String {
        fs::write(self.path(name), text).expect("written");
        self.path(name).to_str().expect("UTF-8").to_owned()
    }

    /// Compiles a C program. Returns its path, or `None` and prints the reason where there is no compiler.
    fn c(&self, name: &str, source: &str, options: &[&str]) -> Option<String> {
        if !has("cc") {
            return None;
        }
        let source = self.text(&format!("{name}.c"), source);
        let program = self.path(name);
        let built =
            Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(source).args(options).output().expect("cc");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Some(program.to_str().expect("UTF-8").to_owned())
    }

    /// Builds a Go program, with or without the C library.
    fn go(&self, name: &str, source: &str, is_cgo: bool) -> Option<String> {
        if !has("go") || is_cgo && !has("cc") {
            return None;
        }
        let source = self.text(&format!("{name}.go"), source);
        let program = self.path(name);
        let mut go = Command::new("go");
        go.args(["build", "-o"]).arg(&program).arg(source).env("CGO_ENABLED", if is_cgo { "1" } else { "0" });
        go.env("GOFLAGS", "-mod=mod").env("GO111MODULE", "off").current_dir(self.0.path());
        let built = go.output().expect("go");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Some(program.to_str().expect("UTF-8").to_owned())
    }
}

/// Echoes on port 7000.
const GO: &str = "
package main

import \"io\"
import \"net\"
// IMPORT

func main() {
    listener, err := net.Listen(\"tcp\", \":7000\")
    if err != nil { panic(err) }
    for {
        peer, err := listener.Accept()
        if err != nil { panic(err) }
        go io.Copy(peer, peer)
    }
}
";

#[test]
fn a_go_program_with_the_c_library_accepts_past_it() {
    let (Some(testbed), programs) = (TestBed::new(1).map(TestBed::with_checksums), Programs::new()) else { return };
    let source = GO.replace("// IMPORT", "import \"C\"");
    let Some(program) = programs.go("cgo", &source, true) else { return };
    let place = "TCP [::]:7000";
    assert_reported(
        &testbed,
        Datapath,
        "suspend20",
        &[&program],
        &["cgo (pid ", place, "past the C library", "--world"],
    );
    assert_reported(&testbed, Kernel, "suspend20", &[&program], &["cgo (pid ", place, "without busy-poll parameters"]);
}

#[test]
fn a_static_program_that_another_one_starts_is_reported() {
    let (Some(testbed), programs) = (TestBed::new(1).map(TestBed::with_checksums), Programs::new()) else { return };
    let Some(program) = programs.go("static", GO, false) else { return };
    // The shell has the library and no socket.
    let script = format!("{program} & wait");
    for world in [Datapath, Kernel] {
        let words = ["static (pid ", "TCP [::]:7000", "statically linked"];
        assert_reported(&testbed, world, "suspend20", &["sh", "-c", &script], &words);
    }
    // The program itself is reported at the start, once.
    let running = run(&testbed, Datapath, "suspend20", &[], &[&program]);
    await_that("it does not echo", || echo(&testbed, 7000).as_deref() == Some("hello\n"));
    pause_for_checks();
    let ended = running.terminate();
    assert_eq!(ended.errors.lines().count(), 1, "{ended:?}");
    // A mode that needs nothing of it.
    let running = run(&testbed, Kernel, "defer50", &["--strict"], &["sh", "-c", &script]);
    await_that("it does not echo", || echo(&testbed, 7000).as_deref() == Some("hello\n"));
    pause_for_checks();
    assert_eq!(lines(&running.terminate().errors), [""; 0]);
}

/// Lets several checks happen that shall find nothing.
fn pause_for_checks() {
    std::thread::sleep(Duration::from_millis(2500));
}

/// Echoes on port 7000 by io_uring, with system calls of its own, as liburing makes them.
#[cfg(target_arch = "x86_64")]
const IO_URING: &str = r#"
#include <arpa/inet.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static long call(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d; register long r8 __asm__("r8") = e; register long r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
        : "rcx", "r11", "memory");
    return result;
}

static int ring; static struct io_uring_params p; static char *sq, *cq; static struct io_uring_sqe *sqes;

static int run(unsigned char op, int fd, void *at, unsigned len) {
    unsigned *tail = (unsigned *)(sq + p.sq_off.tail), *mask = (unsigned *)(sq + p.sq_off.ring_mask);
    unsigned index = *tail & *mask;
    memset(&sqes[index], 0, sizeof *sqes);
    sqes[index].opcode = op; sqes[index].fd = fd; sqes[index].addr = (unsigned long)at; sqes[index].len = len;
    ((unsigned *)(sq + p.sq_off.array))[index] = index;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    unsigned *head = (unsigned *)(cq + p.cq_off.head), *end = (unsigned *)(cq + p.cq_off.tail);
    unsigned submit = 1;
    while (*head == __atomic_load_n(end, __ATOMIC_ACQUIRE)) { call(426, ring, submit, 1, IORING_ENTER_GETEVENTS, 0, 0); submit = 0; }
    int result = ((struct io_uring_cqe *)(cq + p.cq_off.cqes))[*head & *(unsigned *)(cq + p.cq_off.ring_mask)].res;
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    return result;
}

int main(void) {
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(7000) };
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, 8)) return 1;
    ring = call(425, 8, (long)&p, 0, 0, 0, 0);
    if (ring < 0) { fprintf(stderr, "no io_uring: %d\n", -ring); return 77; }
    int share = MAP_SHARED | MAP_POPULATE, rw = PROT_READ | PROT_WRITE;
    sq = mmap(0, p.sq_off.array + p.sq_entries * 4, rw, share, ring, IORING_OFF_SQ_RING);
    cq = mmap(0, p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe), rw, share, ring, IORING_OFF_CQ_RING);
    sqes = mmap(0, p.sq_entries * sizeof *sqes, rw, share, ring, IORING_OFF_SQES);
    for (;;) {
        int peer = run(IORING_OP_ACCEPT, listener, 0, 0), got; char buffer[100];
        if (peer < 0) return 2;
        while ((got = run(IORING_OP_RECV, peer, buffer, sizeof buffer)) > 0) run(IORING_OP_SEND, peer, buffer, got);
        close(peer);
    }
}
"#;

#[test]
#[cfg(target_arch = "x86_64")]
fn a_server_on_io_uring_is_reported_in_both_worlds() {
    let (Some(testbed), programs) = (TestBed::new(1).map(TestBed::with_checksums), Programs::new()) else { return };
    let Some(program) = programs.c("uring", IO_URING, &[]) else { return };
    if fs::read_to_string("/proc/sys/kernel/io_uring_disabled").is_ok_and(|text| text.trim() == "2") {
        return eprintln!("skipped: io_uring is disabled");
    }
    assert_reported(&testbed, Kernel, "suspend20", &[&program], &["uring (pid ", "TCP 0.0.0.0:7000", "io_uring"]);
    assert_reported(&testbed, Datapath, "base", &[&program], &["uring (pid ", "TCP 0.0.0.0:7000", "io_uring"]);
}

const GUNICORN: &str = "
def application(environ, start):
    start('200 OK', [('Content-Length', '6')])
    return [b'hello\\n']
";

#[test]
fn servers_that_wait_in_poll_and_select_are_reported_where_a_mode_needs_epoll() {
    let (Some(testbed), programs) = (TestBed::new(1), Programs::new()) else { return };
    if let Some(iperf3) = which("iperf3") {
        let program = [iperf3.to_str().expect("UTF-8"), "-s", "-4"];
        assert_reported(&testbed, Kernel, "fullbusy", &program, &["iperf3 (pid ", ":5201", "in select", "defer50"]);
    }
    if has("gunicorn") {
        programs.text("app.py", GUNICORN);
        let here = programs.0.path().to_str().expect("UTF-8");
        let program = ["gunicorn", "--chdir", here, "-w", "2", "-b", "0.0.0.0:7000", "app:application"];
        // Both workers have the same reason.
        assert_reported(&testbed, Kernel, "suspend20", &program, &["gunicorn", "TCP 0.0.0.0:7000", "in select"]);
    }
    if has("dnsmasq") {
        let program = ["dnsmasq", "-k", "-C", "/dev/null", "-u", "root", "--no-resolv", "--no-hosts", "--pid-file="];
        assert_reported(&testbed, Kernel, "napibusy", &program, &["dnsmasq (pid ", ":53", "in poll"]);
    }
}

/// Listens on port 7000 when it has received SIGUSR1, and echoes by `select`.
const LATE: &str = "
import select, signal, socket

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
print('ready', flush=True)
signal.sigwait({signal.SIGUSR1})
listener = socket.create_server(('', 7000))
peers = []
while True:
    for one in select.select([listener, *peers], [], [])[0]:
        if one is listener:
            peers.append(listener.accept()[0])
        else:
            one.sendall(one.recv(100))
";

#[test]
fn a_server_that_listens_late_is_judged_when_it_does() {
    let Some(testbed) = TestBed::new(1) else { return };
    if !has("python3") {
        return;
    }
    let program = ["python3", "-c", LATE];
    let start = |options: &[&str]| {
        let running = run(&testbed, Kernel, "suspend20", options, &program);
        await_that("it does not start", || running.out_so_far().contains("ready"));
        let server = running.await_program("python3")[0];
        (running, server)
    };
    let (running, server) = start(&[]);
    pause_for_checks();
    assert_eq!(lines(&running.errors_so_far()), [""; 0]);
    crate::common::send(server, Signal::SIGUSR1);
    await_that("it is not reported", || lines(&running.errors_so_far()).len() == 1);
    assert_eq!(echo(&testbed, 7000).as_deref(), Some("hello\n"), "it runs on");
    drop(running);
    // A program of a name that is left alone.
    let (running, server) = start(&["--strict", "--skip", "python3"]);
    crate::common::send(server, Signal::SIGUSR1);
    await_that("it does not echo", || echo(&testbed, 7000).as_deref() == Some("hello\n"));
    pause_for_checks();
    assert_eq!(lines(&running.terminate().errors), [""; 0]);
}

/// Accepts by epoll, and serves each connection in a thread that blocks in `recv`.
const THREADS: &str = "
import select, socket, threading

def serve(peer):
    while data := peer.recv(100):
        peer.sendall(data)

listener = socket.create_server(('', 7000))
epoll = select.epoll()
epoll.register(listener, select.EPOLLIN)
while True:
    epoll.poll()
    threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()
";

#[test]
fn a_server_is_judged_again_when_it_has_connections() {
    let Some(testbed) = TestBed::new(1) else { return };
    if !has("python3") {
        return;
    }
    let running = run(&testbed, Kernel, "suspend20", &[], &["python3", "-c", THREADS]);
    await_that("it does not listen", || {
        testbed.server.run(|| std::net::TcpStream::connect(at(7000)).is_ok()).expect("entered")
    });
    pause_for_checks();
    assert_eq!(lines(&running.errors_so_far()), [""; 0], "it accepts by epoll");
    let mut peer = connect(&testbed, 7000).expect("connected");
    peer.write_all(b"hello\n").expect("sent");
    await_that("the threads are not reported", || lines(&running.errors_so_far()).len() == 1);
    let errors = running.errors_so_far();
    assert!(lines(&errors)[0].contains("in recv"), "{errors}");
    peer.set_read_timeout(Some(HANG_LIMIT)).expect("set");
    peer.read_exact(&mut [0; 6]).expect("it runs on");
}

/// Servers that both worlds reach, as one tree of processes: port, command, request, and what the answer begins with.
struct Servers {
    files: Programs,
    all: Vec<(u16, String, &'static [u8], &'static str)>,
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

const ASYNCIO: &str = "
import asyncio

async def serve(reader, writer):
    while line := await reader.readline():
        writer.write(line)

async def main():
    server = await asyncio.start_server(serve, '', 7200)
    await server.serve_forever()

asyncio.run(main())
";

const NODE: &str = "
require('http').createServer((request, answer) => answer.end('hello')).listen(7300, '0.0.0.0');
";

impl Servers {
    /// Returns those that are installed.
    fn installed() -> Self {
        let files = Programs::new();
        let here = files.0.path().display().to_string();
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let temporary: String = temporary.iter().map(|name| format!("{name}_temp_path {here}/{name};")).collect();
        let nginx = format!(
            "daemon off; user root; worker_processes 2; pid {here}/pid; error_log {here}/log; events {{}}
             http {{ access_log off; {temporary} server {{ listen 8080; location / {{ return 200 hello; }} }} }}"
        );
        let haproxy = "defaults\n  mode http\n  timeout connect 5s\n  timeout client 30s\n  timeout server 30s\n\
             frontend front\n  bind :8081\n  http-request return status 200\n";
        let (nginx, haproxy) = (files.text("nginx.conf", &nginx), files.text("haproxy.cfg", haproxy));
        let (asyncio, node) = (files.text("echo.py", ASYNCIO), files.text("http.js", NODE));
        let mut all = vec![
            (11211, "memcached -u root -p 11211 -t 2".to_owned(), &b"version\r\n"[..], "VERSION"),
            (6379, format!("redis-server --protected-mode no --save '' --dir {here}"), b"PING\r\n", "+PONG"),
            (8080, format!("nginx -p {here} -e {here}/log -c {nginx}"), GET, "HTTP/1.1 200"),
            (8081, format!("haproxy -W -db -q -f {haproxy}"), GET, "HTTP/1.1 200"),
            (7200, format!("python3 {asyncio}"), b"hello\n", "hello"),
            (7300, format!("node {node}"), GET, "HTTP/1.1 200"),
        ];
        all.retain(|(_, command, ..)| has(command.split(' ').next().expect("a program")));
        Self { files, all }
    }

    /// Returns a shell script that runs them.
    fn script(&self) -> String {
        let commands: Vec<&str> = self.all.iter().map(|(_, command, ..)| command.as_str()).collect();
        let text = format!("{} &\nwait\n", commands.join(" &\n"));
        self.files.text("all.sh", &text)
    }

    /// Waits until each answers on a new connection, and keeps the connections.
    fn await_answers(&self, testbed: &TestBed, running: &mut Running) -> Vec<std::net::TcpStream> {
        let ask = |port: u16, request: &[u8], answer: &str| {
            let mut stream = connect(testbed, port).ok()?;
            stream.write_all(request).ok()?;
            let mut bytes = vec![0; answer.len()];
            stream.read_exact(&mut bytes).ok()?;
            (bytes == answer.as_bytes()).then_some(stream)
        };
        let mut streams = Vec::new();
        for (port, command, request, answer) in &self.all {
            streams.push(await_some(&format!("no answer of {command}"), || {
                assert!(!running.has_ended(), "{}", running.errors_so_far());
                ask(*port, request, answer)
            }));
        }
        streams
    }

    /// Asserts that `--strict` runs them without a line under each mode.
    fn assert_not_reported(&self, testbed: &TestBed, world: World, modes: &[&str], options: &[&str]) {
        let script = self.script();
        for mode in modes {
            let mut running = run(testbed, world, mode, &[&["--strict"], options].concat(), &["sh", &script]);
            // Before the first client, with connections, and after it.
            pause_for_checks();
            let streams = self.await_answers(testbed, &mut running);
            pause_for_checks();
            drop(streams);
            assert!(!running.has_ended(), "{mode}: {}", running.errors_so_far());
            let ended = running.terminate();
            assert_eq!(lines(&ended.errors), [""; 0], "{mode}");
        }
    }
}

#[test]
fn servers_that_the_kernels_modes_reach_are_not_reported() {
    let Some(testbed) = TestBed::new(2) else { return };
    let modes = ["base", "defer50", "napibusy", "fullbusy", "suspend20", "sockbusy50"];
    Servers::installed().assert_not_reported(&testbed, Kernel, &modes, &[]);
}

#[test]
fn servers_that_the_datapath_reaches_are_not_reported() {
    // A queue for each process with sockets: two of nginx, one of each other.
    let Some(testbed) = TestBed::new(8).map(TestBed::with_checksums) else { return };
    let options = ["--nic-queues-per-process", "1"];
    let modes = ["base", "defer50", "napibusy", "suspend20", "threaded", "sockbusy50"];
    Servers::installed().assert_not_reported(&testbed, Datapath, &modes, &options);
}
