//! `abey status` and `abey set` at a running datapath: this process has one, over the shared-memory NIC, with traffic.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::common::{Finished, HANG_LIMIT, UnprivilegedUser, abey, await_that, finish};
use abey_datapath::control::{DIRECTORY_VARIABLE, Server};
use abey_datapath::{Interest, Runtime, TcpListener, TcpStream};
use abey_delivery::{Mode, Nanos, NapiSettings};
use abey_nic::rss::{Rss, SYMMETRIC_KEY};
use abey_nic::{MemoryQueue, MemoryShape, QueuePair};
use serde_json::{Value, json};

const NIC: &str = "memory:test-server";

/// Two runtimes in this process: a server, a client that sends requests all the time, and the control directory of both.
struct Pair {
    server: Arc<Runtime>,
    client: Arc<Runtime>,
    control: Vec<Server>,
    directory: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

fn host(last: u8, name: &str, queues: Vec<MemoryQueue>, mode: &str) -> Arc<Runtime> {
    let rss = Rss::new(SYMMETRIC_KEY, queues.len() as u32);
    let queues = queues.into_iter().map(|queue| Box::new(queue) as Box<dyn QueuePair>).collect();
    let builder = Runtime::builder().queues(name, [2, 0, 0, 0, 0, last], queues, Some(rss));
    let mode: Mode = mode.parse().expect("a mode");
    Arc::new(builder.address([10, 0, 0, last].into(), 24).mode(mode).build().expect("a runtime"))
}

impl Pair {
    fn start(queues: usize, mode: &str) -> Self {
        let (left, right) = abey_nic::pair(MemoryShape { queues, ..MemoryShape::default() }).expect("a pair");
        let (client, server) = (host(1, "memory:test-client", left, "base"), host(2, NIC, right, mode));
        let directory = tempfile::tempdir().expect("a directory");
        let control = [&client, &server].map(|one| one.serve_control_in(directory.path()).expect("served")).into();
        let stop = Arc::new(AtomicBool::new(false));
        let listener = TcpListener::bind(&server, "10.0.0.2:7".parse().expect("an address")).expect("a listener");
        let (echo, ask) = (server.clone(), client.clone());
        let (stopped, stopping) = (stop.clone(), stop.clone());
        let threads = vec![
            std::thread::spawn(move || serve(&echo, &listener, &stopped)),
            std::thread::spawn(move || load(&ask, &stopping)),
        ];
        Self { server, client, control, directory, stop, threads }
    }

    /// Makes the command find these datapaths and no others.
    fn found_by(&self, mut command: Command) -> Command {
        command.env(DIRECTORY_VARIABLE, self.directory.path());
        command
    }

    fn abey(&self, arguments: &[&str]) -> Finished {
        finish(self.found_by(abey(arguments)))
    }

    fn settings(&self) -> Vec<NapiSettings> {
        let settings = |napi: &u32| self.server.settings(*napi).expect("there");
        self.server.napi_ids().iter().map(settings).collect()
    }

    /// Waits until more requests have been answered.
    fn assert_traffic(&self) {
        let before = self.server.counters(None).packets;
        await_that("traffic goes on", || self.server.counters(None).packets > before + 20);
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let joined = thread.join();
            if !std::thread::panicking() {
                joined.expect("no panic");
            }
        }
    }
}

/// Accepts one connection and echoes its bytes.
fn serve(runtime: &Runtime, listener: &TcpListener, stop: &AtomicBool) {
    let stream = listener.accept().expect("a connection").0;
    stream.set_nonblocking(true);
    let epoll = runtime.epoll();
    epoll.add(&stream, 0, Interest::IN).expect("added");
    let (mut events, mut buffer) = (Vec::new(), [0; 64]);
    while !stop.load(Ordering::Relaxed) {
        epoll.wait(&mut events, 1, Some(std::time::Duration::from_millis(50))).expect("a wait");
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            stream.write_all(&buffer[..count]).expect("written");
        }
    }
}

fn load(runtime: &Runtime, stop: &AtomicBool) {
    let to = "10.0.0.2:7".parse().expect("an address");
    let stream = TcpStream::connect_timeout(runtime, to, Some(HANG_LIMIT)).expect("connected");
    stream.set_timeout(Some(HANG_LIMIT));
    while !stop.load(Ordering::Relaxed) {
        let answered = stream.write_all(b"abey").and_then(|()| stream.read_exact(&mut [0; 4]));
        // An error is allowed after the server has stopped.
        assert!(answered.is_ok() || stop.load(Ordering::Relaxed), "{answered:?}");
    }
}

