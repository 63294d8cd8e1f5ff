//! Shared by the tests of `abey serve` and `abey load`: the command, and a server that is ended.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// Limit that only a hang reaches.
const HANG_LIMIT: Duration = Duration::from_secs(300);

pub(crate) fn abey(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_abey"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(crate) fn output(args: &[&str]) -> Output {
    abey(args).output().unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// `abey serve`; killed when dropped.
pub(crate) struct Serve {
    pub(crate) child: Child,
    out: BufReader<ChildStdout>,
    pub(crate) address: String,
}

impl Serve {
    pub(crate) fn start(args: &[&str]) -> Self {
        let mut child = abey(&[&["serve"], args].concat()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let Some(address) = line.strip_prefix("listening on ") else {
            let mut why = String::new();
            child.stderr.take().unwrap().read_to_string(&mut why).unwrap();
            panic!("{args:?}: {line:?} {why:?}");
        };
        let address = address.trim().to_owned();
        address.parse::<SocketAddr>().unwrap();
        Self { child, out, address }
    }

    /// Ends it with a signal, asserts exit status 0, and returns what it printed since it began to listen.
    pub(crate) fn end(self, by: &str) -> String {
        let (printed, errors) = self.end_with_errors(by);
        assert_eq!(errors, "");
        printed
    }

    /// Does the same as [`Self::end`], and returns standard error as well.
    pub(crate) fn end_with_errors(mut self, by: &str) -> (String, String) {
        signal(&self.child, by);
        assert_eq!(wait(&mut self.child).code(), Some(0), "SIG{by}");
        let (mut rest, mut errors) = (String::new(), String::new());
        self.out.read_to_string(&mut rest).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (rest, errors)
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn signal(child: &Child, name: &str) {
    // The standard library sends no signal but SIGKILL, and every shell has `kill`.
    let sent = Command::new("sh").args(["-c", &format!("kill -{name} {}", child.id())]).status().unwrap();
    assert!(sent.success());
}

pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + HANG_LIMIT;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("the command did not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
