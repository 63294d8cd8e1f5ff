//! `abey status` as a user sees it: tables, verdicts, exit statuses. What changes a network needs root.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use abey_delivery::Mode;
use abey_linux::napi::{NapiChange, napis, set_napi};
use abey_linux::netlink::Netlink;
use abey_linux::netns::NetNs;
use abey_linux::spawn::CommandPlace;
use abey_linux::tracefs::Tracefs;
use abey_linux::veth::{End, create};
use serde_json::Value;

const SERVER: &str = include_str!("../../linux/tests/epoll_server.py");
const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 78, 0, 1));
const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 78, 0, 2));

fn status(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_abey"));
    command.arg("status").args(["--interval", "200ms"]).args(arguments);
    command
}

fn told(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn run(command: &mut Command) -> (Option<i32>, String, String) {
    told(&command.output().expect("abey runs"))
}

/// Two namespaces and a server in one of them.
struct Bed {
    near: NetNs,
    far: NetNs,
    server: Child,
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Bed {
    fn new() -> Option<Self> {
        let (Ok(near), Ok(far)) = (NetNs::create(), NetNs::create()) else {
            eprintln!("skipped: needs root to make network namespaces");
            return None;
        };
        if let Err(error) = Tracefs::open() {
            eprintln!("skipped: {error}");
            return None;
        }
        let end = |netns, name, address| End { netns, name, address: (address, 24) };
        create(&end(&near, "status0", NEAR), &end(&far, "status1", FAR), 1).expect("veth pair");
        let mut command = Command::new("python3");
        command.args(["-c", SERVER, &NEAR.to_string(), "0,64,1", "-1"]).stdout(Stdio::piped()).in_netns(&near);
        let Ok(mut server) = command.spawn() else {
            eprintln!("skipped: needs python3 as a server");
            return None;
        };
        let mut line = String::new();
        let said = server.stdout.take().expect("piped");
        BufReader::new(said).read_line(&mut line).expect("it says when it is ready");
        let bed = Self { near, far, server };
        assert_eq!(line, "ready\n");
        Some(bed)
    }

    fn set(&self, mode: &str) {
        let mut netlink = Netlink::open(&self.near).expect("netlink");
        let settings = mode.parse::<Mode>().expect(mode).settings().napi;
        for napi in napis(&mut netlink, None).expect("list") {
            let change = NapiChange::between(&napi.settings(), &settings);
            set_napi(&mut netlink, napi.id, &change).expect("set");
        }
    }

    /// Runs `work` while the server is under load, which ends by itself.
    fn under_load<T>(&self, work: impl FnOnce() -> T) -> T {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| self.far.run(|| echo_until(&stop)).expect("enter"));
            std::thread::sleep(Duration::from_millis(100));
            let result = work();
            stop.store(true, Ordering::Relaxed);
            result
        })
    }
}

fn echo_until(stop: &AtomicBool) {
    let connect = |_| {
        let stream = TcpStream::connect((NEAR, 7000)).expect("connect");
        stream.set_read_timeout(Some(Duration::from_secs(2))).expect("set");
        stream
    };
    let mut streams: Vec<TcpStream> = (0..8).map(connect).collect();
    let began = Instant::now();
    while !stop.load(Ordering::Relaxed) && began.elapsed() < Duration::from_secs(4) {
        for stream in &mut streams {
            stream.write_all(&[7; 64]).expect("send");
        }
        for stream in &mut streams {
            stream.read_exact(&mut [0; 64]).expect("answer");
        }
    }
}

