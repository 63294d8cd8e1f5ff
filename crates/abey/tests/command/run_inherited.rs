//! `abey run --world datapath`: children that use a UDP socket, a listener or an epoll instance of their parent, whose process
//! has used it before them. Then the kernel's socket underneath serves both.

use std::io::{Read, Write};
use std::net::{Shutdown, UdpSocket};

use crate::common::{HANG_LIMIT, Running, TestBed, at, await_that, has};
use crate::run_forks::await_datapath;
use crate::xdp::{connect, start, testbed};

/// Serves on port 90 in the way of its argument. The first request is answered by the parent, the next ones by children, and the
/// last one by the parent again.
const SHARES: &str = "
import os, select, signal, socket, subprocess, sys, threading, time

def udp():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((sys.argv[2], 90))
    return s

def answer(s, who):
    data, peer = s.recvfrom(100)
    s.sendto(who + b' ' + data, peer)

def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid

def end(pid):
    assert os.waitpid(pid, 0)[1] == 0

def datagrams():
    s = udp()
    answer(s, b'parent')
    for _ in range(2):
        # The datagram that waits is the child's.
        select.select([s], [], [])
        end(child(lambda: answer(s, b'child')))
    answer(s, b'parent')

def datagrams_while_parent_waits():
    s = udp()
    answer(s, b'parent')
    thread = threading.Thread(target=lambda: answer(s, b'thread'))
    thread.start()
    time.sleep(0.2)
    end(child(lambda: s.sendto(b'hello', socket.MSG_DONTWAIT, (sys.argv[3], int(sys.argv[4])))))
    thread.join()
    answer(s, b'parent')

def datagrams_over_exec():
    s = udp()
    answer(s, b'parent')
    while True:
        select.select([s], [], [])
        subprocess.run(['python3', '-c', '''
import socket
s = socket.socket(fileno=0)
data, peer = s.recvfrom(100)
s.sendto(b'child ' + data, peer)
'''], stdin=s.fileno(), check=True)

def serve(s, who):
    connection, _ = s.accept()
    data = b''
    while part := connection.recv(100):
        data += part
    connection.sendall(who + b' ' + data)
    connection.close()

def wait(s, how):
    if how == 'poll':
        poll = select.poll()
        poll.register(s, select.POLLIN)
        assert poll.poll()
    elif how == 'select':
        assert select.select([s], [], [])[0]
    elif how == 'epoll':
        with select.epoll() as epoll:
            epoll.register(s, select.EPOLLIN)
            assert epoll.poll()[0][0] == s.fileno()

def listener(how):
    s = socket.create_server(('', 90))
    if how == 'nonblocking':
        s.setblocking(False)
    select.select([s], [], [])
    serve(s, b'parent')
    def one():
        wait(s, how)
        if how == 'nonblocking':
            while True:
                try:
                    return serve(s, b'child')
                except BlockingIOError:
                    time.sleep(0.01)
        serve(s, b'child')
    for _ in range(3):
        select.select([s], [], [])
        end(child(one))
    select.select([s], [], [])
    serve(s, b'parent')

def listener_over_exec():
    s = socket.create_server(('', 90))
    select.select([s], [], [])
    serve(s, b'parent')
    while True:
        select.select([s], [], [])
        subprocess.run(['python3', '-c', '''
import socket
s = socket.socket(fileno=0)
connection, _ = s.accept()
connection.sendall(b'child ' + connection.recv(100))
'''], stdin=s.fileno(), check=True)

def epoll_instance():
    s = socket.create_server(('', 90))
    epoll = select.epoll()
    epoll.register(s, select.EPOLLIN)
    connections = {}
    def turn(who):
        (fd, _), = epoll.poll(-1, 1)
        if fd == s.fileno():
            connection, _ = s.accept()
            connections[connection.fileno()] = connection
            epoll.register(connection, select.EPOLLIN)
            return turn(who)
        data = connections[fd].recv(100)
        if not data:
            epoll.unregister(fd)
            del connections[fd]
            return turn(who)
        connections[fd].sendall(who + b' ' + data)
    turn(b'parent')
    end(child(lambda: turn(b'child')))
    turn(b'parent')
    end(child(lambda: turn(b'child')))
    turn(b'parent')

