//! `abey serve` and `abey load` over Abey's own datapath, in one process each.

use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use abey_linux::netns::NetNs;
use abey_testbed::veth::{self, End};
use serde_json::Value;

use crate::serving::{Serve, abey, output, signal, stderr, wait};

/// Returns the name of a shared-memory NIC that is unique on this machine.
fn nic_name(test: &str) -> String {
    format!("memory:abey-test-{test}-{}", std::process::id())
}

/// Runs a short load with `args` and returns its row.
fn load(args: &[&str]) -> Value {
    let common = ["--duration", "500ms", "--warmup", "20ms", "--timeout", "60s", "--json"];
    let done = output(&[&["load"], args, &common].concat());
    assert_eq!((done.status.code(), stderr(&done).as_str()), (Some(0), ""), "{args:?}");
    let document: Value = serde_json::from_slice(&done.stdout).unwrap();
    let [row] = document["rows"].as_array().unwrap().as_slice() else { panic!("{document}") };
    assert!(row["count"].as_u64() > Some(0) && row["qps"].as_f64() > Some(0.0), "{row}");
    row.clone()
}

/// Returns the row of counters that `serve --counters` printed.
fn counters(printed: &str) -> Value {
    let document: Value = serde_json::from_str(printed).unwrap_or_else(|error| panic!("{error}: {printed:?}"));
    document["rows"][0].clone()
}

#[test]
fn keys_are_served_over_a_shared_memory_nic_in_every_kind_of_mode() {
    for mode in ["base", "defer50", "fullbusy", "suspend20", "threaded", "workqueue", "hold50"] {
        let nic = nic_name(mode);
        let server = Serve::start(&["kv", "--nic", &nic, "--mode", mode, "--counters"]);
        assert_eq!(server.address, "10.0.0.1:11211");
        for rate in ["1k", "max"] {
            let row = load(&["memcached", &server.address, "--nic", &nic, "--keys", "100", "--rate", rate]);
            assert_eq!((&row["misses"], &row["errors"], &row["load"]), (&0.into(), &0.into(), &rate.into()), "{row}");
            assert!(row["p99_us"].is_f64() && row["client_cpu_percent"].as_f64() > Some(0.0), "{row}");
        }
        let row = counters(&server.end("TERM"));
        assert!(row["requests"].as_u64() > Some(200) && row["packets"].as_u64() > Some(100), "{mode}: {row}");
        assert!(row["per_request"]["system_calls"].is_f64(), "{mode}: {row}");
        let engaged = match mode {
            "fullbusy" => "busy_poll_packets",
            "suspend20" => "suspensions",
            "threaded" => "thread_polls",
            "workqueue" => "worker_polls",
            _ => "softirq_polls",
        };
        assert!(row[engaged].as_u64() > Some(0), "{mode}: {row}");
    }
}

#[test]
fn exchanges_work_over_tcp_and_udp_and_both_versions_of_ip() {
    for transport in [&[][..], &["--udp"]] {
        for listen in ["10.0.0.1:0", "[fd00:abe::1]:0", "0.0.0.0:7"] {
            let nic = nic_name("rr");
            let sizes = [&["rr", "--request-size", "100", "--response-size", "1000"], transport].concat();
            let server = Serve::start(&[&sizes[..], &["--nic", &nic, "--listen", listen]].concat());
            let target = server.address.replace("0.0.0.0", "10.0.0.1");
            let row = load(&[&sizes[..], &[&target, "--nic", &nic, "--rate", "1k", "--depth", "4"]].concat());
            assert_eq!(row["errors"], 0, "{row}");
            assert_eq!(server.end("TERM"), "");
        }
    }
}

#[test]
fn threads_share_the_queues() {
    let nic = nic_name("threads");
    for (kind, protocol) in [(&["kv"][..], &["memcached", "--keys", "100"][..]), (&["rr", "--udp"], &["rr", "--udp"])] {
        // Two threads with two queues each; two threads of the load on all of them.
        let server = Serve::start(&[kind, &["--nic", &nic, "--threads", "2", "--queues", "4"]].concat());
        let args = [&server.address, "--nic", &nic, "--threads", "2", "--rate", "2k", "--mode", "suspend20"];
        let row = load(&[protocol, &args].concat());
        assert_eq!((&row["errors"], &row["threads"]), (&0.into(), &2.into()), "{row}");
        server.end("TERM");
    }
}

