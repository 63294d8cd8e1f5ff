//! `abey run --world datapath`: memcached, as it is installed, over a shared-memory NIC.

use std::io::Read;
use std::time::{Duration, Instant};

use crate::serving::{abey, output, signal, stderr, wait};
use serde_json::Value;

#[test]
fn memcached_is_served_in_every_kind_of_mode_with_one_thread_and_two() {
    if std::process::Command::new("memcached").arg("-h").output().is_err() {
        eprintln!("skipped: memcached is not installed");
        return;
    }
    for (mode, threads) in [("base", "1"), ("suspend20", "2"), ("fullbusy", "1"), ("threaded", "2")] {
        let nic = format!("memory:abey-run-{mode}-{}", std::process::id());
        let options =
            ["run", "--world", "datapath", "--nic", &nic, "--mode", mode, "--nic-queues", threads, "--strict"];
        let program = ["--", "memcached", "-u", "root", "-l", "10.0.0.1", "-p", "11211", "-t", threads];
        let mut server = abey(&[&options[..], &program].concat()).spawn().expect("abey starts");
        let row = load(&nic);
        assert_eq!((&row["misses"], &row["errors"]), (&0.into(), &0.into()), "{row}");
        assert!(row["count"].as_u64() > Some(100), "{row}");
        // `abey status` shows the datapath.
        let shown = output(&["status", "--interval", "50ms", &nic]);
        let shown = String::from_utf8_lossy(&shown.stdout);
        assert!(shown.contains("memcached (pid ") && shown.contains(&format!("mode {mode}")), "{shown}");
        signal(&server, "TERM");
        wait(&mut server);
        let mut said = String::new();
        server.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
        assert!(!said.contains("libabey.so"), "{said}");
    }
}

/// Repeats a short load until the server is up, and returns its row.
fn load(nic: &str) -> Value {
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        let done = output(&[
            "load",
            "memcached",
            "10.0.0.1:11211",
            "--nic",
            nic,
            "--keys",
            "100",
            "--rate",
            "2k",
            "--duration",
            "1s",
            "--warmup",
            "20ms",
            "--timeout",
            "60s",
            "--json",
        ]);
        if done.status.success() {
            let document: Value = serde_json::from_slice(&done.stdout).expect("a document");
            return document["rows"][0].clone();
        }
        assert!(Instant::now() < end, "{}", stderr(&done));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn contradictory_options_are_refused_before_anything_runs() {
    let cases: [(&[&str], &str); 5] = [
        (&["--world", "datapath", "--mode", "base"], "give --nic memory:NAME"),
        (&["--world", "datapath", "--nic", "tap:abt0", "--mode", "base"], "give --address"),
        (&["--world", "datapath", "--nic", "memory:x", "--mode", "base", "--steer"], "--steer is for the kernel's"),
        (
            &["--nic", "memory:x", "--mode", "base"],
            "--nic has no effect without --world datapath: add `--world datapath`",
        ),
        (&["--world", "datapath", "--nic", "eth0", "--mode", "base"], "write memory:NAME"),
    ];
    for (options, said) in cases {
        let done = output(&[&["run"], options, &["--", "true"]].concat());
        assert_eq!(done.status.code(), Some(2), "{options:?}");
        assert!(stderr(&done).contains(said), "{options:?}: {}", stderr(&done));
    }
}
