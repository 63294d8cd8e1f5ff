//! Texts that a user reads, held as snapshots: the help of every command, and what bad input is answered with.
//!
//! After a deliberate change: `INSTA_UPDATE=always cargo test -p abey --test command messages::`, then read the difference.

use std::process::Command;

use crate::common::ABEY;

/// Commands that have subcommands of their own.
const NESTED: [(&str, &[&str]); 4] = [
    ("generate", &["man", "completions"]),
    ("load", &["memcached", "redis", "http", "rr"]),
    ("serve", &["kv", "rr"]),
    ("sim", &["fit", "timeline"]),
];

const COMMANDS: [&str; 14] = [
    "apply",
    "bench",
    "calibrate",
    "dump",
    "exporter",
    "generate",
    "load",
    "plan",
    "run",
    "serve",
    "set",
    "sim",
    "status",
    "top",
];

/// Runs the command without a terminal and without the caller's settings. Answers what it printed, and its exit status.
fn abey(arguments: &[&str]) -> (String, Option<i32>) {
    let output = Command::new(ABEY)
        .args(arguments)
        .env_remove("COLUMNS")
        .env_remove("ABEY_LIBRARY")
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .output()
        .expect("abey starts");
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("text is UTF-8")).concat();
    (text, output.status.code())
}

/// The devices of the machine that runs the test are none of the message's text.
fn without_devices(text: &str) -> String {
    match text.split_once("the devices are ") {
        Some((before, _)) => format!("{before}the devices are [DEVICES]\n"),
        None => text.to_owned(),
    }
}

fn help(name: &str, arguments: &[&str]) {
    let (text, status) = abey(arguments);
    assert_eq!(status, Some(0), "{arguments:?}: {text}");
    insta::assert_snapshot!(name, text);
}

#[test]
fn help_of_every_command() {
    help("help", &["--help"]);
    for command in COMMANDS.into_iter().chain(["tune"]) {
        help(&format!("help-{command}"), &[command, "--help"]);
    }
    for (command, nested) in NESTED {
        for subcommand in nested {
            help(&format!("help-{command}-{subcommand}"), &[command, subcommand, "--help"]);
        }
    }
}

#[test]
fn the_list_of_commands_is_complete() {
    let (text, _) = abey(&["help"]);
    let listed = text.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let listed = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    for name in listed.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help") {
        assert!(COMMANDS.contains(&name) || name == "tune", "`abey {name} --help` has no snapshot");
    }
}

/// Input that is refused before anything is changed, with and without privileges.
const BAD_INPUT: [&[&str]; 33] = [
    &["apply", "nosuch.toml"],
    &["bench", "--loads", "20q"],
    &["bench", "--modes", "foo"],
    &["bench", "--modes", "base", "--loads", "20k", "--reps", "0"],
    &["calibrate", "--world", "sim"],
    &["dump", "--netns", "nosuch"],
    &["load", "memcached", "127.0.0.1"],
    &["load", "memcached", "127.0.0.1:1"],
    &["load", "memcached", "127.0.0.1:1", "--rate", "fast"],
    &["plan"],
    &["plan", "--load", "400k", "--p99", "250"],
    &["plan", "--load", "400k", "--p99", "250us", "--profile", "nosuch"],
    &["run", "--mode", "base", "--world", "both", "--", "true"],
    &["run", "--mode", "suspend", "--", "true"],
    &["run", "--mode", "suspend20", "--", "/nonexistent"],
    &["run", "--mode", "suspend20", "--dev", "nosuch", "--", "true"],
    &["run", "--mode", "suspend20", "--nic", "memory:x", "--", "true"],
    &["run", "--mode", "workqueue", "--", "true"],
    &["run", "--mode", "hold20", "--", "true"],
    &["run", "--settings", "nosuch.toml", "--", "true"],
    &["run", "--world", "datapath", "--mode", "base", "--", "true"],
    &["serve", "kv", "--nic", "af_xdp:nosuch"],
    &["serve", "kv", "--nic", "foo:bar"],
    &["serve", "kv", "--nic", "tap:nosuch"],
    &["set", "nosuch", "--mode", "base"],
    &["set", "--napi", "1"],
    &["set", "memory:nosuch", "--mode", "base"],
    &["sim", "--reference", "foo"],
    &["sim", "nosuch.toml"],
    &["status", "memory:nosuch"],
    &["status", "nosuch"],
    &["tune"],
    &["tune", "nosuch", "--goal", "p99=250us"],
];

#[test]
fn bad_input() {
    let mut text = String::new();
    for arguments in BAD_INPUT {
        let (answer, status) = abey(arguments);
        assert_ne!(status, Some(0), "{arguments:?} is refused: {answer}");
        text += &format!(
            "$ abey {}\n{}[exit status {}]\n\n",
            arguments.join(" "),
            without_devices(&answer),
            status.unwrap_or(-1)
        );
    }
    insta::assert_snapshot!("bad-input", text);
}

/// Files with an error that the reference pages name, and the command that reads each.
const BAD_FILES: [(&str, &[&str], &str); 8] = [
    (
        "irq-suspend-timeout without deferral",
        &["run", "--settings", "FILE", "--", "true"],
        "[napi]\nirq-suspend-timeout = \"20ms\"\n",
    ),
    (
        "a settings file with an unknown key",
        &["run", "--settings", "FILE", "--", "true"],
        "[napi]\ndefer-hard-irq = 100\n",
    ),
    (
        "a settings file with a time without a unit",
        &["run", "--settings", "FILE", "--", "true"],
        "[napi]\ndefer-hard-irqs = 100\ngro-flush-timeout = \"20\"\n",
    ),
    ("a scenario with an unknown key", &["sim", "FILE"], "modes = [\"base\"]\nlaod = \"60k\"\n"),
    (
        "a policy with an unknown key",
        &["apply", "FILE", "--dry-run"],
        "version = 1\n[[device]]\nname = \"lo\"\nmod = \"base\"\n",
    ),
    (
        "a policy with an unknown mode",
        &["apply", "FILE", "--dry-run"],
        "version = 1\n[[device]]\nname = \"lo\"\nmode = \"turbo\"\n",
    ),
    ("a policy without a version", &["apply", "FILE", "--dry-run"], "[[device]]\nname = \"lo\"\nmode = \"base\"\n"),
    (
        "a policy with two rules for one queue",
        &["apply", "FILE", "--dry-run"],
        "version = 1\n[[device]]\nname = \"lo\"\n[[device.queues]]\nqueues = \"0\"\nmode = \"base\"\n\
         [[device.queues]]\nqueues = \"0\"\nmode = \"defer50\"\n",
    ),
];

#[test]
fn bad_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("file.toml");
    let path = path.to_str().expect("the path is UTF-8");
    let mut text = String::new();
    for (title, arguments, content) in BAD_FILES {
        std::fs::write(path, content).expect("the file is written");
        let replaced: Vec<&str> =
            arguments.iter().map(|argument| if *argument == "FILE" { path } else { argument }).collect();
        let (answer, status) = abey(&replaced);
        assert_ne!(status, Some(0), "{title}: {answer}");
        text += &format!(
            "# {title}\n$ abey {}\n{}[exit status {}]\n\n",
            arguments.join(" "),
            without_devices(&answer.replace(path, "FILE")),
            status.unwrap_or(-1)
        );
    }
    insta::assert_snapshot!("bad-files", text);
}
