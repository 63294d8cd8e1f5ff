//! The analysis by another implementation (tshark's expert information) of every kind of traffic of the other tests, on
//! both wires.
//!
//! `ABEY_RECORD` names a directory in which the recordings stay.

use std::path::{Path, PathBuf};
use std::process::Command;

use abey_nic::Recording;

use crate::common::{Around, TestBed, Wire, has, in_namespace, is_possible, ours};
use crate::{bulk, many, programs};

/// The expert's remarks on the runtime's frames that are no errors: normal events of TCP, and delays of a lossless wire.
const EVENTS: [&str; 11] = [
    "retransmission",
    "Duplicate ACK",
    "D-SACK",
    "out-of-order",
    "Zero Window",
    "completely full",
    "window update",
    "Connection reset",
    "connection closing",
    "Connection finish",
    "same ports as an earlier session",
];
/// The remarks that are no errors either if the wire loses and reorders frames before they are recorded: an acknowledgement
/// after a FIN that was sent later resembles a keep-alive probe.
const LOSS: [&str; 2] = ["Previous segment(s) not captured", "keep-alive segment"];

fn traffic(bed: &TestBed, wire: Wire, is_bad: bool) {
    bulk::transfers(bed, wire, 256 << 10);
    if has("curl", "--version") {
        programs::curl(bed, 300_000);
    }
    if has("nc", "-h") {
        programs::nc(bed, 10_000);
    }
    if has("iperf3", "--version") {
        programs::iperf3(bed, "2M");
    }
    if !is_bad {
        // In sequence, the timeouts would add up.
        many::in_turn(bed, wire, 80, 40);
    }
    many::at_once_both_ways(bed, wire, 50);
}

fn record(wire: Wire, is_bad: bool, file: &Path) {
    let recording = Recording::create(file).expect("a file");
    let around = Around { impairment: is_bad.then(bulk::bad), recording: Some(recording.clone()) };
    in_namespace(|| traffic(&TestBed::with(wire, "suspend20", around, |builder| builder), wire, is_bad));
    recording.flush().expect("written");
}

fn analysed(wire: Wire) {
    if !nix::unistd::geteuid().is_root() || !has("tshark", "--version") || !is_possible(wire) {
        eprintln!("skipped: needs root, tshark and the wire");
        return;
    }
    let temporary = tempfile::tempdir().expect("a directory");
    let directory = std::env::var_os("ABEY_RECORD").map(PathBuf::from);
    for is_bad in [false, true] {
        let name = format!("{wire:?}-{}.pcap", if is_bad { "bad" } else { "good" });
        let file = directory.as_deref().unwrap_or(temporary.path()).join(name);
        record(wire, is_bad, &file);
        assert_clean(&file, is_bad);
    }
}

#[test]
fn tshark_finds_no_errors_over_tap() {
    analysed(Wire::Tap);
}

#[test]
fn tshark_finds_no_errors_over_af_xdp() {
    analysed(Wire::Xdp);
}

/// Asserts that the file has frames, and that the expert's remarks on the runtime's frames are normal events.
fn assert_clean(file: &Path, is_bad: bool) {
    let (v4, v6) = (ours(true, 0).ip(), ours(false, 0).ip());
    let (sent_v4, sent_v6) = (format!("ip.src=={v4}"), format!("ipv6.src=={v6}"));
    let output = Command::new("tshark")
        .args(["-n", "-q", "-o", "tcp.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"])
        .args(["-o", "ip.check_checksum:TRUE"])
        // Otherwise tshark guesses protocols from random bytes, and reports errors in them.
        .args(["-d", "tcp.port==1-65535,data"])
        .arg("-z")
        .arg(format!("expert,note,{sent_v4}||{sent_v6}"))
        .args(["-z", "io,stat,0,tcp.checksum.status==\"Good\"&&ip,tcp.checksum.status==\"Good\"&&ipv6", "-r"])
        .arg(file)
        .output()
        .expect("tshark runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found = String::from_utf8_lossy(&output.stdout);
    let checked: Vec<u64> = found
        .lines()
        .filter(|line| line.contains("<>"))
        .flat_map(|line| line.split('|').skip(2).step_by(2))
        .filter_map(|column| column.trim().parse().ok())
        .collect();
    assert!(checked.len() == 2 && checked.iter().all(|frames| *frames > 500), "it checks both versions: {found}");
    let remarks = found.lines().filter(|line| line.trim_start().starts_with(|first: char| first.is_ascii_digit()));
    let is_event = |line: &str| EVENTS.iter().any(|event| line.contains(event));
    let is_loss = |line: &str| is_bad && LOSS.iter().any(|loss| line.contains(loss));
    let wrong: Vec<_> = remarks.filter(|line| !is_event(line) && !is_loss(line)).collect();
    assert!(wrong.is_empty(), "{}: {wrong:#?}", file.display());
}