fn status(more: &[&str]) -> Vec<String> {
    ["status", "--interval", "100ms"].iter().chain(more).map(ToString::to_string).collect()
}

fn strs(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

#[test]
fn datapaths_are_listed_beside_the_kernels_devices() {
    let pair = Pair::start(1, "suspend20");
    let pid = std::process::id().to_string();
    pair.assert_traffic();
    let listed = pair.abey(&strs(&status(&[])));
    if listed.status.code() == Some(3) {
        panic!("a datapath is listed whatever the kernel has: {listed:?}");
    }
    let row = listed.assert_status(0).out.lines().find(|line| line.starts_with(NIC)).expect("a row").to_owned();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!((cells[1], cells[3], cells[4]), (pid.as_str(), "suspend20", "1"), "{row}");
    assert!(cells[6].parse::<u64>().expect("packets a second") > 0, "{row}");
    let document = pair.abey(&strs(&status(&["--json"]))).assert_status(0).json();
    assert!(document["rows"].is_array(), "{document}");
    let nics: Vec<&Value> = document["datapaths"].as_array().expect("some").iter().map(|one| &one["nic"]).collect();
    assert_eq!(nics, ["memory:test-client", NIC]);
    assert!(document["datapaths"][1]["per_s"]["packets"].as_f64().expect("a rate") > 0.0);
    // Where no datapath runs, the output does not mention datapaths.
    let mut elsewhere = abey(&strs(&status(&["--json"])));
    elsewhere.env(DIRECTORY_VARIABLE, pair.directory.path().join("nothing"));
    let elsewhere = finish(elsewhere);
    assert!(elsewhere.status.code() == Some(3) || elsewhere.json().get("datapaths").is_none(), "{elsewhere:?}");
}

#[test]
fn sockets_are_listed_up_to_a_limit_and_the_others_are_counted() {
    let pair = Pair::start(1, "suspend20");
    pair.assert_traffic();
    let shown = pair.abey(&strs(&status(&[NIC, "--json"]))).assert_status(0).json();
    let page = &shown["datapaths"][0]["sockets"][0];
    let sockets = page["sockets"].as_array().expect("some");
    let states: Vec<&Value> = sockets.iter().map(|socket| &socket["state"]).collect();
    assert_eq!((states, &page["more"]), (vec![&json!("listen"), &json!("established")], &json!(0)), "{page}");
    assert_eq!(sockets[0]["local"], "10.0.0.2:7");
    assert!(sockets[1]["remote"].as_str().is_some_and(|remote| remote.starts_with("10.0.0.1:")), "{page}");
    assert!(sockets.iter().all(|socket| socket["holder"] == "application" && socket["transport"] == "tcp"), "{page}");
    let text = pair.abey(&strs(&status(&[NIC]))).assert_status(0).out.clone();
    assert!(text.lines().any(|line| line.starts_with("tcp     established  10.0.0.2:7")), "{text}");
    // One of two sockets, requested over the control socket.
    let found = abey_datapath::control::find_in(pair.directory.path()).expect("a directory");
    for client in found.into_iter().flatten() {
        let all: usize = client.sockets(9).expect("pages").iter().map(|page| page.sockets.len()).sum();
        let pages = client.sockets(all - 1).expect("pages");
        assert_eq!((pages[0].sockets.len(), pages[0].more), (all - 1, 1));
    }
}

#[test]
fn a_watch_prints_repeatedly_until_ctrl_c() {
    let pair = Pair::start(1, "suspend20");
    for arguments in [&["--watch", "0.1", NIC][..], &["--watch", "0.1"]] {
        let arguments = [&["status"], arguments].concat();
        let running = crate::common::Running::start(pair.found_by(abey(&arguments)));
        await_that("three looks", || running.out_so_far().matches(NIC).count() >= 3);
        running.signal(nix::sys::signal::Signal::SIGINT);
        let done = running.end();
        assert_eq!((done.status.code(), done.errors.as_str()), (Some(0), ""), "{done:?}");
        assert!(!done.out.contains('\x1b'), "nothing of a terminal's: {done:?}");
    }
    for (wrong, said) in [("0", "0.1 to 60"), ("61", "0.1 to 60"), ("fast", "fast")] {
        pair.abey(&["status", "--watch", wrong]).assert_refused(2, &[said]);
    }
    pair.abey(&["status", "--watch", "1", "--json"]).assert_status(2);
}

#[test]
fn a_watch_that_user_reads_any_more_ends() {
    let pair = Pair::start(1, "suspend20");
    let mut command = pair.found_by(abey(&["status", "--watch", "0.1", NIC]));
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().expect("started");
    let mut first = [0; 16];
    std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut first).expect("a look");
    drop(child.stdout.take());
    await_that("it ends", || child.try_wait().expect("wait").is_some());
    assert_eq!(child.wait().expect("ended").code(), Some(0));
}

