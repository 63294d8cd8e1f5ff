//! `abey exporter`: its metrics are checked with promtool and scraped by a real Prometheus. Also the dashboard's queries, and the
//! exporter without privileges.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{
    ABEY, Finished, HANG_LIMIT, Running, SERVER, TestBed, UnprivilegedUser, abey, at, await_some, finish, has,
};
use abey_datapath::control::DIRECTORY_VARIABLE;
use abey_linux::netns::NetNs;
use abey_testbed::spawn::SpawnExt;
use nix::sys::signal::Signal;
use serde_json::Value;

#[test]
fn invalid_arguments_are_refused() {
    let holder = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = holder.local_addr().expect("an address").to_string();
    for (status, arguments, words) in [
        (2, &["--listen", "nowhere"][..], &["nowhere"][..]),
        (3, &["--collectors", "softnet", "--listen", "192.0.2.1:1"], &["192.0.2.1:1", "--listen"]),
        (3, &["--collectors", "softnet", "--listen", &taken], &[&taken, "in use"]),
        (2, &["--collectors", "cpu"], &["cpu", "softnet"]),
        (2, &["--dev", ""], &["--dev"]),
        (2, &["--once", "--interval", "1ms"], &["--interval 1ms"]),
        (2, &["--once", "--netns", "abey-no-such"], &["ip netns"]),
        (2, &["--once", "--textfile", "x"], &["--once"]),
        (3, &["--collectors", "softnet", "--textfile", "/abey-no-such/x"], &["/abey-no-such/x"]),
    ] {
        finish(abey(&[&["exporter"], arguments].concat())).assert_refused(status, words);
    }
}

/// Returns `abey exporter ARGUMENTS` in the server's namespace, with the control directory `datapaths`.
fn exporter(testbed: &TestBed, datapaths: &Path, arguments: &[&str]) -> Command {
    let mut command = testbed.command(ABEY);
    command.arg("exporter").args(arguments).env(DIRECTORY_VARIABLE, datapaths);
    command
}

#[test]
fn promtool_reports_no_problem_with_the_metrics() {
    let Some(testbed) = TestBed::new(2) else { return };
    if !has("promtool") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let done = finish(exporter(&testbed, directory.path(), &["--once", "--per-queue", "--interval", "100ms"]));
    assert_eq!((done.status.code(), done.errors.as_str()), (Some(0), ""), "{done:?}");
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = promtool.spawn().expect("promtool runs");
    promtool.stdin.take().expect("piped").write_all(done.out.as_bytes()).expect("written");
    let said = promtool.wait_with_output().expect("it ends");
    let said_text = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.success() && said.stdout.is_empty() && said_text.is_empty(), "{said_text}\n{}", done.out);
    for collector in ["napi", "polls", "interrupts", "softnet", "datapath"] {
        let line = format!("abey_scrape_collector_success{{collector=\"{collector}\"}} 1\n");
        assert!(done.out.contains(&line), "{}", done.out);
    }
    assert!(done.out.contains("abey_queue_info{world=\"linux\","), "{}", done.out);
}

fn value(done: &Finished, row: &str) -> Option<f64> {
    let line = done.out.lines().find_map(|line| line.strip_prefix(row))?;
    line.trim().parse().ok()
}

#[test]
fn unreadable_metrics_are_reported_and_the_others_are_served() {
    let Some(testbed) = TestBed::new(1) else { return };
    let Some(unprivileged) = UnprivilegedUser::new() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let succeeded = |collector: &str| format!("abey_scrape_collector_success{{collector=\"{collector}\"}}");
    let mut command = unprivileged.command();
    command.in_netns(&testbed.server);
    command.args(["exporter", "--once", "--interval", "50ms", "--collectors", "napi,polls"]);
    let done = finish(command);
    done.assert_status(0);
    assert_eq!(
        (value(&done, &succeeded("napi")), value(&done, &succeeded("polls"))),
        (Some(1.0), Some(0.0)),
        "{done:?}"
    );
    assert!(done.out.contains("abey_napi_instances{"), "{done:?}");
    assert!(!done.out.contains("abey_napi_polls_total"), "what is not counted is left out: {done:?}");
    assert_eq!(done.errors.lines().count(), 1, "{done:?}");
    assert!(done.errors.contains("polls") && done.errors.contains("CAP_BPF"), "{done:?}");

    // These two capabilities suffice.
    let mut command = testbed.command("setpriv");
    let caps = "+bpf,+perfmon";
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps", caps, "--ambient-caps", caps]);
    command.arg("--bounding-set=-all,+bpf,+perfmon");
    let program = unprivileged.command();
    let program = program.get_args().last().expect("the command's copy").to_owned();
    command.arg("--").arg(program).args(["exporter", "--once", "--interval", "50ms", "--collectors", "napi,polls"]);
    command.env(DIRECTORY_VARIABLE, directory.path()).current_dir("/");
    let done = finish(command);
    assert_eq!((done.status.code(), done.errors.as_str()), (Some(0), ""), "{done:?}");
    assert_eq!(value(&done, &succeeded("polls")), Some(1.0), "{done:?}");
    assert!(done.out.contains("abey_napi_polls_total{"), "{done:?}");
}