#[test]
fn a_server_can_be_restarted_under_its_name_and_recorded() {
    let nic = nic_name("again");
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    for _ in 0..3 {
        let server = Serve::start(&["rr", "--nic", &nic, "--pcap", path]);
        load(&["rr", &server.address, "--nic", &nic, "--rate", "100"]);
        server.end("TERM");
    }
    let recorded = std::fs::read(path).unwrap();
    assert_eq!(recorded[..4], 0xa1b2_3c4d_u32.to_be_bytes());
    assert!(recorded.len() > 1000, "{} bytes", recorded.len());
}

#[test]
fn a_killed_server_ends_the_load_with_one_sentence() {
    let nic = nic_name("killed");
    let mut server = Serve::start(&["rr", "--nic", &nic]);
    let args = ["load", "rr", &server.address, "--nic", &nic, "--rate", "1k", "--duration", "600s"];
    let mut load = abey(&args).spawn().unwrap();
    // A pause, so that the load is usually sending. An earlier death of the server is an error of the same kind.
    std::thread::sleep(Duration::from_millis(500));
    signal(&server.child, "KILL");
    wait(&mut server.child);
    wait(&mut load);
    let done = load.wait_with_output().unwrap();
    let said = stderr(&done);
    assert_eq!((done.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("the other end has closed it") || said.contains("cannot connect"), "{said}");
}

#[test]
fn bad_input_is_refused_with_one_sentence() {
    let (unused, mine) = (nic_name("unused"), nic_name("taken"));
    let _server = Serve::start(&["kv", "--nic", &mine]);
    let at = "10.0.0.1:11211";
    for (status, args, words) in [
        (3, &["load", "rr", at, "--nic", &unused][..], "start the process that creates it"),
        (1, &["serve", "kv", "--nic", &mine], "in use already"),
        (1, &["load", "rr", "10.0.0.1:9", "--nic", &mine], "nothing listens on 10.0.0.1:9"),
        (1, &["load", "rr", at, "--udp", "--nic", &mine], "nothing listens"),
        (1, &["load", "rr", "10.9.9.9:1", "--nic", &mine], "no route to 10.9.9.9"),
        (1, &["load", "rr", "10.0.0.7:1", "--nic", &mine, "--timeout", "100ms"], "not established before the timeout"),
        (2, &["load", "rr", at, "--nic", "eth0"], "write memory:NAME, tap:DEV or af_xdp:DEV"),
        (2, &["load", "rr", at, "--nic", &mine, "--queues", "2"], "--queues has no effect here"),
        (2, &["load", "rr", at, "--mode", "base"], "--nic"),
        (2, &["load", "rr", at, "--nic", &mine, "--mode", "fast"], "there is no mode `fast`"),
        (2, &["load", "rr", at, "--nic", "tap:abey0"], "needs an address of its own"),
        (2, &["load", "rr", at, "--nic", "af_xdp:eth0", "--address", "10.0.0.1/24"], "leave out --address"),
        (2, &["serve", "kv", "--counters"], "--nic"),
        (2, &["serve", "kv", "--nic", &unused, "--address", "10.0.0.1"], "not an address with a prefix length"),
        (2, &["serve", "kv", "--nic", &unused, "--listen", "10.0.0.9:1"], "not an address of this end"),
        (2, &["serve", "kv", "--nic", &unused, "--threads", "3", "--queues", "2"], "give --queues 3"),
        (2, &["serve", "kv", "--nic", &unused, "--queues", "99"], "1 to 32"),
        (2, &["serve", "kv", "--nic", &unused, "--napi-cpu", "0,1"], "give one for each"),
        (2, &["serve", "kv", "--nic", &unused, "--napi-cpu", "777"], "CPU 777"),
        (2, &["serve", "kv", "--nic", &unused, "--gateway", "10.3.0.1"], "on no prefix"),
        (2, &["serve", "kv", "--nic", &unused, "--gateway", "10.0.0.3", "--gateway", "10.0.0.4"], "two gateways"),
        (2, &["serve", "kv", "--nic", &unused, "--pcap", "/nowhere/file"], "cannot write /nowhere/file"),
    ] {
        let done = output(args);
        let said = stderr(&done);
        assert_eq!((done.status.code(), done.stdout.len()), (Some(status), 0), "{args:?}: {said}");
        assert!(said.contains(words) && said.trim_end().lines().count() == 1, "{args:?}: {said}");
    }
}

#[test]
fn the_kernel_is_the_client_of_a_server_on_a_tap_device() {
    if !nix::unistd::geteuid().is_root() || Command::new("ip").arg("-V").output().is_err() {
        eprintln!("skipped: needs root and the `ip` program to make a network namespace");
        return;
    }
    let work = || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        for (mode, version, ours, kernels) in
            [("base", "-4", "10.8.0.2", "10.8.0.1/24"), ("suspend20", "-6", "fd00:8::2", "fd00:8::1/64")]
        {
            let own = if version == "-4" { format!("{ours}/24") } else { format!("{ours}/64") };
            let args = ["kv", "--nic", "tap:abeytap", "--address", &own, "--mode", mode, "--counters"];
            let server = Serve::start(&args);
            for words in [&["addr", "add", kernels, "dev", "abeytap", "nodad"][..], &["link", "set", "abeytap", "up"]] {
                let words: Vec<_> = words.iter().filter(|word| version == "-6" || **word != "nodad").collect();
                assert!(Command::new("ip").args(words).status().unwrap().success());
            }
            let row = load(&["memcached", &server.address, "--keys", "100", "--rate", "1k"]);
            assert_eq!(row["misses"], 0, "{row}");
            assert!(counters(&server.end("TERM"))["requests"].as_u64() > Some(200));
        }
    };
    // A separate thread, because it enters another namespace.
    std::thread::spawn(work).join().unwrap();
}