#[test]
fn what_is_not_there_is_wrong_usage() {
    for (arguments, said) in [
        (&["abey-no-such"][..], "no network device `abey-no-such`"),
        (&["--pid", "4194303"], "no process 4194303"),
        (&["--netns", "abey-no-such"], "ip netns"),
        (&["--interval", "0"], "--interval 0"),
        (&["--interval", "2000s"], "at most 1 minute"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_abey"));
        let (code, out, error) = run(command.arg("status").args(arguments));
        assert_eq!((code, out.as_str()), (Some(2), ""), "{arguments:?}: {error}");
        assert!(error.starts_with("abey: ") && error.contains(said), "{arguments:?}: {error}");
    }
}

#[test]
fn the_loopback_device_is_said_to_have_no_napi() {
    let (code, out, error) = run(&mut status(&["lo"]));
    if code == Some(3) {
        eprintln!("skipped: {error}");
        return;
    }
    assert_eq!(code, Some(0), "{error}");
    assert!(out.contains("use no NAPI"), "{out}");
}

#[test]
fn devices_are_listed_and_the_same_in_json() {
    let Some(bed) = Bed::new() else { return };
    bed.set("defer50");
    let (code, out, error) = run(status(&[]).in_netns(&bed.near));
    assert_eq!(code, Some(0), "{error}");
    let row = out.lines().find(|line| line.starts_with("status0 ")).expect("a row");
    assert!(row.contains("50us") && row.contains("100"), "{row}");
    assert!(out.contains("status0: defer50 is configured") && out.contains("--pid"), "{out}");

    let (code, out, error) = run(status(&["--json", "status0"]).in_netns(&bed.near));
    assert_eq!(code, Some(0), "{error}");
    let document: Value = serde_json::from_str(&out).expect("one JSON document");
    let row = &document["rows"][0];
    assert_eq!((&row["device"], &row["gro_flush_timeout_ns"]), (&"status0".into(), &50_000.into()));
    assert_eq!((&row["defer_hard_irqs"], &row["kind"], &row["irq"]), (&100.into(), &"veth".into(), &Value::Null));
    assert!(row["device_polls_per_s"]["softirq"].is_number() && document.get("verdict").is_none(), "{document}");
}

#[test]
fn a_process_is_judged_in_words_and_by_the_exit_status() {
    let Some(bed) = Bed::new() else { return };
    let pid = bed.server.id().to_string();
    bed.set("suspend20");
    let (code, out, error) = bed.under_load(|| run(&mut status(&["--pid", &pid])));
    assert_eq!(code, Some(0), "{out}{error}");
    assert!(out.contains(&format!("suspend20 is active for python3 (pid {pid}): ")), "{out}");
    assert!(out.contains("0 us, budget 64, prefer") && out.contains("8 on NAPI"), "{out}");

    bed.set("base");
    let (code, out, error) = bed.under_load(|| run(&mut status(&["--json", "status0", "--pid", &pid])));
    assert_eq!(code, Some(1), "{out}{error}");
    let document: Value = serde_json::from_str(&out).expect("one JSON document");
    let verdict = &document["verdict"];
    assert_eq!((&verdict["active"], &verdict["device"]), (&false.into(), &"status0".into()));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    assert!(text(&verdict["sentence"]).contains("is not active"), "{verdict}");
    assert!(text(&verdict["reasons"][0]).contains("abey set status0"), "{verdict}");
    let process = &document["processes"][0];
    assert_eq!((&process["pid"], &process["state"]), (&bed.server.id().into(), &"not active".into()));
    assert_eq!(process["epolls"][0]["parameters"]["budget"], 64);
}

#[test]
fn without_privilege_the_settings_are_shown_and_a_strange_process_is_not() {
    let Some(bed) = Bed::new() else { return };
    let mut plain = status(&[]);
    let Ok(output) = plain.uid(65_534).gid(65_534).output() else {
        eprintln!("skipped: another user may not execute {}", env!("CARGO_BIN_EXE_abey"));
        return;
    };
    let (code, out, error) = told(&output);
    assert_eq!(code, Some(0), "{error}");
    assert!(out.contains("note: polls are not counted") || !out.contains("softirq/s"), "{out}");
    let (code, out, error) = run(status(&["--pid", &bed.server.id().to_string()]).uid(65_534).gid(65_534));
    assert_eq!((code, out.as_str()), (Some(3), ""), "{error}");
    assert!(error.contains("run as root"), "{error}");
}