#[test]
fn a_watch_on_a_terminal_uses_the_alternate_screen_until_q() {
    if !crate::common::has("script") {
        return;
    }
    let pair = Pair::start(1, "suspend20");
    let place = tempfile::tempdir().expect("directory");
    let (seen, line) = (place.path().join("seen"), format!("{} status --watch 0.1 {NIC}", env!("CARGO_BIN_EXE_abey")));
    let mut command = pair.found_by(std::process::Command::new("script"));
    command.args(["-qefc", &line]).arg(&seen).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null());
    let mut child = command.spawn().expect("script runs");
    let text = || std::fs::read_to_string(&seen).unwrap_or_default();
    await_that("two looks", || text().matches("q ends").count() >= 2);
    std::io::Write::write_all(child.stdin.as_mut().expect("piped"), b"q").expect("typed");
    await_that("it ends", || child.try_wait().expect("wait").is_some());
    assert_eq!(child.wait().expect("ended").code(), Some(0));
    let text = text();
    let (opened, closed) = (text.find("\x1b[?1049h"), text.rfind("\x1b[?1049l"));
    assert!(opened.zip(closed).is_some_and(|(opened, closed)| opened < closed), "{text:?}");
    assert!(text.contains(NIC), "{text:?}");
}

#[test]
fn one_datapath_is_shown_in_detail_by_nic_or_by_process() {
    let pair = Pair::start(2, "suspend20");
    pair.assert_traffic();
    let pid = std::process::id().to_string();
    let shown = pair.abey(&strs(&status(&[NIC])));
    let text = &shown.assert_status(0).out;
    for words in [
        &format!("(pid {pid}), mode suspend20, 10.0.0.2/24, up "),
        "0 us, budget 64, prefer",
        "napi/test-s",
        "counted: ",
        "in kernel%",
        "application  ",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!text.contains("memory:test-client"), "{text}");
    let both = pair.abey(&strs(&status(&["--pid", &pid, "--json"]))).assert_status(0).json();
    assert_eq!((both["rows"].clone(), both["datapaths"].as_array().map(Vec::len)), (json!([]), Some(2)));
    let one = pair.abey(&strs(&status(&[NIC, "--pid", &pid, "--json"]))).assert_status(0).json();
    let datapath = &one["datapaths"][0];
    assert_eq!((&datapath["mode"], &datapath["pid"]), (&json!("suspend20"), &json!(std::process::id())));
    assert_eq!(datapath["shards"].as_array().map(Vec::len), Some(2));
    let settings = &datapath["shards"][1]["settings"];
    assert_eq!((&settings["gro_flush_timeout_ns"], &settings["threaded"]), (&json!(20_000), &json!("no")));
    let service = datapath["threads"].as_array().expect("some").iter().filter(|one| one["role"] == "service");
    assert!(service.map(|one| one["cpu_ns"].as_u64()).all(|cpu| cpu.is_some()), "{datapath}");
    assert!(datapath["per_s"]["busy_polls"].as_f64().expect("a rate") > 0.0, "{datapath}");
}

#[test]
fn every_mode_is_set_while_traffic_flows() {
    let pair = Pair::start(1, "base");
    for mode in Mode::EXAMPLES {
        let done = pair.abey(&["set", NIC, "--mode", mode]);
        assert_eq!(done.assert_status(0).errors, "", "{mode}");
        assert!(done.out.lines().all(|line| line.starts_with(NIC)), "{done:?}");
        let wanted = mode.parse::<Mode>().expect("a mode").settings();
        assert_eq!(pair.settings(), [wanted.napi], "{mode}");
        assert_eq!(pair.server.epoll().busy_poll(), wanted.epoll, "{mode}");
        pair.assert_traffic();
    }
    let again = pair.abey(&["set", NIC, "--mode", Mode::EXAMPLES[Mode::EXAMPLES.len() - 1]]);
    assert_eq!(again.assert_status(0).out, format!("{NIC}: nothing to change\n"));
    let none = pair
        .client
        .napi_ids()
        .iter()
        .all(|napi| pair.client.settings(*napi).expect("there") == NapiSettings::default());
    assert!(none, "the other datapath is as it was");
}

