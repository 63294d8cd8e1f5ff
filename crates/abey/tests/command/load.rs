//! `abey load` and `abey serve`: results, bad input, signals.

use std::io::Read;
use std::net::TcpListener;

use serde_json::Value;

use crate::serving::{Serve, abey, output, signal, stderr, wait};

/// Starts a server on a free port of loopback.
fn serve(args: &[&str]) -> Serve {
    Serve::start(&[args, &["--listen", "127.0.0.1:0"]].concat())
}

#[test]
fn a_json_row_has_the_documented_keys() {
    let server = serve(&["kv", "--threads", "2"]);
    let args = ["load", "memcached", &server.address, "--rate", "2k", "--duration", "200ms", "--warmup", "20ms"];
    let done =
        output(&[&args[..], &["--keys", "1k", "--value-size", "etc", "--seed", "9", "--json", "--curve"]].concat());
    assert!(done.status.success(), "{}", stderr(&done));
    assert_eq!(stderr(&done), "");
    let document: Value = serde_json::from_slice(&done.stdout).unwrap();
    let [row] = document["rows"].as_array().unwrap().as_slice() else { panic!("{document}") };
    for key in ["qps", "avg_us", "p50_us", "p90_us", "p95_us", "p99_us", "p999_us", "max_us", "client_cpu_percent"] {
        assert!(row[key].is_f64() && row[key].as_f64() > Some(0.0), "{key}: {row}");
    }
    assert_eq!((&row["seed"], &row["load"], &row["misses"]), (&9.into(), &"2k".into(), &0.into()), "{row}");
    assert!(row["send_lag_us"]["p99"].is_f64() && row["client_bound"].is_boolean(), "{row}");
    assert!(row["latency_by_percentile"].as_array().unwrap().len() > 10, "{row}");
}

#[test]
fn the_default_output_is_a_table() {
    let server = serve(&["rr", "--request-size", "10", "--response-size", "100"]);
    let args = ["load", "rr", &server.address, "--request-size", "10", "--response-size", "100", "--rate", "max"];
    let done = output(&[&args[..], &["--depth", "2", "--duration", "100ms", "--warmup", "0"]].concat());
    assert!(done.status.success(), "{}", stderr(&done));
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(text.contains("p99.9") && text.contains("max") && text.contains("seed 1"), "{text}");
    assert_eq!(server.end("INT"), "");
}

#[test]
fn servers_exit_with_0_on_either_signal() {
    for (kind, name) in [(&["kv"][..], "TERM"), (&["rr", "--udp"], "INT"), (&["rr", "--threads", "3"], "TERM")] {
        assert_eq!(serve(kind).end(name), "", "{kind:?}");
    }
}

#[test]
fn an_interrupted_load_has_status_130_and_no_row() {
    // While keys are being stored, and while requests are being sent by one thread and by two.
    for protocol in [&["memcached"][..], &["rr"], &["rr", "--threads", "2"]] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let args = ["--rate", "1k", "--duration", "60s", "--timeout", "30s", "--json", &address];
        let mut load = abey(&[&["load"], protocol, &args].concat()).spawn().unwrap();
        // The first byte shows that the load has begun. It gets no answer.
        let (mut first, _) = listener.accept().unwrap();
        first.read_exact(&mut [0]).unwrap();
        signal(&load, "INT");
        assert_eq!(wait(&mut load).code(), Some(130), "{protocol:?}");
        let done = load.wait_with_output().unwrap();
        assert_eq!(done.stdout, b"");
        assert!(stderr(&done).contains("interrupted"), "{}", stderr(&done));
    }
}

#[test]
fn bad_input_is_refused_with_one_sentence() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    // On a loopback address that only this test uses: another test could get the port in the meantime.
    let free = TcpListener::bind("127.0.0.7:0").unwrap().local_addr().unwrap().to_string();
    let at = "127.0.0.1:9";
    for (status, args, words) in [
        (1, &["load", "memcached", &free][..], "nothing listens"),
        (1, &["load", "rr", &free], "nothing listens"),
        (1, &["load", "memcached", &taken, "--timeout", "100ms"], "stopped answering"),
        (1, &["serve", "kv", "--listen", &taken], "in use"),
        (1, &["serve", "rr", "--listen", &taken, "--threads", "2"], "in use"),
        (2, &["serve", "kv", "--listen", "192.0.2.1:1"], "not an address of this machine"),
        (2, &["serve", "kv", "--listen", "nowhere"], "is not an address"),
        (2, &["serve", "kv", "--listen", "127.0.0.1:0", "--threads", "0"], "out of range"),
        (2, &["serve", "rr", "--listen", "127.0.0.1:0", "--udp", "--request-size", "70000"], "out of range"),
        (2, &["serve", "kv", "--listen", "127.0.0.1:0", "--cpu", "4000"], "CPU"),
        (2, &["load", "memcached", "nowhere"], "is not an address"),
        (2, &["load", "memcached", "127.0.0.1:0"], "port 0"),
        (2, &["load", "memcached", at, "--rate", "fast"], "is not a rate"),
        (2, &["load", "memcached", at, "--rate=-5"], "is not a rate"),
        (2, &["load", "memcached", at, "--duration", "5"], "no unit"),
        (2, &["load", "memcached", at, "--duration", "0"], "duration"),
        (2, &["load", "memcached", at, "--connections", "0"], "out of range"),
        (2, &["load", "memcached", at, "--connections", "2", "--threads", "3"], "threads"),
        (2, &["load", "memcached", at, "--depth", "0"], "depth"),
        (2, &["load", "memcached", at, "--sets", "1.5"], "set ratio"),
        (2, &["load", "memcached", at, "--keys", "0"], "keys"),
        (2, &["load", "memcached", at, "--keys", "10q"], "is not a count"),
        (2, &["load", "memcached", at, "--key-size", "2"], "keys of 2 bytes"),
        (2, &["load", "memcached", at, "--key-size", "251"], "out of range"),
        (2, &["load", "memcached", at, "--value-size", "huge"], "is not a size"),
        (2, &["load", "memcached", at, "--arrivals", "never"], "arrivals"),
        (2, &["load", "memcached", at, "--cpu", "4000"], "CPU"),
        (2, &["load", "memcached", at, "--curve"], "--json"),
        (2, &["load", "rr", at, "--flows", "0"], "out of range"),
        (2, &["load", "rr", at, "--response-size", "0"], "out of range"),
        (2, &["load", "gopher", at], "gopher"),
    ] {
        let done = output(args);
        let said = stderr(&done);
        assert_eq!(done.status.code(), Some(status), "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
        assert_eq!(done.stdout, b"", "{args:?}");
        // Abey's own messages have one line. clap adds a hint to its messages.
        assert!(said.trim_end().lines().count() == 1 || said.contains("--help"), "{args:?}: {said}");
    }
}