/// Two namespaces joined by a veth pair, `abx0` (198.18.5.1) and `abx1` (198.18.5.2).
fn joined() -> (NetNs, NetNs) {
    let (here, there) = (NetNs::create().unwrap(), NetNs::create().unwrap());
    let address = |last: u8| (IpAddr::from([198, 18, 5, last]), 24);
    let end = |netns, name, last| End { netns, name, address: address(last) };
    veth::create(&end(&here, "abx0", 1), &end(&there, "abx1", 2), 1).unwrap();
    (here, there)
}

#[test]
fn a_device_is_shared_with_the_kernel() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: needs root to make network namespaces");
        return;
    }
    let (here, there) = joined();
    let file = tempfile::NamedTempFile::new().unwrap();
    let serve =
        ["kv", "--nic", "af_xdp:abx0", "--mode", "suspend20", "--counters", "--pcap", file.path().to_str().unwrap()];
    let kv = here.run(|| Serve::start(&serve)).unwrap();
    assert_eq!(kv.address, "0.0.0.0:11211");
    let client = ["memcached", "198.18.5.1:11211", "--keys", "100", "--rate", "1k"];
    // Until the peer computes checksums every frame is dropped, and the server reports the reason.
    let dropped = there.run(|| output(&[&["load"], &client[..], &["--timeout", "2500ms"]].concat())).unwrap();
    assert_eq!(dropped.status.code(), Some(1), "{}", stderr(&dropped));
    veth::compute_checksums(&there, "abx1").unwrap();
    let row = there.run(|| load(&client)).unwrap();
    assert_eq!(row["misses"], 0, "{row}");
    let (printed, said) = kv.end_with_errors("TERM");
    assert!(counters(&printed)["suspensions"].as_u64() > Some(0), "{printed}");
    assert!(said.contains("ethtool -K PEER tx off") && said.lines().count() == 1, "{said}");
    assert!(file.as_file().metadata().unwrap().len() > 10_000);

    // With the roles exchanged: the server uses kernel sockets.
    let rr = there.run(|| Serve::start(&["rr", "--listen", "198.18.5.2:7"])).unwrap();
    let row = here.run(|| load(&["rr", "198.18.5.2:7", "--nic", "af_xdp:abx0", "--rate", "1k"])).unwrap();
    assert_eq!(row["errors"], 0, "{row}");
    rr.end("TERM");

    // A port that a kernel socket is bound to, a device without an address, and a device that does not exist.
    let _kernels = here.run(|| Serve::start(&["kv", "--listen", "198.18.5.1:11211"])).unwrap();
    for (status, nic, words) in
        [(1, "af_xdp:abx0", "in use"), (3, "af_xdp:lo", "its MTU is"), (3, "af_xdp:abx9", "no device")]
    {
        let done = here.run(|| output(&["serve", "kv", "--nic", nic])).unwrap();
        let said = stderr(&done);
        assert_eq!((done.status.code(), said.trim_end().lines().count()), (Some(status), 1), "{nic}: {said}");
        assert!(said.contains(words), "{nic}: {said}");
    }
}