way, _, how = sys.argv[1].partition(':')
globals()[way](*([how] if how else []))
print('done')
";

fn share(testbed: &TestBed, way: &str, more: &[&str]) -> Running {
    let program = [&["python3", "-u", "-c", SHARES, way], more].concat();
    // A program that a child executes has no queue for sockets of its own.
    let options: &[&str] = if way.ends_with("exec") { &[] } else { &["--strict"] };
    let mut run = start(testbed, "base", options, &program);
    // A UDP socket that is bound, or a wait for a listener, starts the datapath.
    await_datapath(testbed, &mut run);
    run
}

/// Asserts that the server answers datagrams in this order.
fn datagrams_are_answered(way: &str, more: &[&str], by: &[&str]) {
    if !has("python3") {
        return;
    }
    let Some(testbed) = testbed(1) else { return };
    let client = testbed.client.run(|| UdpSocket::bind("0.0.0.0:0").expect("bound")).expect("entered");
    client.connect(at(90)).expect("connected");
    client.set_read_timeout(Some(HANG_LIMIT)).expect("set");
    let own = client.local_addr().expect("bound");
    let (ip, port) = (own.ip().to_string(), own.port().to_string());
    let all: Vec<_> = more.iter().copied().chain([&*ip, &*port]).collect();
    let mut run = share(&testbed, way, &all);
    let mut buffer = [0; 100];
    for (number, by) in by.iter().enumerate() {
        if *by == "hello" {
            let count = client.recv(&mut buffer).unwrap_or_else(|error| panic!("{error}: {}", run.errors_so_far()));
            assert_eq!(buffer[..count], *b"hello");
            continue;
        }
        client.send(format!("{number}").as_bytes()).expect("sent");
        let count = client
            .recv(&mut buffer)
            .unwrap_or_else(|error| panic!("{way}, datagram {number}: {error}: {}", run.errors_so_far()));
        assert_eq!(String::from_utf8_lossy(&buffer[..count]), format!("{by} {number}"));
    }
    if !way.ends_with("exec") {
        await_that("the program does not end", || run.has_ended());
        assert_eq!(run.out_so_far(), "done\n", "{}", run.errors_so_far());
    }
}

#[test]
fn a_child_receives_and_sends_on_a_udp_socket_of_its_parent() {
    for address in ["198.18.10.1", "0.0.0.0"] {
        datagrams_are_answered("datagrams", &[address], &["parent", "child", "child", "parent"]);
    }
}

#[test]
fn a_parent_that_waits_for_datagrams_goes_on_when_a_child_uses_the_socket() {
    for address in ["198.18.10.1", "0.0.0.0"] {
        datagrams_are_answered("datagrams_while_parent_waits", &[address], &["parent", "hello", "thread", "parent"]);
    }
}

#[test]
fn an_executed_program_receives_on_a_udp_socket_at_its_standard_input() {
    datagrams_are_answered("datagrams_over_exec", &["198.18.10.1"], &["parent", "child", "child"]);
}