/// Sends an HTTP request and returns status and body of the answer.
fn http(address: SocketAddr, request: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(HANG_LIMIT)).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    http(address, &format!("GET {path} HTTP/1.0\r\n\r\n"))
}

/// Waits until an exporter on a free port serves, and returns its address.
fn address(running: &Running) -> SocketAddr {
    await_some("it does not serve", || {
        let said = running.errors_so_far();
        let (_, rest) = said.split_once("http://")?;
        rest.split_once("/metrics")?.0.parse().ok()
    })
}

#[test]
fn it_answers_requests_and_idle_connections_do_not_block_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let notices = directory.path().join("notify");
    let manager = UnixDatagram::bind(&notices).expect("a socket");
    manager.set_read_timeout(Some(HANG_LIMIT)).expect("set");
    let mut command = abey(&["exporter", "--listen", "127.0.0.1:0", "--collectors", "softnet"]);
    command.env("NOTIFY_SOCKET", &notices);
    let running = Running::start(command);
    let mut notice = [0; 64];
    let count = manager.recv(&mut notice).expect("a notice");
    assert_eq!(&notice[..count], b"READY=1\n");
    let address = address(&running);
    let (status, text) = get(address, "/metrics").expect("an answer");
    assert_eq!(status, 200);
    assert!(text.contains("\nabey_softnet_packets_total ") && text.contains("process_cpu_seconds_total"), "{text}");
    assert_eq!(get(address, "/").map(|(status, text)| (status, text.contains("/metrics"))), Some((200, true)));
    assert_eq!(get(address, "/nothing").map(|(status, _)| status), Some(404));
    let posted = http(address, "POST /metrics HTTP/1.0\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(posted.map(|(status, _)| status), Some(405));
    // More idle connections than it serves at a time.
    let silent: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(address).expect("connected")).collect();
    assert_eq!(get(address, "/metrics").map(|(status, _)| status), Some(200));
    drop(silent);
    running.signal(Signal::SIGTERM);
    running.end().assert_status(0);
    let count = manager.recv(&mut notice).expect("a notice");
    assert_eq!(&notice[..count], b"STOPPING=1\n");
}

#[test]
fn a_text_file_is_rewritten_and_removed_at_the_end() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("abey.prom");
    let mut command = abey(&["exporter", "--interval", "20ms", "--collectors", "softnet", "--textfile"]);
    command.arg(&path);
    let running = Running::start(command);
    let read = || std::fs::read_to_string(&path).ok().filter(|text| text.contains("abey_softnet_packets_total"));
    let cpu = |text: &str| text.lines().find(|line| line.starts_with("process_cpu")).map(str::to_owned);
    let first = cpu(&await_some("no file", read));
    await_some("the file is not written again", || (cpu(&read()?) != first).then_some(()));
    running.signal(Signal::SIGTERM);
    running.end().assert_status(0);
    assert_eq!(std::fs::read_dir(&directory).expect("a directory").count(), 0);
}

const EXPORTER: &str = "127.0.0.1:9736";
const PROMETHEUS: &str = "127.0.0.1:9090";

/// A load on the kernel's instances under `suspend20`, one on a datapath, the exporter, and a Prometheus that scrapes it.
struct Scraped {
    testbed: TestBed,
    _directory: tempfile::TempDir,
    _running: Vec<Running>,
}

impl Scraped {
    fn start() -> Option<Self> {
        let testbed = TestBed::new(2)?;
        if !has("prometheus") {
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("prometheus.yml");
        let config = format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\n\
             scrape_configs: [{{job_name: abey, static_configs: [{{targets: ['{EXPORTER}']}}]}}]\n"
        );
        std::fs::write(&path, config).expect("written");
        let nic = format!("memory:abey-exporter-{}", std::process::id());
        let kv = at(11_211).to_string();
        let serve = [ABEY, "serve", "kv", "--listen", &kv];
        let mut running = vec![Running::start(testbed.run_mode("suspend20", &serve))];
        let mut start = |mut command: Command| {
            command.env(DIRECTORY_VARIABLE, directory.path());
            running.push(Running::start(command));
        };
        let abey = |netns: &NetNs, arguments: &[&str]| {
            let mut command = Command::new(ABEY);
            command.args(arguments).stdin(Stdio::null()).in_netns(netns);
            command
        };
        start(abey(&testbed.server, &["serve", "kv", "--nic", &nic, "--mode", "suspend20"]));
        start(exporter(&testbed, directory.path(), &["--listen", EXPORTER, "--per-queue"]));
        let mut prometheus = testbed.command("prometheus");
        prometheus.arg("--config.file").arg(&path).arg("--storage.tsdb.path").arg(directory.path().join("data"));
        prometheus.args(["--web.listen-address", PROMETHEUS, "--log.level", "error"]);
        start(prometheus);
        await_some("the server does not listen", || {
            testbed.client.run(|| TcpStream::connect((SERVER, 11_211)).ok()).ok()?
        });
        let common = ["--rate", "2k", "--duration", "600s", "--keys", "100"];
        start(abey(&testbed.client, &[&["load", "memcached", &kv], &common[..]].concat()));
        start(abey(&testbed.server, &[&["load", "memcached", "10.0.0.1:11211", "--nic", &nic], &common[..]].concat()));
        Some(Self { testbed, _directory: directory, _running: running })
    }