#[test]
fn single_settings_of_one_instance_or_queue_are_set() {
    let pair = Pair::start(2, "defer20");
    let ids = pair.server.napi_ids();
    let (first, second) = (ids[0].to_string(), ids[1].to_string());
    let dry = pair.abey(&["set", NIC, "--napi", &second, "--gro-flush-timeout", "50us", "--dry-run"]);
    let line = format!("{NIC} NAPI {second}: gro-flush-timeout 20us -> 50us");
    assert_eq!(dry.assert_status(0).out, format!("{line} (not changed: dry run)\n"));
    assert_eq!(pair.settings()[1].gro_flush_timeout, Nanos::from_micros(20));
    let done = pair.abey(&["set", NIC, "--napi", &second, "--gro-flush-timeout", "50us"]);
    assert_eq!(done.assert_status(0).out, format!("{line}\n"));
    let json = pair.abey(&["set", NIC, "--queues", "0", "--threaded", "workqueue", "--json"]).assert_status(0).json();
    let row = json!({"pid": std::process::id(), "device": NIC, "napi": ids[0], "setting": "threaded", "before": "no", "after": "workqueue"});
    assert_eq!(json, json!({ "rows": [row] }));
    pair.assert_traffic();
    // A mode for one instance does not change the settings of the whole datapath, and a message reports this.
    let one = pair.abey(&["set", NIC, "--napi", &first, "--mode", "suspend30"]);
    assert!(one.assert_status(0).errors.contains("whole datapath"), "{one:?}");
    assert_eq!(pair.settings()[0], "suspend30".parse::<Mode>().expect("a mode").settings().napi);
    assert_eq!(pair.server.epoll().busy_poll(), None);
    let file = pair.directory.path().join("mine.toml");
    fs::write(&file, "[napi]\nhold = \"70us-timer\"\n").expect("written");
    pair.abey(&["set", NIC, "--settings", file.to_str().expect("UTF-8")]).assert_status(0);
    let hold70: Mode = "hold70-timer".parse().expect("a mode");
    assert_eq!(pair.settings(), [hold70.settings().napi, hold70.settings().napi]);
    pair.assert_traffic();
}

#[test]
fn bad_input_is_refused_with_one_sentence_and_changes_nothing() {
    let pair = Pair::start(1, "base");
    let pid = std::process::id().to_string();
    let set: [(i32, &[&str], &[&str]); 16] = [
        (2, &["memory:missing", "--mode", "base"], &["memory:missing", "abey status"]),
        (2, &["--pid", "4194303", "--mode", "base"], &["no process 4194303"]),
        (2, &["--pid", "1", "--mode", "base"], &["process 1", "no datapath"]),
        (2, &["--pid", &pid, "--mode", "base"], &["several", NIC, "memory:test-client"]),
        (2, &[NIC, "--pid", "1", "--mode", "base"], &["process 1", "no datapath", NIC]),
        (2, &[NIC], &["nothing to set"]),
        (2, &[NIC, "--mode", "warp9"], &["warp9"]),
        (2, &[NIC, "--napi", "99", "--mode", "base"], &["no NAPI 99", NIC]),
        (2, &[NIC, "--queues", "9", "--mode", "base"], &["queue 9", NIC]),
        (2, &[NIC, "--irq-suspend-timeout", "20ms"], &["without deferral"]),
        (2, &[NIC, "--mode", "defer50", "--irq-suspend-timeout", "50us"], &["longer than gro-flush-timeout"]),
        (2, &[NIC, "--defer-hard-irqs", "2147483648"], &["out of range"]),
        (2, &[NIC, "--gro-flush-timeout", "5"], &["unit"]),
        (2, &[NIC, "--threaded", "maybe"], &["maybe"]),
        (2, &[NIC, "--mode", "base", "--netns", "x"], &["--netns"]),
        (2, &["--restore", "--pid", &pid], &["--restore"]),
    ];
    for (code, arguments, words) in set {
        for more in [&[][..], &["--dry-run"]] {
            let refused = pair.abey(&[&["set"], arguments, more].concat());
            if more.is_empty() {
                refused.assert_refused(code, words);
            } else {
                refused.assert_sentence(code, &[]);
            }
            assert_eq!(pair.settings(), [NapiSettings::default()], "{arguments:?}");
        }
    }
    pair.abey(&["status", "memory:missing"]).assert_refused(2, &["memory:missing"]);
    // Process 1 would do for all datapaths: it is every server's ancestor.
    let mut other = std::process::Command::new("sleep").arg("600").spawn().expect("sleep");
    let stranger = other.id().to_string();
    pair.abey(&["status", NIC, "--pid", &stranger]).assert_refused(2, &[&format!("process {stranger}")]);
    other.kill().expect("killed");
    other.wait().expect("ended");
    pair.abey(&["status", NIC, "--netns", "x"]).assert_refused(2, &["--netns"]);
    pair.assert_traffic();
}