fn ask(testbed: &TestBed, request: &str) -> std::io::Result<String> {
    let mut stream = connect(testbed, 90)?;
    stream.write_all(request.as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn a_child_accepts_on_a_listener_that_its_parent_waits_for() {
    if !has("python3") {
        return;
    }
    for how in ["block", "poll", "select", "epoll", "nonblocking"] {
        let Some(testbed) = testbed(1) else { return };
        let mut run = share(&testbed, &format!("listener:{how}"), &[]);
        for (number, by) in ["parent", "child", "child", "child", "parent"].into_iter().enumerate() {
            let answer = ask(&testbed, &format!("{number}"));
            let answer = answer.unwrap_or_else(|error| panic!("{how}, {number}: {error}: {}", run.errors_so_far()));
            assert_eq!(answer, format!("{by} {number}"), "{how}: {}", run.errors_so_far());
        }
        await_that("the program does not end", || run.has_ended());
        assert_eq!(run.out_so_far(), "done\n", "{}", run.errors_so_far());
    }
}

#[test]
fn an_executed_program_accepts_on_a_listener_at_its_standard_input() {
    if !has("python3") {
        return;
    }
    let Some(testbed) = testbed(1) else { return };
    let run = share(&testbed, "listener_over_exec", &[]);
    assert_eq!(ask(&testbed, "0").expect("answered"), "parent 0");
    // A connection that waits in the datapath cannot follow, and is reset. The next ones are the kernel's.
    await_that("the program does not accept", || ask(&testbed, "1").is_ok_and(|answer| answer == "child 1"));
    for _ in 0..3 {
        assert_eq!(ask(&testbed, "1").expect("answered"), "child 1", "{}", run.errors_so_far());
    }
}

#[test]
fn a_child_waits_on_an_epoll_instance_of_its_parent() {
    if !has("python3") {
        return;
    }
    let Some(testbed) = testbed(1) else { return };
    let mut run = share(&testbed, "epoll_instance", &[]);
    let mut stream = connect(&testbed, 90).expect("connected");
    for (number, by) in ["parent", "child", "parent", "child", "parent"].into_iter().enumerate() {
        let expected = format!("{by} {number}");
        stream.write_all(format!("{number}").as_bytes()).expect("written");
        let mut answer = vec![0; expected.len()];
        stream.read_exact(&mut answer).unwrap_or_else(|error| panic!("{number}: {error}: {}", run.errors_so_far()));
        assert_eq!(String::from_utf8_lossy(&answer), expected, "{}", run.errors_so_far());
    }
    await_that("the program does not end", || run.has_ended());
    assert_eq!(run.out_so_far(), "done\n", "{}", run.errors_so_far());
}

/// A child for each peer, with a connected socket of the port; the parent makes itself a new one, as socat's UDP-LISTEN does.
const FOR_EACH_PEER: &str = "
import os, socket, time
children = 0
while True:
    port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port.bind(('', 90))
    print('bound')
    _, peer = port.recvfrom(100, socket.MSG_PEEK)
    children += 1
    if os.fork() == 0:
        port.connect(peer)
        while True:
            port.send(b'of the child: ' + port.recv(100))
    while sum(':005A' in line and ' 01 ' in line for line in open('/proc/net/udp')) < children:
        time.sleep(0.01)
    port.close()
";

#[test]
fn a_child_keeps_its_peer_when_the_parent_binds_the_udp_port_again() {
    if !has("python3") {
        return;
    }
    let Some(testbed) = testbed(2) else { return };
    let mut server = start(&testbed, "base", &[], &["python3", "-u", "-c", FOR_EACH_PEER]);
    await_datapath(&testbed, &mut server);
    for before in 0..2 {
        await_that("the port is not bound", || server.out_so_far().matches("bound").count() == before + 1);
        let peer = testbed.client.run(|| UdpSocket::bind("0.0.0.0:0")).expect("entered").expect("bound");
        peer.set_read_timeout(Some(HANG_LIMIT)).expect("a timeout");
        peer.connect(at(90)).expect("connected");
        for number in 0..5 {
            peer.send(number.to_string().as_bytes()).expect("sent");
            let mut buffer = [0; 100];
            let count = peer.recv(&mut buffer).unwrap_or_else(|error| panic!("{error}: {}", server.errors_so_far()));
            assert_eq!(String::from_utf8_lossy(&buffer[..count]), format!("of the child: {number}"));
        }
    }
}
