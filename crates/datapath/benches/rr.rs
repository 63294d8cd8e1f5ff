//! Round trips per second with one byte in each direction, over the shared-memory NIC, and in the same run over the kernel's
//! TCP on a veth pair between two network namespaces (as root).
//!
//! The two ends are threads on different CPUs, both in the same mode. The kernel's part uses blocking sockets with
//! TCP_NODELAY. Its namespaces belong to threads, and end with them.
//!
//! `cargo bench -p abey-datapath --bench rr [-- MODE... | kernel]`

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use abey_datapath::{Epoll, Event, Interest, Runtime, Shutdown};
use abey_delivery::Mode;
use abey_nic::MemoryShape;
use nix::sched::{CloneFlags, unshare};

const SPAN: Duration = Duration::from_millis(800);
const REPETITIONS: usize = 5;
const KERNEL: &str = "kernel";
/// A limit that only a hang reaches.
const HANG_LIMIT: Duration = Duration::from_secs(10);

/// Makes round trips for the length of the span. Returns their number per second.
fn count(mut trip: impl FnMut()) -> f64 {
    let (begun, mut trips) = (Instant::now(), 0);
    while begun.elapsed() < SPAN {
        trip();
        trips += 1;
    }
    f64::from(trips) / begun.elapsed().as_secs_f64()
}

/// Reads one byte, and waits in an epoll. Returns `false` at the end of the stream.
fn take(epoll: &Epoll, stream: &abey_datapath::TcpStream, events: &mut Vec<Event>) -> bool {
    loop {
        match stream.read(&mut [0]) {
            Ok(count) => return count > 0,
            Err(error) if error.is_would_block() => {
                epoll.wait(events, 1, Some(HANG_LIMIT)).expect("a wait");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn epoll_of(runtime: &Runtime, stream: &abey_datapath::TcpStream) -> Epoll {
    let epoll = runtime.epoll();
    epoll.add(stream, 0, Interest::IN).expect("new");
    epoll
}

fn datapath(mode: Mode) -> f64 {
    let (client, server) = common::hosts(MemoryShape::default());
    let (ours, theirs) = common::connect(&client, &server, 1);
    client.set_mode(mode).expect("a mode");
    server.set_mode(mode).expect("a mode");
    std::thread::scope(|scope| {
        let serving = common::spawn_on(scope, common::SERVER_CPU, || {
            let (epoll, mut events) = (epoll_of(&server, &theirs[0]), Vec::new());
            while take(&epoll, &theirs[0], &mut events) {
                theirs[0].write_all(&[7]).expect("written");
            }
        });
        let asking = common::spawn_on(scope, common::CLIENT_CPU, || {
            let (epoll, mut events) = (epoll_of(&client, &ours[0]), Vec::new());
            let rate = count(|| {
                ours[0].write_all(&[7]).expect("written");
                assert!(take(&epoll, &ours[0], &mut events), "an answer");
            });
            ours[0].shutdown(Shutdown::Write).expect("open");
            rate
        });
        serving.join().expect("served");
        asking.join().expect("answered")
    })
}

/// Runs `ip` in the calling thread's namespace.
fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split_whitespace()).output();
    let output = output.map_err(|error| format!("cannot run ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// The messages between the two threads of the kernel's part before they are connected.
type Outbox = Sender<Result<i32, String>>;
type Inbox = Receiver<Result<i32, String>>;

fn receive(inbox: &Inbox) -> Result<i32, String> {
    inbox.recv_timeout(HANG_LIMIT).map_err(|_| "the other end has given up".to_owned())?
}

/// Moves the calling thread into a new network namespace.
fn isolate() -> Result<(), String> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(|error| format!("no network namespace: {error}"))
}

/// Runs the server's end: names the thread into whose namespace the device must be moved, configures it, and answers.
fn answer(outbox: &Outbox, inbox: &Inbox) -> Result<(), String> {
    isolate()?;
    let _ = outbox.send(Ok(rustix::thread::gettid().as_raw_nonzero().get()));
    receive(inbox)?;
    ip("addr add 10.9.0.2/24 dev there")?;
    ip("link set there up")?;
    let listener = TcpListener::bind("10.9.0.2:7").map_err(|error| error.to_string())?;
    let _ = outbox.send(Ok(0));
    let (mut stream, _) = listener.accept().map_err(|error| error.to_string())?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    while stream.read(&mut [0]).is_ok_and(|count| count > 0) {
        stream.write_all(&[7]).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Runs the client's end: creates the devices, and sends requests.
fn ask(outbox: &Outbox, inbox: &Inbox) -> Result<f64, String> {
    isolate()?;
    let thread = receive(inbox)?;
    ip(&format!("link add here type veth peer name there netns {thread}"))?;
    ip("addr add 10.9.0.1/24 dev here")?;
    ip("link set here up")?;
    let _ = outbox.send(Ok(0));
    receive(inbox)?;
    let mut stream = TcpStream::connect("10.9.0.2:7").map_err(|error| error.to_string())?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    Ok(count(|| {
        stream.write_all(&[7]).expect("written");
        stream.read_exact(&mut [0]).expect("an answer");
    }))
}

/// Measures the kernel's TCP. Returns round trips per second, or the reason why there are none.
fn kernel() -> Result<f64, String> {
    let ((to_client, by_client), (to_server, by_server)) = (channel(), channel());
    std::thread::scope(|scope| {
        let serving = common::spawn_on(scope, common::SERVER_CPU, move || {
            let result = answer(&to_client, &by_server);
            if let Err(reason) = &result {
                let _ = to_client.send(Err(reason.clone()));
            }
            result
        });
        let asking = common::spawn_on(scope, common::CLIENT_CPU, move || {
            let result = ask(&to_server, &by_client);
            if let Err(reason) = &result {
                let _ = to_server.send(Err(reason.clone()));
            }
            result
        });
        let rate = asking.join().expect("the client's thread");
        serving.join().expect("the server's thread")?;
        rate
    })
}

fn main() {
    let chosen = common::chosen();
    let names = Mode::EXAMPLES.into_iter().chain([KERNEL]);
    let names: Vec<_> = names.filter(|name| chosen.is_empty() || chosen.iter().any(|chosen| chosen == name)).collect();
    let (mut rates, mut skipped) = (vec![Vec::new(); names.len()], None);
    // Interleaved, so that other load affects all alike.
    for _ in 0..REPETITIONS {
        for (rates, name) in rates.iter_mut().zip(&names) {
            match if *name == KERNEL { kernel() } else { Ok(datapath(common::mode(name))) } {
                Ok(rate) => rates.push(rate),
                Err(reason) => skipped = Some(reason),
            }
        }
    }
    println!("one-byte round trips a second, medians of {REPETITIONS} interleaved runs");
    for (name, rates) in names.iter().zip(rates) {
        let world = if *name == KERNEL { "TCP over veth" } else { "shared-memory NIC" };
        match rates.is_empty() {
            true => println!("{name:<16} {world:<18} skipped: {}", skipped.as_deref().unwrap_or("no run")),
            false => println!("{name:<16} {world:<18} {:>9.0}", common::median(rates)),
        }
    }
}
