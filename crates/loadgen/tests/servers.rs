//! The generator against servers that misbehave, and against the real memcached.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use abey_loadgen::{
    Arrivals, Config, Load, LoadError, Memcached, Options, RequestResponse, RunConfig, Transport, Workload,
};

fn echo(transport: Transport) -> Workload {
    Workload::RequestResponse(RequestResponse { transport, request_bytes: 1, response_bytes: 1 })
}

fn config(target: SocketAddr, workload: Workload, timeout_ms: u64) -> Config {
    let timeout = Duration::from_millis(timeout_ms);
    Config::new(Options { connections: 1, timeout, ..Options::new(target, workload) }).unwrap()
}

fn even(rate: &str, milliseconds: u64) -> RunConfig {
    let run = RunConfig::new(rate.parse().unwrap(), Duration::from_millis(milliseconds)).unwrap();
    run.warmup(Duration::ZERO).unwrap().arrivals(Arrivals::Even)
}

/// Starts a server for one connection, which `serve` handles; it ends with the client.
fn stub(serve: impl FnOnce(TcpStream) + Send + 'static) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (address, std::thread::spawn(move || serve(listener.accept().unwrap().0)))
}

#[test]
fn a_stall_is_in_the_tail_of_all_requests_that_were_due_in_it() {
    const STALL: Duration = Duration::from_millis(100);
    let (address, server) = stub(|mut stream| {
        let mut byte = [0];
        for number in 0.. {
            if stream.read(&mut byte).unwrap_or(0) == 0 {
                return;
            }
            if number == 100 {
                std::thread::sleep(STALL);
            }
            stream.write_all(&byte).unwrap();
        }
    });
    let mut load = Load::connect(&config(address, echo(Transport::Tcp), 5_000)).unwrap();
    let report = load.run(&even("1k", 500), &mut |_| {}).unwrap();
    drop(load);
    server.join().unwrap();
    assert_eq!(report.count + report.unsent, 500, "{report:?}");
    assert!(report.max_us.unwrap() >= 99_900.0, "{report:?}");
    // 100 of 500 requests are due during the stall. Measured from the actual send times, only one would show it; from the
    // intended times, a tenth of all waits at least half of it. A slow machine only adds to that.
    assert!(report.p90_us.unwrap() >= 45_000.0, "{report:?}");
    assert!(report.p95_us.unwrap() >= 70_000.0, "{report:?}");
    assert!(report.queued >= 90, "{report:?}");
}

