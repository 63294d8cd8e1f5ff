//! `abey run --world datapath`: servers with more processes than queues, each of which has one connection at a time.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::common::{Running, TestBed, has};
use crate::run_forks::{allow_all, await_datapath};
use crate::xdp::{await_nothing_left, connect, start, testbed};

/// Sends a request on a connection that stays open, and returns the body of the answer.
fn keep_asking(stream: &mut TcpStream) -> std::io::Result<String> {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
    let mut answer = Vec::new();
    let mut one = [0; 1024];
    loop {
        let count = match stream.read(&mut one) {
            // A read with a timeout is not restarted after a signal.
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            other => other?,
        };
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        answer.extend_from_slice(&one[..count]);
        let text = String::from_utf8_lossy(&answer);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length =
                head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
            if length == Some(body.len()) {
                return Ok(body.to_owned());
            }
        }
    }
}

/// Asserts that clients that keep their connections are all answered at the same time.
fn all_are_answered(testbed: &TestBed, run: &Running, clients: usize, body: &str) {
    for _ in 0..2 {
        let mut streams: Vec<_> = (0..clients).map(|_| connect(testbed, 80).expect("connected")).collect();
        for round in 0..3 {
            for (client, stream) in streams.iter_mut().enumerate() {
                let answer = keep_asking(stream);
                let answer =
                    answer.unwrap_or_else(|error| panic!("{round} {client}: {error}\n{}", run.errors_so_far()));
                assert_eq!(answer, body);
            }
        }
    }
}

#[test]
fn apache_prefork_answers_more_clients_than_there_are_queues() {
    if !has("apache2") {
        return;
    }
    let Some(testbed) = testbed(1) else { return };
    let place = tempfile::tempdir().expect("directory");
    allow_all(place.path());
    let here = place.path().display();
    std::fs::write(place.path().join("index.html"), "from apache\n").expect("written");
    let modules = "/usr/lib/apache2/modules";
    let text = format!(
        "ServerRoot {here}\nServerName a\nPidFile {here}/pid\nErrorLog {here}/log\nListen 80\nUser www-data\n\
         LoadModule mpm_prefork_module {modules}/mod_mpm_prefork.so\nLoadModule dir_module {modules}/mod_dir.so\n\
         LoadModule authz_core_module {modules}/mod_authz_core.so\n\
         StartServers 10\nMinSpareServers 10\nMaxRequestWorkers 20\nKeepAlive On\nKeepAliveTimeout 60\n\
         DocumentRoot {here}\nDirectoryIndex index.html\n<Directory {here}>\nRequire all granted\n</Directory>\n"
    );
    let configuration = place.path().join("conf");
    std::fs::write(&configuration, text).expect("written");
    let configuration = configuration.to_str().expect("UTF-8");
    let mut run = start(&testbed, "base", &[], &["setsid", "apache2", "-D", "FOREGROUND", "-f", configuration]);
    await_datapath(&testbed, &mut run);
    all_are_answered(&testbed, &run, 8, "from apache\n");
}

/// Answers one connection at a time in each process, until the client ends it.
const PREFORK: &str = "
import os, socket
server = socket.create_server(('', 80), backlog=50)
for _ in range(int(os.environ.get('WORKERS', '10'))):
    if os.fork() == 0:
        while True:
            connection, _ = server.accept()
            while connection.recv(1000):
                connection.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 6\\r\\n\\r\\nanswer')
            connection.close()
os.wait()
";

/// Also while a process accepts from the kernel's listener, and another client has its handshake with its datapath.
#[test]
fn processes_with_one_connection_each_do_not_starve_each_others_clients() {
    if !has("python3") {
        return;
    }
    for queues in [1, 2] {
        let Some(testbed) = testbed(queues) else { return };
        let mut run = start(&testbed, "base", &[], &["python3", "-c", PREFORK]);
        await_datapath(&testbed, &mut run);
        all_are_answered(&testbed, &run, 8, "answer");
    }
}

/// A kernel without SYN cookies takes no established connection, as those before Linux 6.9.
#[test]
fn processes_do_not_starve_clients_where_the_kernel_takes_no_offers() {
    if !has("python3") {
        return;
    }
    let Some(testbed) = testbed(1) else { return };
    let without_cookies = "echo 0 > /proc/sys/net/ipv4/tcp_syncookies && exec python3 -c \"$0\"";
    let mut run = start(&testbed, "base", &[], &["sh", "-c", without_cookies, PREFORK]);
    await_datapath(&testbed, &mut run);
    all_are_answered(&testbed, &run, 8, "answer");
}

