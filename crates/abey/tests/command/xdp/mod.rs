//! A program that runs over AF_XDP on the test network's device, and clients on kernel sockets at the other end.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::common::{HANG_LIMIT, Running, TestBed, at, await_that, has};

/// Returns the test network with `queues` queues, whose client end computes checksums, or prints why there is none.
pub(crate) fn testbed(queues: u32) -> Option<TestBed> {
    if !has("ip") {
        return None;
    }
    Some(TestBed::new(queues)?.with_checksums())
}

/// Starts `abey run --world datapath` with `program` over the device of the test network.
pub(crate) fn start(testbed: &TestBed, mode: &str, options: &[&str], program: &[&str]) -> Running {
    let nic = testbed.nic();
    let all = [&["--world", "datapath", "--nic", &nic, "--mode", mode], options].concat();
    Running::start(testbed.run(&all, program))
}

/// Connects from the client's namespace to the server.
pub(crate) fn connect(testbed: &TestBed, port: u16) -> io::Result<TcpStream> {
    let address: SocketAddr = at(port);
    let stream = testbed.client.run(|| TcpStream::connect_timeout(&address, HANG_LIMIT)).expect("entered")?;
    stream.set_read_timeout(Some(HANG_LIMIT))?;
    Ok(stream)
}

/// Returns the server's answer to `request` on a new connection.
pub(crate) fn ask(testbed: &TestBed, port: u16, request: &str) -> io::Result<String> {
    let mut stream = connect(testbed, port)?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Returns the body of the server's page.
pub(crate) fn get(testbed: &TestBed, port: u16) -> io::Result<String> {
    let answer = ask(testbed, port, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    let body = answer.strip_prefix("HTTP/1.1 200").and_then(|answer| answer.split_once("\r\n\r\n"));
    body.map(|(_, body)| body.to_owned()).ok_or_else(|| io::Error::other(answer.clone()))
}

/// Returns the number of connections that the server's kernel has accepted.
pub(crate) fn accepted_by_kernel(testbed: &TestBed) -> u64 {
    testbed.kernel_tcp("PassiveOpens")
}

/// Returns whether the device has an XDP program.
pub(crate) fn has_program(testbed: &TestBed) -> bool {
    let mut ip = testbed.command("ip");
    let output = ip.args(["-d", "link", "show", &testbed.device.name]).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).contains("prog/xdp")
}

/// Waits until there is no XDP program and no socket of a broker or of a NIC.
pub(crate) fn await_nothing_left(testbed: &TestBed, what: &str) {
    let sockets = || std::fs::read_to_string("/proc/thread-self/net/unix").expect("the kernel's list");
    await_that(&format!("{what}: something is left"), || {
        !has_program(testbed) && !testbed.server.run(sockets).expect("entered").contains("abey-")
    });
}

/// Asserts that a new run can claim all queues of the device.
pub(crate) fn assert_queues_are_free(testbed: &TestBed) {
    start(testbed, "base", &["--strict"], &["python3", "-c", OPEN_AGAIN]).end().assert_status(0);
}

/// Uses the datapath and with it all queues of the device.
const OPEN_AGAIN: &str = "
import socket
s = socket.create_server(('', 9))
s.setblocking(False)
try: s.accept()
except BlockingIOError: pass
";

/// Pause between two attempts to read from a connection that is expected to be reset.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(20);
