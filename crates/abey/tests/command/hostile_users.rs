//! What other users put where root looks for datapaths: `/run/user/UID/abey`. The test has its own `/run`.

use std::fs;
use std::path::Path;

use crate::common::{ABEY, Running, has, is_root, unique};
use serde_json::Value;

/// Interpreter for the attacker, who is another user: one in a home directory could not be executed.
const PYTHON: &str = "/usr/bin/python3";

/// Sockets that accept connections and never answer, one that refuses them, a FIFO, a file, and a link to root's directory.
const ATTACKER: &str = r#"
import os, socket, time
os.mkdir("/run/user/65534/abey")
os.chdir("/run/user/65534/abey")
kept = []
for number in range(100):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"1-{number}.sock")
    listener.listen(8)
    kept.append(listener)
socket.socket(socket.AF_UNIX).bind("2-0.sock")
os.mkfifo("3-0.sock")
open("4-0.sock", "w").close()
os.symlink("/run/abey/control/root.sock", "5-0.sock")
os.mkdir("/run/user/65534/ready")
time.sleep(600)
"#;

const SCRIPT: &str = r#"
set -e
mount -t tmpfs none /run
mkdir -m 755 /run/user
for user in 65533 65534 65532; do mkdir -m 700 /run/user/$user; chown $user /run/user/$user; done
as() { setpriv --reuid="$1" --regid="$1" --clear-groups "${@:2}"; }
as 65533 touch /run/user/65533/abey
as 65532 ln -s /run/abey/control /run/user/65532/abey
setpriv --reuid=65534 --regid=65534 --clear-groups "$PYTHON" -c "$ATTACKER" &
attacker=$!
"$ABEY" serve kv --nic "$NIC" >serve.txt 2>&1 &
server=$!
trap 'kill $attacker $server' EXIT
until ! kill -0 $server || [ -d /run/user/65534/ready ] && ls /run/abey/control/*.sock >/dev/null 2>&1; do sleep 0.05; done
"$ABEY" status --json --interval 100ms >status.json 2>status.txt || echo "status: $?"
"$ABEY" set "$NIC" --mode defer50 --json >set.json 2>set.txt || echo "set: $?"
"$ABEY" status "$NIC" --json --interval 100ms >one.json 2>one.txt || echo "status of one: $?"
"$ABEY" exporter --once --interval 100ms --collectors datapath >metrics.txt 2>exporter.txt || echo "exporter: $?"
ls -1 /run/user/65534/abey | wc -l >count.txt
"#;

#[test]
fn directories_of_other_users_neither_fail_nor_delay_roots_commands() {
    if !is_root() || !has("unshare") || !has("setpriv") || !has("bash") || !Path::new(PYTHON).exists() {
        return;
    }
    let place = tempfile::tempdir().expect("directory");
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "bash", "-c", SCRIPT]);
    command.env("ABEY", ABEY).env("ATTACKER", ATTACKER).env("PYTHON", PYTHON).current_dir(place.path());
    let nic = format!("memory:{}", unique("hostile"));
    command.env("NIC", &nic);
    let ended = Running::start(command).end();
    let text = |name: &str| fs::read_to_string(place.path().join(name)).unwrap_or_default();
    let all = || ["status.txt", "set.txt", "one.txt", "serve.txt"].map(text).concat();
    assert_eq!((ended.status.code(), ended.out.as_str()), (Some(0), ""), "{ended:?} {}", all());

    let status: Value = serde_json::from_str(&text("status.json")).expect("a document");
    let datapaths = status["datapaths"].as_array().expect("a list");
    assert_eq!(datapaths.len(), 1, "{status}");
    assert_eq!(datapaths[0]["nic"], nic.as_str());
    let notes = status["notes"].as_array().expect("a list").iter().filter_map(Value::as_str);
    let about: Vec<&str> = notes.filter(|note| note.contains("user 65")).collect();
    assert_eq!(about.len(), 1, "one line for each user: {about:?}");
    assert!(
        about[0].contains("user 65534 has 6") && about[0].contains("control sockets without an answer"),
        "{about:?}"
    );
    let set: Value = serde_json::from_str(&text("set.json")).expect("a document");
    assert!(set["rows"].as_array().is_some_and(|rows| !rows.is_empty()), "{set}");
    let metrics = text("metrics.txt");
    let collector = metrics.lines().find(|line| line.starts_with("abey_scrape_collector_success")).unwrap_or_default();
    assert!(collector.ends_with(" 1") && metrics.contains(&nic), "{collector}: {}", text("exporter.txt"));
    assert_eq!(text("count.txt").trim(), "104", "root removes nothing there");
}