    /// Returns the rows of a query's result, or the error.
    fn query(&self, expression: &str) -> Result<Vec<Value>, String> {
        let ask =
            || get(PROMETHEUS.parse().expect("an address"), &format!("/api/v1/query?query={}", escaped(expression)));
        let (_, body) = self.testbed.server.run(ask).expect("enter").ok_or("Prometheus does not answer")?;
        let answer: Value = serde_json::from_str(&body).map_err(|error| format!("{error}: {body}"))?;
        match answer["data"]["result"].as_array() {
            Some(rows) => Ok(rows.clone()),
            None => Err(format!("{answer}")),
        }
    }
}

fn escaped(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}

fn dashboard() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/grafana/abey.json");
    serde_json::from_str(&std::fs::read_to_string(path).expect("the dashboard")).expect("JSON")
}

/// The queries of all panels, with the panels' titles.
fn queries(dashboard: &Value) -> Vec<(String, String)> {
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    let of_panel = |panel: &Value| {
        let title = panel["title"].as_str().expect("a title").to_owned();
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        targets.into_iter().map(move |target| (title.clone(), target["expr"].as_str().expect("a query").to_owned()))
    };
    panels.flat_map(|panel| of_panel(panel).collect::<Vec<_>>()).collect()
}

#[test]
fn the_dashboard_has_unique_panels_and_known_variables() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut ids: Vec<u64> = panels.iter().map(|panel| panel["id"].as_u64().expect("an ID")).collect();
    ids.sort_unstable();
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "two panels have one ID");
    let variables: Vec<&str> = dashboard["templating"]["list"]
        .as_array()
        .expect("variables")
        .iter()
        .map(|variable| variable["name"].as_str().expect("a name"))
        .collect();
    assert_eq!(variables, ["datasource", "world", "device", "mode"]);
    for (title, query) in queries(&dashboard) {
        let names = query.split('$').skip(1).map(|rest| rest.split(|c: char| c != '_' && !c.is_alphanumeric()).next());
        for name in names.flatten() {
            assert!(name == "__rate_interval" || variables.contains(&name), "{title}: no variable ${name} in {query}");
        }
    }
}

#[test]
fn every_query_of_the_dashboard_has_data_from_a_real_prometheus() {
    let Some(scraped) = Scraped::start() else { return };
    let queries: BTreeMap<String, String> = queries(&dashboard())
        .into_iter()
        .map(|(title, query)| {
            let filled = ["$world", "$device", "$mode"].iter().fold(query, |query, name| query.replace(name, ".*"));
            (filled.replace("$__rate_interval", "4s"), title)
        })
        .collect();
    assert!(queries.len() >= 20, "{queries:?}");
    let mut missing: Vec<(&String, &String)> = queries.iter().collect();
    let since = std::time::Instant::now();
    while !missing.is_empty() {
        missing.retain(|(query, _)| !matches!(scraped.query(query), Ok(rows) if !rows.is_empty()));
        if since.elapsed() > HANG_LIMIT {
            let (query, title) = missing[0];
            panic!("{title}: no data for {query}: {:?}; {} more", scraped.query(query), missing.len() - 1);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    // The load shows in the metrics of both worlds.
    for (query, least) in [
        (r#"sum(rate(abey_napi_packets_total{world="linux",mode="suspend"}[4s]))"#, 100.0),
        (r#"sum(rate(abey_napi_packets_total{world="datapath",mode="suspend"}[4s]))"#, 100.0),
        (r#"sum(rate(abey_napi_suspensions_total{world="linux"}[4s]))"#, 1.0),
        (r#"sum(rate(abey_queue_packets_total{world="linux"}[4s]))"#, 100.0),
        (r#"sum(rate(abey_datapath_cpu_seconds_total{context="application"}[4s]))"#, 0.000_1),
    ] {
        await_some(&format!("too little for {query}"), || {
            let rows = scraped.query(query).ok()?;
            let value: f64 = rows.first()?["value"][1].as_str()?.parse().ok()?;
            (value >= least).then_some(())
        });
    }
    let up = scraped.query("up").expect("an answer");
    assert_eq!(up[0]["value"][1], "1", "{up:?}");
}
