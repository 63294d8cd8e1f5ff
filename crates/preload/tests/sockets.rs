//! TCP sockets of the datapath answer in each of their states as those of the kernel do, which are asked first.

mod common;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use abey_testbed::namespace::{HANG_LIMIT, in_namespace, inside, ip, until};
use abey_testbed::network::{checked_veth, has_program};
use common::{has, preloaded};

/// A program that is killed when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sockets.py");

fn datapath(mode: &str) -> String {
    format!(r#"{{"nic":"af_xdp:near0","mode":"{mode}","addresses":["10.8.0.1/24","fd08::1/64"]}}"#)
}

/// Runs the script in the namespace of the calling thread. Returns its output.
fn ask(mut python: Command, peer: &Path, ports: u16, what: &str) -> String {
    python.args([SCRIPT, "ask"]).arg(peer).arg(ports.to_string()).arg(what);
    let answers = python.stdin(Stdio::null()).output().expect("python starts");
    let (text, errors) = (String::from_utf8_lossy(&answers.stdout), String::from_utf8_lossy(&answers.stderr));
    // What only the kernel has is said.
    let is_said = |line: &str| {
        line.starts_with("libabey.so: ")
            && (line.ends_with("continue in the kernel") || line.ends_with("further ones are not reported"))
    };
    assert!(answers.status.success() && errors.lines().all(is_said), "{}\n{text}\n{errors}", answers.status);
    text.into_owned()
}

/// Starts a peer in the namespace `far`. Returns it with the socket that takes its commands.
fn peer(far: &File, directory: &Path) -> (Running, std::path::PathBuf) {
    let path = directory.join("peer");
    let started =
        inside(far, || Command::new("python3").args([SCRIPT, "peer"]).arg(&path).spawn().expect("python starts"));
    let running = Running(started);
    until("the peer is there", || path.exists());
    (running, path)
}

#[test]
fn every_state_is_as_in_the_kernel() {
    compare("states", &["base", "suspend20"]);
}

#[test]
fn every_call_is_as_in_the_kernel() {
    compare("calls", &["base"]);
}

/// Runs the scenarios of one kind over the kernel and in some modes over the datapath.
fn compare(what: &str, modes: &[&str]) {
    if !has("python3") || !has("ethtool") {
        return;
    }
    in_namespace(|| {
        let far = checked_veth(2);
        // A missing neighbour is reported soon. A silent one has a MAC address that no device has.
        ip("neigh add 10.8.0.77 lladdr 02:00:00:00:08:77 dev near0 nud permanent");
        for (setting, value) in [("mcast_solicit", "1"), ("retrans_time_ms", "100")] {
            std::fs::write(format!("/proc/sys/net/ipv4/neigh/near0/{setting}"), value).expect("a setting");
        }
        let directory = tempfile::tempdir().expect("a directory");
        let (_peer, path) = peer(&far, directory.path());
        let mut ports = 20_000;
        let kernels = ask(Command::new("python3"), &path, ports, what);
        assert!(kernels.lines().count() > 100, "{kernels}");
        for mode in modes {
            ports += 1000;
            let python = preloaded("python3", &[("ABEY_DATAPATH", &datapath(mode)), ("ABEY_STRICT", "1")]);
            let datapath_answers = ask(python, &path, ports, what);
            let pairs = kernels.lines().zip(datapath_answers.lines());
            let differ: Vec<_> = pairs.filter(|(kernels, answer)| kernels != answer).collect();
            assert!(differ.is_empty(), "in {mode} these lines differ (the kernel's first): {differ:#?}");
            assert_eq!(datapath_answers.lines().count(), kernels.lines().count());
        }
    });
}

/// Starts a wildcard server over the datapath, in the namespace of the calling thread. Returns once it listens.
fn wildcard(how: &str, port: u16) -> (Running, BufReader<std::process::ChildStdout>) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/wildcard.py");
    let mut python = preloaded("python3", &[("ABEY_DATAPATH", &datapath("base")), ("ABEY_STRICT", "1")]);
    python.args([script, how, &port.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut server = Running(python.spawn().expect("python starts"));
    let mut says = BufReader::new(server.0.stdout.take().expect("piped"));
    let mut line = String::new();
    says.read_line(&mut line).expect("text");
    assert_eq!(line, "listens\n");
    (server, says)
}

fn connect(to: IpAddr, port: u16) -> std::io::Result<TcpStream> {
    let client = TcpStream::connect_timeout(&SocketAddr::new(to, port), HANG_LIMIT)?;
    client.set_read_timeout(Some(HANG_LIMIT))?;
    Ok(client)
}

/// Connects to a server, and returns its greeting.
fn greeting(to: &str, port: u16) -> String {
    let mut client = connect(to.parse().expect("an address"), port).expect("connected");
    let own = client.local_addr().expect("bound").ip().to_string();
    let mut answers = vec![0; own.len()];
    client.read_exact(&mut answers).expect("greeted");
    assert_eq!(String::from_utf8_lossy(&answers), own);
    own
}

#[test]
fn a_wildcard_listener_is_reached_over_nic_and_loopback() {
    if !has("python3") || !has("ethtool") {
        return;
    }
    in_namespace(|| {
        let far = checked_veth(2);
        for (how, port) in [("epoll", 8001), ("block", 8002)] {
            let (mut server, _says) = wildcard(how, port);
            for _ in 0..3 {
                // A local address is reached over loopback.
                for to in ["127.0.0.1", "::1", "10.8.0.1", "fd08::1"] {
                    greeting(to, port);
                }
                for to in ["10.8.0.1", "fd08::1"] {
                    inside(&far, || greeting(to, port));
                }
            }
            if Command::new("ss").arg("-V").output().is_ok() {
                let shown = Command::new("ss").args(["-ltnp"]).output().expect("ss runs").stdout;
                let shown = String::from_utf8_lossy(&shown).into_owned();
                let line = shown.lines().find(|line| line.contains(&format!("*:{port}"))).unwrap_or_default();
                assert!(line.contains("LISTEN") && line.contains(&format!("pid={}", server.0.id())), "{shown}");
            }
            assert!(has_program());
            // The XDP program ends with the killed process: the kernel answers the peers, and the port is free at once.
            let mut client = inside(&far, || connect([10, 8, 0, 1].into(), port).expect("connected"));
            server.0.kill().expect("killed");
            server.0.wait().expect("waited for");
            until("the program is gone", || !has_program());
            // The greeting is read first, and then the reset.
            let mut answers = String::new();
            let end = client.write_all(b"?").and_then(|()| client.read_to_string(&mut answers));
            let again = client.write_all(b"?").and_then(|()| client.read_to_string(&mut answers));
            let is_reset = |end: &std::io::Result<usize>| {
                end.as_ref()
                    .is_err_and(|error| matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe))
            };
            assert!(is_reset(&end) || is_reset(&again), "{end:?} {again:?}");
            let (_server, _says) = wildcard(how, port);
            inside(&far, || greeting("10.8.0.1", port));
        }
    });
}

#[test]
fn neither_side_of_a_listener_starves() {
    if !has("python3") || !has("ethtool") {
        return;
    }
    in_namespace(|| {
        let far = checked_veth(2);
        let (mut server, mut says) = wildcard("turns", 8003);
        let over_nic = |count| -> Vec<_> {
            inside(&far, || (0..count).map(|_| connect([10, 8, 0, 1].into(), 8003).expect("connected")).collect())
        };
        let _over_nic = over_nic(150);
        let _kernels: Vec<_> =
            (0..3).map(|_| connect("::1".parse().expect("an address"), 8003).expect("connected")).collect();
        server.0.stdin.take().expect("piped").write_all(b"go\n").expect("sent");
        let mut order = String::new();
        says.read_line(&mut order).expect("text");
        let order = order.trim();
        assert_eq!((order.matches('o').count(), order.matches('k').count()), (150, 3), "{order}");
        let first = order.find('k').expect("there are some");
        assert!((1..=64).contains(&first), "{order}");
    });
}

/// A script that connects to each of its arguments, and prints whether the kernel has the connection.
const CONNECTS: &str = r#"
import socket, sys
for to in sys.argv[1:]:
    host, port = to.rsplit(",", 1)
    one = socket.create_connection((host, int(port)))
    own = "%04X" % one.getsockname()[1]
    lines = open("/proc/net/tcp").readlines() + open("/proc/net/tcp6").readlines()
    known = any(line.split()[1].endswith(":" + own) for line in lines)
    print("kernel" if known else "datapath", one.recv(2).decode())
"#;

#[test]
fn connections_follow_the_kernels_routes() {
    if !has("python3") || !has("ethtool") {
        return;
    }
    in_namespace(|| {
        let far = checked_veth(2);
        // Destinations behind the gateway, behind another router on the same device, and behind another device.
        ip("route add default via 10.8.0.2 dev near0");
        ip("route add default via fd08::2 dev near0");
        ip("route add 198.51.100.0/24 via 10.8.0.3 dev near0");
        ip("link add other0 type veth peer name other1");
        ip("addr add 203.0.113.1/24 dev other0");
        ip("link set other0 up");
        inside(&far, || {
            for address in
                ["10.8.0.3/24 dev far0", "192.0.2.7/32 dev lo", "2001:db8::7/128 dev lo", "198.51.100.7/32 dev lo"]
            {
                ip(&format!("addr add {address}"));
            }
        });
        let greets = |at: &str| {
            let listener = std::net::TcpListener::bind(at).expect("bound");
            let port = listener.local_addr().expect("bound").port();
            std::thread::spawn(move || listener.incoming().flatten().try_for_each(|mut one| one.write_all(b"hi")));
            port
        };
        let (there, here) = (inside(&far, || greets("[::]:0")), greets("[::]:0"));
        let ways = [
            ("10.8.0.2", there, "datapath"),
            ("fd08::2", there, "datapath"),
            ("192.0.2.7", there, "datapath"),
            ("2001:db8::7", there, "datapath"),
            ("198.51.100.7", there, "kernel"),
            ("203.0.113.1", here, "kernel"),
            ("127.0.0.1", here, "kernel"),
            ("10.8.0.1", here, "kernel"),
        ];
        let mut python = preloaded("python3", &[("ABEY_DATAPATH", &datapath("base")), ("ABEY_STRICT", "1")]);
        python.args(["-c", CONNECTS]).args(ways.iter().map(|(to, port, _)| format!("{to},{port}")));
        let answers = python.output().expect("python starts");
        let text = String::from_utf8_lossy(&answers.stdout).into_owned();
        let expected: Vec<_> = ways.iter().map(|(_, _, way)| format!("{way} hi")).collect();
        assert_eq!(text.lines().collect::<Vec<_>>(), expected, "{}", String::from_utf8_lossy(&answers.stderr));
    });
}
