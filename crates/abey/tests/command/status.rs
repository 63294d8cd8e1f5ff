//! `abey status`: tables, verdicts, exit statuses. The tests that need a network need root.

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use abey_delivery::Mode;
use abey_linux::napi::{NapiChange, napis, set_napi};
use abey_linux::netlink::Netlink;
use abey_linux::netns::NetNs;
use abey_linux::tracefs::Tracefs;
use abey_testbed::echo::EchoServer;
use abey_testbed::spawn::SpawnExt;
use abey_testbed::veth::{End, create};
use serde_json::Value;

const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 78, 0, 1));
const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 78, 0, 2));

fn status(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_abey"));
    command.arg("status").args(["--interval", "200ms"]).args(arguments);
    command
}

fn result(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn run(command: &mut Command) -> (Option<i32>, String, String) {
    result(&command.output().expect("abey runs"))
}

/// A veth pair with an echo server at one end.
struct EchoPair {
    near: NetNs,
    far: NetNs,
    server: EchoServer,
}

impl EchoPair {
    fn under_load<T>(&self, work: impl FnOnce() -> T) -> T {
        self.server.under_load(&self.far, work)
    }

    /// Sets every NAPI instance at the near end to a mode.
    fn set(&self, mode: &str) {
        let mut netlink = Netlink::open(&self.near).expect("netlink");
        let settings = mode.parse::<Mode>().expect(mode).settings().napi;
        for napi in napis(&mut netlink, None).expect("list") {
            set_napi(&mut netlink, napi.id, &NapiChange::between(&napi.settings(), &settings)).expect("set");
        }
    }
}

/// Returns an echo server at one end of a veth pair, or prints why there is none.
fn testbed() -> Option<EchoPair> {
    let (Ok(near), Ok(far)) = (NetNs::create(), NetNs::create()) else {
        eprintln!("skipped: needs root to make network namespaces");
        return None;
    };
    let end = |netns, name, address| End { netns, name, address: (address, 24) };
    create(&end(&near, "status0", NEAR), &end(&far, "status1", FAR), 1).expect("veth pair");
    if let Err(error) = Tracefs::open() {
        eprintln!("skipped: {error}");
        return None;
    }
    let server = EchoServer::start(&near, NEAR, "0,64,1", "-1")?;
    Some(EchoPair { near, far, server })
}

#[test]
fn missing_devices_and_processes_are_wrong_usage() {
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
fn the_loopback_device_is_reported_to_have_no_napi() {
    let (code, out, error) = run(&mut status(&["lo"]));
    if code == Some(3) {
        eprintln!("skipped: {error}");
        return;
    }
    assert_eq!(code, Some(0), "{error}");
    assert!(out.contains("use no NAPI"), "{out}");
}

#[test]
fn devices_are_listed_as_text_and_as_json() {
    let Some(testbed) = testbed() else { return };
    testbed.set("defer50");
    let (code, out, error) = run(status(&[]).in_netns(&testbed.near));
    assert_eq!(code, Some(0), "{error}");
    let row = out.lines().find(|line| line.starts_with("status0 ")).expect("a row");
    assert!(row.contains("50us") && row.contains("100"), "{row}");
    assert!(out.contains("status0: defer50 is configured") && out.contains("--pid"), "{out}");

    let (code, out, error) = run(status(&["--json", "status0"]).in_netns(&testbed.near));
    assert_eq!(code, Some(0), "{error}");
    let document: Value = serde_json::from_str(&out).expect("one JSON document");
    let row = &document["rows"][0];
    assert_eq!((&row["device"], &row["gro_flush_timeout_ns"]), (&"status0".into(), &50_000.into()));
    assert_eq!((&row["defer_hard_irqs"], &row["kind"], &row["irq"]), (&100.into(), &"veth".into(), &Value::Null));
    assert!(row["device_polls_per_s"]["softirq"].is_number() && document.get("verdict").is_none(), "{document}");
}

#[test]
fn a_process_is_judged_in_text_and_by_the_exit_status() {
    let Some(testbed) = testbed() else { return };
    let pid = testbed.server.pid().to_string();
    testbed.set("suspend20");
    let (code, out, error) = testbed.under_load(|| run(&mut status(&["--pid", &pid])));
    assert_eq!(code, Some(0), "{out}{error}");
    assert!(out.contains(&format!("suspend20 is active for python3 (pid {pid}): ")), "{out}");
    assert!(out.contains("0 us, budget 64, prefer") && out.contains("8 on NAPI"), "{out}");

    testbed.set("base");
    let (code, out, error) = testbed.under_load(|| run(&mut status(&["--json", "status0", "--pid", &pid])));
    assert_eq!(code, Some(1), "{out}{error}");
    let document: Value = serde_json::from_str(&out).expect("one JSON document");
    let verdict = &document["verdict"];
    assert_eq!((&verdict["active"], &verdict["device"]), (&false.into(), &"status0".into()));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    assert!(text(&verdict["sentence"]).contains("is not active"), "{verdict}");
    assert!(text(&verdict["reasons"][0]).contains("abey set status0"), "{verdict}");
    let process = &document["processes"][0];
    assert_eq!((&process["pid"], &process["state"]), (&testbed.server.pid().into(), &"not active".into()));
    assert_eq!(process["epolls"][0]["parameters"]["budget"], 64);
}

#[test]
fn without_privileges_settings_are_shown_and_other_users_processes_are_refused() {
    let Some(testbed) = testbed() else { return };
    let mut plain = status(&[]);
    let Ok(output) = plain.uid(65_534).gid(65_534).output() else {
        eprintln!("skipped: another user may not execute {}", env!("CARGO_BIN_EXE_abey"));
        return;
    };
    let (code, out, error) = result(&output);
    assert_eq!(code, Some(0), "{error}");
    assert!(out.contains("note: polls are not counted") || !out.contains("softirq/s"), "{out}");
    let (code, out, error) = run(status(&["--pid", &testbed.server.pid().to_string()]).uid(65_534).gid(65_534));
    assert_eq!((code, out.as_str()), (Some(3), ""), "{error}");
    assert!(error.contains("run as root"), "{error}");
}