/// The processes are as many as the queues, since `--strict` ends a program of which a process has none. A connection that goes
/// from one process to the other through the kernel's listener does not end it.
#[test]
fn connections_that_another_process_takes_do_not_end_a_strict_run() {
    if !has("python3") {
        return;
    }
    let Some(testbed) = testbed(2) else { return };
    let program = ["env", "WORKERS=2", "python3", "-c", PREFORK];
    let mut run = start(&testbed, "base", &["--strict"], &program);
    await_datapath(&testbed, &mut run);
    for _ in 0..10 {
        all_are_answered(&testbed, &run, 2, "answer");
    }
    assert!(!run.has_ended(), "{}", run.errors_so_far());
}

/// Waits for the listener, and accepts in programs that it starts without libabey.so, one for each connection (Dovecot).
const MASTER: &str = "
import os, select, socket, subprocess, sys
answer = r'''
import socket, sys
connection, _ = socket.socket(fileno=int(sys.argv[1])).accept()
connection.recv(1000)
connection.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 6\\r\\n\\r\\nanswer')
'''
server = socket.create_server(('', 80), backlog=50)
server.set_inheritable(True)
program = [sys.executable, '-c', answer, str(server.fileno())]
def fork():
    child = os.fork()
    if child == 0:
        os.execve(program[0], program, {})
    os.waitpid(child, 0)
start = {
    'fork': fork,
    'vfork': lambda: subprocess.run(program, env={}, close_fds=False),
    'spawn': lambda: os.waitpid(os.posix_spawn(program[0], program, {}), 0),
}[sys.argv[1]]
epoll = select.epoll()
while True:
    epoll.register(server, select.EPOLLIN)
    epoll.poll()
    epoll.unregister(server)
    start()
";

#[test]
fn a_listener_that_is_open_when_its_process_starts_another_is_shared_with_that() {
    if !has("python3") {
        return;
    }
    let Some(testbed) = testbed(1) else { return };
    for way in ["fork", "vfork", "spawn"] {
        let mut run = start(&testbed, "base", &[], &["python3", "-c", MASTER, way]);
        await_datapath(&testbed, &mut run);
        for request in 0..5 {
            let answer = connect(&testbed, 80).and_then(|mut stream| keep_asking(&mut stream));
            let answer = answer.unwrap_or_else(|error| panic!("{way} {request}: {error}\n{}", run.errors_so_far()));
            assert_eq!(answer, "answer");
        }
        run.terminate();
        await_nothing_left(&testbed, way);
    }
}

/// Each process answers three connections and ends, and another one takes its place (Apache's MaxConnectionsPerChild).
const RECYCLED: &str = "
import os, socket
server = socket.create_server(('', 80), backlog=50)
def work():
    for _ in range(3):
        connection, _ = server.accept()
        connection.recv(1000)
        connection.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 6\\r\\n\\r\\nanswer')
        connection.close()
    os._exit(0)
def begin():
    if os.fork() == 0:
        work()
for _ in range(4):
    begin()
while True:
    os.wait()
    begin()
";

/// What a process has not accepted when it ends, another one answers.
#[test]
fn processes_that_end_lose_no_connection() {
    if !has("python3") {
        return;
    }
    let Some(testbed) = testbed(1) else { return };
    let mut run = start(&testbed, "base", &[], &["python3", "-c", RECYCLED]);
    await_datapath(&testbed, &mut run);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for request in 0..12 {
                    let answer = connect(&testbed, 80).and_then(|mut stream| keep_asking(&mut stream));
                    let answer = answer.unwrap_or_else(|error| panic!("{request}: {error}\n{}", run.errors_so_far()));
                    assert_eq!(answer, "answer");
                }
            });
        }
    });
}

#[test]
fn gunicorn_with_more_workers_than_queues_answers_everybody() {
    if !has("gunicorn") {
        return;
    }
    let Some(testbed) = testbed(1) else { return };
    let place = tempfile::tempdir().expect("directory");
    allow_all(place.path());
    let app = "def app(environ, start):\n    start('200 OK', [('Content-Length', '6')])\n    return [b'answer']\n";
    std::fs::write(place.path().join("page.py"), app).expect("written");
    let here = place.path().to_str().expect("UTF-8");
    let program = ["gunicorn", "-w", "4", "-b", "0.0.0.0:80", "--chdir", here, "page:app"];
    let mut run = start(&testbed, "base", &[], &program);
    await_datapath(&testbed, &mut run);
    // A client that sends nothing occupies a worker.
    let _idle: Vec<_> = (0..2).map(|_| connect(&testbed, 80).expect("connected")).collect();
    for _ in 0..40 {
        let mut stream = connect(&testbed, 80).expect("connected");
        assert_eq!(
            keep_asking(&mut stream).unwrap_or_else(|error| panic!("{error}\n{}", run.errors_so_far())),
            "answer"
        );
    }
}
