//! `abey load redis` and `abey load http` against the programs as they are installed.

#[allow(dead_code, reason = "this file uses its part")]
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::serving::{output, stderr};
use serde_json::Value;

const REDIS: &str = "127.0.0.2";
const NGINX: &str = "127.0.0.3";

/// A program that is killed when this value is dropped.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the program on a free port of a loopback address that only its test uses, because another test could take the port
/// of a shared address in the meantime. Returns `None` and prints the reason if it is not installed.
fn start(program: &str, own: &str, arguments: impl Fn(u16) -> Vec<String>) -> Option<(Program, SocketAddr)> {
    let free = TcpListener::bind((own, 0)).expect("a port").local_addr().expect("an address");
    let mut command = Command::new(program);
    command.args(arguments(free.port())).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(child) = command.spawn() else {
        eprintln!("skipped: {program} is not installed");
        return None;
    };
    let program = Program(child);
    let end = Instant::now() + Duration::from_secs(120);
    while TcpStream::connect(free).is_err() {
        assert!(Instant::now() < end, "it does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    Some((program, free))
}

/// Runs a short load and returns its row.
fn load(protocol: &str, at: SocketAddr, more: &[&str]) -> Value {
    let at = at.to_string();
    let short = ["load", protocol, &at, "--rate", "2k", "--duration", "1s", "--warmup", "20ms", "--json"];
    let done = output(&[&short[..], more].concat());
    assert!(done.status.success(), "{}", stderr(&done));
    let document: Value = serde_json::from_slice(&done.stdout).expect("a document");
    document["rows"][0].clone()
}

#[test]
fn redis_answers_what_was_stored() {
    let words = |port: u16| {
        let port = port.to_string();
        ["--port", &port, "--save", "", "--bind", REDIS].map(str::to_owned).to_vec()
    };
    let Some((_server, at)) = start("redis-server", REDIS, words) else { return };
    let row = load("redis", at, &["--keys", "500", "--sets", "0.5", "--depth", "3"]);
    assert_eq!((&row["protocol"], &row["misses"], &row["errors"]), (&"redis".into(), &0.into(), &0.into()), "{row}");
    let count = |key: &str| row[key].as_u64().expect("a count");
    assert!(count("hits") > 50 && count("sets") > 50, "{row}");
    // A server of the other protocol is detected.
    let at = at.to_string();
    let done = output(&["load", "memcached", &at, "--keys", "10", "--duration", "100ms"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(stderr(&done).contains("another kind of server"), "{}", stderr(&done));
}

#[test]
fn nginx_serves_a_page_repeatedly() {
    let place = tempfile::tempdir().expect("a directory");
    std::fs::write(place.path().join("index.html"), "abey\n").expect("a page");
    let words = |port: u16| {
        let root = place.path().display();
        let text = format!(
            "daemon off; master_process off; pid {root}/pid; error_log stderr; events {{}}\n\
             http {{ access_log off; keepalive_requests 1000000; client_body_temp_path {root}; proxy_temp_path {root};\n\
             fastcgi_temp_path {root}; uwsgi_temp_path {root}; scgi_temp_path {root};\n\
             server {{ listen {NGINX}:{port}; root {root}; }} }}"
        );
        let config = place.path().join("nginx.conf");
        std::fs::write(&config, text).expect("a file");
        vec!["-c".to_owned(), config.display().to_string()]
    };
    let Some((_server, at)) = start("nginx", NGINX, words) else { return };
    let row = load("http", at, &[]);
    assert_eq!((&row["protocol"], &row["errors"]), (&"http".into(), &0.into()), "{row}");
    assert!(row["count"].as_u64() > Some(100), "{row}");
    let at = at.to_string();
    for (path, status, said) in [("/nothing", 1, "404 Not Found"), ("nothing", 2, "is not a path")] {
        let done = output(&["load", "http", &at, "--path", path, "--duration", "100ms"]);
        assert_eq!(done.status.code(), Some(status), "{path}");
        assert!(stderr(&done).contains(said), "{}", stderr(&done));
    }
}
