//! A program over AF_XDP on the test network's device, and clients of the kernel's at the other end.

#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::common::{Bed, DEADLINE, Running, at, await_that, has};

/// The test network with this many queues, whose far end computes checksums; `None` with a printed reason.
pub(crate) fn bed(queues: u32) -> Option<Bed> {
    if !has("ip") {
        return None;
    }
    Some(Bed::new(queues)?.with_checksums())
}

/// `abey run --world datapath` of a program over the bed's device.
pub(crate) fn start(bed: &Bed, mode: &str, options: &[&str], program: &[&str]) -> Running {
    let nic = bed.nic();
    let all = [&["--world", "datapath", "--nic", &nic, "--mode", mode], options].concat();
    Running::start(bed.run(&all, program))
}

/// A client's connection to the server.
pub(crate) fn connect(bed: &Bed, port: u16) -> io::Result<TcpStream> {
    let address: SocketAddr = at(port);
    let stream = bed.client.run(|| TcpStream::connect_timeout(&address, DEADLINE)).expect("entered")?;
    stream.set_read_timeout(Some(DEADLINE))?;
    Ok(stream)
}

/// What the server answers, on a connection of its own.
pub(crate) fn ask(bed: &Bed, port: u16, request: &str) -> io::Result<String> {
    let mut stream = connect(bed, port)?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The body of a page.
pub(crate) fn get(bed: &Bed, port: u16) -> io::Result<String> {
    let answer = ask(bed, port, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    let body = answer.strip_prefix("HTTP/1.1 200").and_then(|answer| answer.split_once("\r\n\r\n"));
    body.map(|(_, body)| body.to_owned()).ok_or_else(|| io::Error::other(answer.clone()))
}

/// How many connections the kernel of the server has accepted.
pub(crate) fn accepted_by_kernel(bed: &Bed) -> u64 {
    bed.kernel_tcp("PassiveOpens")
}

/// Whether the device has an XDP program.
pub(crate) fn has_program(bed: &Bed) -> bool {
    let mut ip = bed.command("ip");
    let output = ip.args(["-d", "link", "show", &bed.device.name]).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).contains("prog/xdp")
}

/// Waits until nothing is left: no XDP program, no socket of a broker or of a NIC.
pub(crate) fn await_nothing_left(bed: &Bed, what: &str) {
    let sockets = || std::fs::read_to_string("/proc/thread-self/net/unix").expect("the kernel's list");
    await_that(&format!("{what}: something is left"), || {
        !has_program(bed) && !bed.server.run(sockets).expect("entered").contains("abey-")
    });
}

/// All of the device's queues can be had.
pub(crate) fn assert_queues_are_free(bed: &Bed) {
    start(bed, "base", &["--strict"], &["python3", "-c", OPEN_AGAIN]).end().assert_status(0);
}

/// Uses the datapath, and so all of the device's queues.
const OPEN_AGAIN: &str = "
import socket
s = socket.create_server(('', 9))
s.setblocking(False)
try: s.accept()
except BlockingIOError: pass
";

/// A short time in which a program that does nothing would be seen to do nothing.
pub(crate) const MOMENT: Duration = Duration::from_millis(20);