#[test]
fn a_datapath_that_does_not_answer_is_reported_and_blocks_nothing() {
    let pair = Pair::start(1, "base");
    // This socket listens and never accepts, as that of a stopped process does.
    let stopped = UnixListener::bind(pair.directory.path().join("4000001-0.sock")).expect("bound");
    let dead = pair.directory.path().join("4000002-0.sock");
    drop(UnixListener::bind(&dead).expect("bound"));
    let listed = pair.abey(&strs(&status(&[])));
    assert!(listed.assert_status(0).out.contains("does not answer"), "{listed:?}");
    assert!(listed.out.contains(NIC) && !dead.exists());
    pair.abey(&["set", NIC, "--defer-hard-irqs", "3"]).assert_status(0);
    drop(stopped);
}

#[test]
fn another_user_gets_a_message_with_the_owner_or_the_directory() {
    if !crate::common::is_root() {
        return;
    }
    let pair = Pair::start(1, "base");
    let Some(unprivileged) = UnprivilegedUser::new() else { return };
    let as_user = |directory: Option<&Path>, arguments: &[&str]| {
        let mut command = unprivileged.command();
        command.args(arguments).env_remove("XDG_RUNTIME_DIR").env_remove(DIRECTORY_VARIABLE);
        command.envs(directory.map(|directory| (DIRECTORY_VARIABLE, directory)));
        finish(command)
    };
    let pid = std::process::id().to_string();
    let set = ["set", NIC, "--mode", "suspend20"];
    as_user(None, &set).assert_refused(3, &["XDG_RUNTIME_DIR"]);
    as_user(Some(pair.directory.path()), &set).assert_refused(3, &["Permission denied"]);
    let empty = tempfile::tempdir().expect("a directory");
    fs::set_permissions(empty.path(), fs::Permissions::from_mode(0o755)).expect("set");
    as_user(Some(empty.path()), &["set", "--pid", &pid, "--mode", "suspend20"]).assert_refused(3, &["user 0"]);
    // Even with a directory and a socket that every user may open, the datapath does not answer.
    fs::set_permissions(pair.directory.path(), fs::Permissions::from_mode(0o755)).expect("set");
    for entry in fs::read_dir(pair.directory.path()).expect("readable") {
        fs::set_permissions(entry.expect("an entry").path(), fs::Permissions::from_mode(0o666)).expect("set");
    }
    as_user(Some(pair.directory.path()), &set).assert_refused(3, &["user 0"]);
    let python = Path::new("/usr/bin/python3");
    if !python.is_file() {
        eprintln!("skipped in part: {} is not installed", python.display());
    } else {
        // A client that does not check the peer's user is disconnected without an answer.
        let ask = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); \
                   s.sendall(b'{\"version\":1,\"request\":\"status\"}\\n'); print(len(s.recv(9)))";
        let mut rude = Command::new("setpriv");
        rude.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(python).args(["-c", ask]);
        rude.arg(pair.control[1].path());
        let out = finish(rude);
        let turned_away = out.out == "0\n" || out.errors.contains("reset") || out.errors.contains("Broken pipe");
        assert!(turned_away, "{out:?}");
    }
    assert_eq!(pair.settings(), [NapiSettings::default()]);
    pair.abey(&set).assert_status(0);
}
