//! `abey top` as plain text, as JSON, and on a terminal.

use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::common::{ABEY, TestBed, abey, await_that, finish, send};
use nix::sys::signal::Signal;
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

const QUICK: [&str; 2] = ["--interval", "100ms"];

#[test]
fn invalid_arguments_are_wrong_usage() {
    for (arguments, words) in [
        (&["--batch", "--interval", "1ms"][..], &["--interval 1ms", "100ms"][..]),
        (&["--batch", "--sort", "size"], &["size", "packets"]),
        (&["--batch", "--dev", ""], &["--dev"]),
        (&["--batch", "-n", "0"], &["0"]),
        (&["--batch", "--netns", "abey-no-such"], &["ip netns"]),
        (&[], &["--batch"]),
    ] {
        let mut command = abey(&[&["top"], arguments].concat());
        command.stdin(Stdio::null());
        finish(command).assert_refused(2, words);
    }
}

#[test]
fn samples_are_printed_as_text_and_as_json() {
    let Some(testbed) = TestBed::new(2) else { return };
    let top = |arguments: &[&str]| {
        let mut command = testbed.command(ABEY);
        command.arg("top").args(QUICK).args(arguments);
        let done = finish(command);
        done.assert_status(0);
        done
    };
    let text = top(&["--batch", "-n", "2", "--sort", "napi"]).out;
    let titles = text.lines().filter(|line| line.starts_with("DEVICE"));
    assert_eq!(titles.count(), 2, "{text}");
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with(&testbed.device.name)).collect();
    assert_eq!(rows.len(), 4, "{text}");
    let ids: Vec<u32> =
        rows.iter().map(|row| row.split_whitespace().nth(2).expect("ID").parse().expect("ID")).collect();
    assert_eq!(ids[..2], testbed.napi_ids(), "{text}");
    let reversed = top(&["--batch", "-n", "1", "--sort", "napi", "--reverse"]).out;
    let first = reversed.lines().find(|line| line.starts_with(&testbed.device.name)).expect("a row");
    assert!(first.contains(&ids[1].to_string()), "{reversed}");
    assert!(!top(&["--batch", "-n", "1", "--filter", "no-such"]).out.contains(&testbed.device.name));

    // Tests that run at the same time have datapaths and devices of their own.
    let document = top(&["--json", "-n", "2", "--dev", &testbed.device.name]).json();
    let rows = document["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 4, "{document}");
    assert_eq!((&rows[0]["look"], &rows[3]["look"]), (&1.into(), &2.into()));
    assert_eq!((&rows[0]["mode"], &rows[0]["world"]), (&"base".into(), &"linux".into()));
    assert!(rows[0]["packets_per_s"].is_f64() && rows[0]["interrupts_per_s"].is_null(), "{document}");
}

/// `abey top` on a pseudo-terminal that the test reads.
struct Terminal {
    child: Child,
    keys: std::fs::File,
    slave: OwnedFd,
    seen: Arc<Mutex<vt100::Parser>>,
}

impl Terminal {
    fn start(mut command: Command, rows: u16, columns: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&master).expect("granted");
        unlockpt(&master).expect("unlocked");
        let name = ptsname(&master, Vec::new()).expect("a name");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = rustix::fs::open(name.as_c_str(), flags, Mode::empty()).expect("its other end");
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&slave, size).expect("a size");
        let end = || Stdio::from(slave.try_clone().expect("shared"));
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("it starts");
        let [high, wide] = [rows, columns].map(|size| NonZero::new(size).expect("a size"));
        let seen = Arc::new(Mutex::new(vt100::Parser::new(high, wide, 0)));
        let mut reader = std::fs::File::from(master.try_clone().expect("shared"));
        let parser = Arc::clone(&seen);
        // The thread ends when the last descriptor of the other end is closed.
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                parser.lock().expect("no panic").process(&bytes[..count]);
            }
        });
        Self { child, keys: master.into(), slave, seen }
    }

    fn type_keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("typed");
    }

    fn text(&self) -> String {
        self.seen.lock().expect("no panic").screen().contents()
    }

    #[track_caller]
    fn await_text(&self, what: &str, holds: impl Fn(&str) -> bool) {
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            await_that(what, || holds(&self.text()));
        }));
        assert!(found.is_ok(), "{what}: the screen is\n{}", self.text());
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.slave).expect("attributes").local_modes.contains(LocalModes::ICANON)
    }

    /// Asserts that `abey top` exited with 0 and restored the terminal.
    fn assert_restored(mut self) {
        let status = self.child.wait().expect("waited for");
        assert!(status.success(), "{status}: {}", self.text());
        assert!(!self.is_raw(), "the terminal is still raw");
        await_that("the first screen is not back", || {
            let parser = self.seen.lock().expect("no panic");
            !parser.screen().alternate_screen() && !parser.screen().hide_cursor()
        });
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns `abey top` in the server's namespace, as the leader of the terminal's session.
fn top(testbed: &TestBed) -> Command {
    let mut command = testbed.command("setsid");
    command.args(["--ctty", ABEY, "top"]).args(QUICK).env("TERM", "xterm");
    command
}

#[test]
fn keys_sort_filter_pause_and_quit() {
    let Some(testbed) = TestBed::new(4) else { return };
    if !crate::common::has("setsid") {
        return;
    }
    let mut terminal = Terminal::start(top(&testbed), 24, 80);
    let device = testbed.device.name.clone();
    // A narrow screen truncates the name.
    let short: String = device.chars().take(7).collect();
    let ids = testbed.napi_ids();
    let order = |text: &str| -> Vec<u32> {
        let rows = text.lines().filter(|line| line.starts_with(&short));
        rows.filter_map(|line| line.split_whitespace().find_map(|word| word.parse().ok().filter(|id| ids.contains(id))))
            .collect()
    };
    terminal.await_text("no rows", |text| order(text).len() == 4 && text.contains("q quit"));
    assert!(terminal.is_raw());
    assert!(terminal.seen.lock().expect("no panic").screen().alternate_screen());
    // From the packets column to the NAPI ID column, then the reverse order.
    terminal.type_keys("<<<<<<");
    terminal.await_text("not sorted by number", |text| order(text) == ids);
    terminal.type_keys("r");
    terminal.await_text("not reversed", |text| order(text).iter().rev().eq(&ids));
    terminal.type_keys(&format!("/{}", ids[2]));
    terminal.await_text("the filter is not shown", |text| text.contains("Enter keeps"));
    terminal.await_text("not filtered", |text| order(text) == [ids[2]]);
    terminal.type_keys("\r");
    terminal.await_text("the filter is not kept", |text| text.contains(&format!("[/{}]", ids[2])));
    terminal.type_keys("p");
    terminal.await_text("not paused", |text| text.contains("paused"));
    terminal.type_keys("p++");
    terminal.await_text("no other interval", |text| text.contains("every 500ms") && !text.contains("paused"));
    terminal.type_keys("q");
    terminal.assert_restored();
}

#[test]
fn signals_leave_the_terminal_as_it_was() {
    let Some(testbed) = TestBed::new(1) else { return };
    if !crate::common::has("setsid") {
        return;
    }
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let terminal = Terminal::start(top(&testbed), 30, 120);
        terminal.await_text("no rows", |text| text.contains(&testbed.device.name[..6]) && text.contains("IRQ/s"));
        assert!(terminal.is_raw());
        send(terminal.child.id(), signal);
        terminal.assert_restored();
    }
    let mut terminal = Terminal::start(top(&testbed), 24, 80);
    terminal.await_text("no rows", |text| text.contains("q quit"));
    terminal.type_keys("\u{3}");
    terminal.assert_restored();
}