#[test]
fn a_silent_server_ends_the_run_with_what_is_outstanding() {
    let (address, server) = stub(|mut stream| {
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let mut load = Load::connect(&config(address, echo(Transport::Tcp), 200)).unwrap();
    let started = Instant::now();
    let error = load.run(&even("1k", 600_000), &mut |_| {}).unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(300), "the run went on");
    let LoadError::Silent { outstanding: 1, silent, .. } = error else { panic!("{error}") };
    assert!(silent >= Duration::from_millis(200));
    drop(load);
    server.join().unwrap();
}

#[test]
fn a_server_that_stores_no_keys_ends_the_load() {
    let (address, server) = stub(|mut stream| {
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let error = Load::connect(&config(address, Workload::Memcached(Memcached::default()), 200)).unwrap_err();
    assert!(matches!(error, LoadError::Silent { .. }), "{error}");
    server.join().unwrap();
}

#[test]
fn invalid_replies_are_shown() {
    for (reply, want) in [
        ("HTTP/1.1 400 Bad Request\r\n", "HTTP/1.1 400 Bad Request"),
        ("SERVER_ERROR out of memory storing object\r\n", "refused a request with `SERVER_ERROR out of memory"),
        ("STORED\r\nSTORED\r\nSTORED\r\n", "answers no request"),
    ] {
        let (address, server) = stub(move |mut stream| {
            let mut buffer = [0; 4096];
            let _ = stream.read(&mut buffer);
            let _ = stream.write_all(reply.as_bytes());
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let one_key = Memcached { keys: 1, ..Memcached::default() };
        let error = Load::connect(&config(address, Workload::Memcached(one_key), 5_000)).unwrap_err();
        assert!(error.to_string().contains(want), "{error}");
        server.join().unwrap();
    }
}

#[test]
fn more_bytes_than_requested_are_an_error() {
    let (address, server) = stub(|mut stream| {
        let _ = stream.read(&mut [0]);
        let _ = stream.write_all(b"rrr");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let mut load = Load::connect(&config(address, echo(Transport::Tcp), 5_000)).unwrap();
    let error = load.run(&even("1", 5_000), &mut |_| {}).unwrap_err();
    assert!(matches!(error, LoadError::Unasked { .. }), "{error}");
    drop(load);
    server.join().unwrap();
}

#[test]
fn a_lost_datagram_is_counted_and_the_flow_continues() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        // Drops the fourth of twelve requests.
        for number in 0..12 {
            let (_, peer) = socket.recv_from(&mut [0; 8]).unwrap();
            if number != 3 {
                socket.send_to(b"r", peer).unwrap();
            }
        }
    });
    let mut load = Load::connect(&config(address, echo(Transport::Udp), 5_000)).unwrap();
    let report = load.run(&even("20", 600), &mut |_| {}).unwrap();
    // The flow waits a second for the lost request; requests due meanwhile miss this interval.
    assert_eq!((report.errors, report.count), (1, 3), "{report:?}");
    assert_eq!(report.unsent, 8, "{report:?}");
    // The next eight requests use a new port.
    let report = load.run(&even("20", 400), &mut |_| {}).unwrap();
    assert_eq!((report.errors, report.count + report.unsent), (0, 8), "{report:?}");
    drop(load);
    if report.unsent == 0 {
        server.join().unwrap();
    }
}

#[test]
fn a_udp_port_without_a_server_is_refused() {
    // A socket connected to itself holds the port without being a server.
    let deaf = UdpSocket::bind("127.0.0.1:0").unwrap();
    deaf.connect("127.0.0.1:9").unwrap();
    let address = deaf.local_addr().unwrap();
    let mut load = Load::connect(&config(address, echo(Transport::Udp), 5_000)).unwrap();
    let error = load.run(&even("1k", 5_000), &mut |_| {}).unwrap_err();
    assert!(matches!(error, LoadError::Refused { .. }), "{error}");
}

/// The real memcached, which is killed when dropped.
struct RealMemcached(Child);

impl Drop for RealMemcached {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_real_memcached_is_understood() {
    // A loopback address that only this test uses, since another test could get the port meanwhile.
    let own = "127.0.0.6";
    let address = TcpListener::bind((own, 0)).unwrap().local_addr().unwrap();
    let port = address.port();
    let mut command = Command::new("memcached");
    command.args(["-l", own, "-U", "0", "-t", "1", "-u", "nobody", "-p", &port.to_string()]);
    let Ok(child) = command.stderr(Stdio::null()).spawn() else {
        eprintln!("skipped: memcached is not installed");
        return;
    };
    let _memcached = RealMemcached(child);
    let deadline = Instant::now() + Duration::from_secs(120);
    while TcpStream::connect(address).is_err() {
        assert!(Instant::now() < deadline, "memcached does not listen on {address}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mix =
        Memcached { set_ratio: 0.1, keys: 2_000, key_size: "etc".parse().unwrap(), value_size: "etc".parse().unwrap() };
    let options = Options { depth: 4, ..Options::new(address, Workload::Memcached(mix)) };
    let mut load = Load::connect(&Config::new(options).unwrap()).unwrap();
    for rate in ["2k", "max"] {
        let run = RunConfig::new(rate.parse().unwrap(), Duration::from_millis(200)).unwrap();
        let report = load.run(&run.warmup(Duration::from_millis(20)).unwrap(), &mut |_| {}).unwrap();
        assert!(report.hits > 0 && report.sets > 0, "{report:?}");
        assert_eq!((report.misses, report.hits + report.sets), (0, report.count), "{report:?}");
    }
}
