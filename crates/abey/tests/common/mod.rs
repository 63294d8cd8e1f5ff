//! What the tests of the command share: a test network of their own, the command run in it, and what must be as before.

#![allow(dead_code, reason = "each test file uses its part")]

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use abey_delivery::{Mode, NapiSettings};
use abey_linux::device::{Device, device_named};
use abey_linux::features::set_features;
use abey_linux::library::{FILE_NAME, find_library};
use abey_linux::napi::napis;
use abey_linux::netlink::Netlink;
use abey_linux::netns::NetNs;
use abey_linux::probe::{NapiCapabilities, napi_capabilities};
use abey_linux::process;
use abey_linux::spawn::CommandPlace;
use abey_linux::veth::{End, create, keep_queues, set_up};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The command under test.
pub(crate) const ABEY: &str = env!("CARGO_BIN_EXE_abey");

/// How long anything that must happen may take. Nothing here depends on how long it does take.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Two namespaces without names, joined by a veth pair, and a directory for journals: nobody else meets them.
pub(crate) struct Bed {
    pub(crate) server: NetNs,
    pub(crate) client: NetNs,
    /// The server's device; its name is unique on the machine, as counting polls needs.
    pub(crate) device: Device,
    /// What the client's device is called.
    far: String,
    pub(crate) able: NapiCapabilities,
    journals: tempfile::TempDir,
}

/// The server's address.
pub(crate) const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 10, 1));
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 10, 2));

/// The server's address at a port, which is free: nobody else is in its namespace.
pub(crate) fn at(port: u16) -> SocketAddr {
    SocketAddr::new(SERVER, port)
}

/// A name of a device or namespace that nobody else has.
pub(crate) fn unique(prefix: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{prefix}{}n{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Whether this is root; says why not.
pub(crate) fn is_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("skipped: needs root to make network namespaces");
    }
    root
}

/// Whether a program is there; says why not.
pub(crate) fn has(program: &str) -> bool {
    // Daemons are often installed where only root's PATH looks.
    let found = which(program).is_some();
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}

/// Where a program is.
pub(crate) fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/bin", "/usr/sbin", "/usr/local/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|place| place.join(program)).find(|file| file.is_file())
}

/// `libabey.so`, which `cargo test --workspace` builds. That it is missing is a failure and no reason to skip: a test
/// run that has not got it would show nothing and look well.
pub(crate) fn library() -> PathBuf {
    find_library(Path::new(ABEY)).unwrap_or_else(|error| {
        panic!("{error}; `cargo test --workspace` builds it, `cargo test -p abey` alone does not")
    })
}

impl Bed {
    /// The test network with this many queues, or `None` with a printed reason.
    pub(crate) fn new(queues: u32) -> Option<Self> {
        if !is_root() {
            return None;
        }
        library();
        let (server, client) = (NetNs::create().expect("namespace"), NetNs::create().expect("namespace"));
        let bed = Self::between(server, client, queues);
        if !bed.able.suspend {
            eprintln!("skipped: this kernel has no IRQ suspension");
            return None;
        }
        Some(bed)
    }

    /// The pair between namespaces that are there.
    pub(crate) fn between(server: NetNs, client: NetNs, queues: u32) -> Self {
        let (near, far) = (unique("as"), unique("ac"));
        let (near_end, far_end) = (
            End { netns: &server, name: &near, address: (SERVER, 24) },
            End { netns: &client, name: &far, address: (CLIENT, 24) },
        );
        create(&near_end, &far_end, queues).expect("veth pair");
        if queues > 1 {
            keep_queues(&client).expect("txrehash off");
        }
        let mut netlink = Netlink::open(&server).expect("netlink");
        set_up(&mut netlink, "lo").expect("loopback");
        let device = device_named(&mut netlink, &near, "the test network").expect("the device just made");
        let able = napi_capabilities(&mut netlink).expect("probe");
        Self { server, client, device, far, able, journals: tempfile::tempdir().expect("directory") }
    }

    /// The client's device computes the checksums of what it sends, as one on a real wire would.
    pub(crate) fn with_checksums(self) -> Self {
        let mut netlink = Netlink::open(&self.client).expect("netlink");
        set_features(&mut netlink, &self.far, &[("tx-checksum-ip-generic", false)]).expect("checksums");
        self
    }

    /// The device, as what the datapath is run over.
    pub(crate) fn nic(&self) -> String {
        format!("af_xdp:{}", self.device.name)
    }

    /// What `abey status` knows of the datapaths on the device.
    pub(crate) fn datapaths(&self) -> Vec<serde_json::Value> {
        let mut command = self.command(ABEY);
        command.args(["status", "--json", "--interval", "10ms", &self.nic()]);
        let document: Option<serde_json::Value> = serde_json::from_str(&finish(command).out).ok();
        document.and_then(|document| document["datapaths"].as_array().cloned()).unwrap_or_default()
    }

    /// One of the TCP counters (`/proc/net/snmp`) of the server's kernel.
    pub(crate) fn kernel_tcp(&self, counter: &str) -> u64 {
        let read = || fs::read_to_string("/proc/thread-self/net/snmp").expect("the kernel's counters");
        let text = self.server.run(read).expect("namespace");
        let mut lines = text.lines().filter(|line| line.starts_with("Tcp:")).map(str::split_whitespace);
        let (mut names, mut values) = (lines.next().expect("names"), lines.next().expect("values"));
        let at = names.position(|name| name == counter).expect("a counter of this name");
        values.nth(at).expect("its value").parse().expect("a number")
    }

    /// A second pair between the same namespaces; returns the name of the server's device.
    pub(crate) fn second_device(&self) -> String {
        let (near, far) = (unique("at"), unique("ad"));
        let ip = |last| IpAddr::V4(Ipv4Addr::new(198, 18, 11, last));
        let near_end = End { netns: &self.server, name: &near, address: (ip(1), 24) };
        create(&near_end, &End { netns: &self.client, name: &far, address: (ip(2), 24) }, 1).expect("veth pair");
        near
    }

    /// The settings of every NAPI instance of the server's device.
    pub(crate) fn settings(&self) -> Vec<NapiSettings> {
        self.settings_of(self.device.ifindex)
    }

    pub(crate) fn settings_of(&self, ifindex: u32) -> Vec<NapiSettings> {
        let mut netlink = Netlink::open(&self.server).expect("netlink");
        napis(&mut netlink, Some(ifindex)).expect("list").iter().map(|napi| napi.settings()).collect()
    }

    pub(crate) fn napi_ids(&self) -> Vec<u32> {
        let mut netlink = Netlink::open(&self.server).expect("netlink");
        napis(&mut netlink, Some(self.device.ifindex)).expect("list").iter().map(|napi| napi.id).collect()
    }

    pub(crate) fn journals(&self) -> &Path {
        self.journals.path()
    }

    /// Whether the machine is as it was: the device has the kernel's defaults, and no journal says otherwise.
    pub(crate) fn is_as_before(&self) -> bool {
        let default = |one: &NapiSettings| *one == NapiSettings::default();
        let journals = fs::read_dir(self.journals()).expect("directory").count();
        self.settings().iter().all(default) && journals == 0
    }

    pub(crate) fn assert_as_before(&self) {
        assert!(self.is_as_before(), "{:?}, {:?}", self.settings(), fs::read_dir(self.journals()));
    }

    /// Whether every NAPI instance has the mode's settings.
    pub(crate) fn has_mode(&self, mode: &str) -> bool {
        let wanted = napi_settings(mode);
        self.settings().iter().all(|one| *one == wanted)
    }

    /// A program in the server's namespace.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = quiet(program);
        command.in_netns(&self.server);
        command
    }

    /// `abey SUBCOMMAND ...` in the server's namespace, with the journals of this test.
    pub(crate) fn abey(&self, subcommand: &str, arguments: &[&str]) -> Command {
        let mut command = self.command(ABEY);
        command.arg(subcommand).arg("--journals").arg(self.journals()).args(arguments);
        command
    }

    /// `abey run OPTIONS -- PROGRAM`.
    pub(crate) fn run(&self, options: &[&str], program: &[&str]) -> Command {
        let mut command = self.abey("run", options);
        command.arg("--").args(program);
        command
    }

    /// `abey run --mode MODE --dev DEVICE -- PROGRAM`.
    pub(crate) fn run_mode(&self, mode: &str, program: &[&str]) -> Command {
        self.run(&["--mode", mode, "--dev", &self.device.name], program)
    }

    /// `abey SUBCOMMAND ...` in the server's namespace as nobody, with journals that nobody could write.
    pub(crate) fn abey_as_nobody(&self, nobody: &Nobody, subcommand: &str, arguments: &[&str]) -> Command {
        let mut command = nobody.command();
        command.in_netns(&self.server);
        command.arg(subcommand).arg("--journals").arg(nobody.journals()).args(arguments);
        command
    }
}

/// The NAPI settings of a mode.
pub(crate) fn napi_settings(mode: &str) -> NapiSettings {
    mode.parse::<Mode>().expect("a mode").settings().napi
}

fn quiet(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command
}

/// `abey ...` where the test is.
pub(crate) fn abey(arguments: &[&str]) -> Command {
    let mut command = quiet(ABEY);
    command.args(arguments);
    command
}

/// The command and its library where nobody may execute them, for a user without any capability.
pub(crate) struct Nobody {
    place: tempfile::TempDir,
}

impl Nobody {
    /// `None` with a printed reason where there is no way to become nobody.
    pub(crate) fn new() -> Option<Self> {
        if !has("setpriv") {
            return None;
        }
        let place = tempfile::tempdir().expect("directory");
        let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("permissions");
        open(place.path());
        // A debug build is large: a second name is enough where the file system allows it.
        let put = |from: &Path, name: &str| {
            let to = place.path().join(name);
            fs::hard_link(from, &to).or_else(|_| fs::copy(from, &to).map(drop)).expect("a copy");
            open(&to);
        };
        put(Path::new(ABEY), "abey");
        put(&library(), FILE_NAME);
        let journals = place.path().join("journals");
        fs::create_dir(&journals).expect("directory");
        fs::set_permissions(&journals, fs::Permissions::from_mode(0o777)).expect("permissions");
        Some(Self { place })
    }

    /// A directory that nobody can write, so that it is the lack of a capability that shows.
    pub(crate) fn journals(&self) -> PathBuf {
        self.place.path().join("journals")
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = quiet("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(self.place.path().join("abey"));
        command.current_dir("/");
        command
    }
}

/// A process that ends with this value, asked first so that it can put back what it changed.
///
/// It prints to files: the end of a pipe would come only when everything it leaves behind has ended as well.
pub(crate) struct Running {
    child: Child,
    out: fs::File,
    errors: fs::File,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let file = || tempfile::tempfile().expect("a temporary file");
        let (out, errors) = (file(), file());
        command.stdout(out.try_clone().expect("shared")).stderr(errors.try_clone().expect("shared"));
        Self { child: command.spawn().expect("the command starts"), out, errors }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Waits for the end.
    pub(crate) fn end(mut self) -> Finished {
        let status = self.wait();
        Finished { status, out: text(&self.out), errors: self.errors_so_far() }
    }

    /// What it has printed on standard output up to now.
    pub(crate) fn out_so_far(&self) -> String {
        text(&self.out)
    }

    /// What it has printed on standard error up to now.
    pub(crate) fn errors_so_far(&self) -> String {
        text(&self.errors)
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let since = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status;
            }
            assert!(since.elapsed() < DEADLINE, "the command did not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("wait").is_some()
    }

    /// The processes below it that are called `name`, once there is one.
    pub(crate) fn await_program(&self, name: &str) -> Vec<u32> {
        await_some(&format!("no process `{name}`"), || {
            let found = self.programs(name);
            (!found.is_empty()).then_some(found)
        })
    }

    /// The processes below it that are called `name`.
    pub(crate) fn programs(&self, name: &str) -> Vec<u32> {
        let mut below = process::descendants(self.pid()).expect("/proc");
        below.retain(|pid| comm(*pid).as_deref() == Some(name) && !is_guard(*pid));
        below
    }

    /// The guard process of an `abey run`.
    pub(crate) fn await_guard(&self) -> u32 {
        await_some("no guard", || {
            process::descendants(self.pid()).expect("/proc").into_iter().find(|pid| is_guard(*pid))
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("what the command said: {}", self.errors_so_far());
        }
        if self.child.try_wait().is_ok_and(|status| status.is_some()) {
            return;
        }
        self.signal(Signal::SIGTERM);
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(5) {
            if self.child.try_wait().is_ok_and(|status| status.is_some()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a file holds, without moving where its writers are.
fn text(file: &fs::File) -> String {
    let mut bytes = vec![0; file.metadata().expect("a file").len() as usize];
    file.read_exact_at(&mut bytes, 0).expect("read");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A process outside of any [`Running`] that is killed with this value.
pub(crate) struct Stray(pub(crate) u32);

impl Drop for Stray {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.0.cast_signed()), Signal::SIGKILL);
    }
}

fn comm(pid: u32) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned())
}

fn is_guard(pid: u32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).nth(1) == Some(b"guard")
}

/// Whether the process runs; one that has ended and was not waited for does not.
pub(crate) fn runs(pid: u32) -> bool {
    process::start_time(pid).is_some()
}

pub(crate) fn send(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid.cast_signed()), signal).expect("a process of this test");
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) errors: String,
}

impl Finished {
    #[track_caller]
    pub(crate) fn assert_status(&self, code: i32) -> &Self {
        assert_eq!((self.status.code(), self.status.signal()), (Some(code), None), "{self:?}");
        self
    }

    /// It refused with this status, one sentence that has these words, and nothing on standard output.
    #[track_caller]
    pub(crate) fn assert_refused(&self, code: i32, words: &[&str]) {
        self.assert_sentence(code, words);
        assert_eq!(self.out, "");
    }

    /// As [`Finished::assert_refused`], where a program may have printed something before.
    #[track_caller]
    pub(crate) fn assert_sentence(&self, code: i32, words: &[&str]) {
        self.assert_status(code);
        assert_eq!(self.errors.lines().count(), 1, "more than one line: {self:?}");
        assert!(self.errors.starts_with("abey: "), "{self:?}");
        assert!(words.iter().all(|word| self.errors.contains(word)), "not all of {words:?} in {:?}", self.errors);
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Runs a command that ends by itself.
pub(crate) fn finish(command: Command) -> Finished {
    Running::start(command).end()
}

/// Waits until something holds.
#[track_caller]
pub(crate) fn await_that(what: &str, mut holds: impl FnMut() -> bool) {
    await_some(what, || holds().then_some(()));
}

/// Waits until something is there.
#[track_caller]
pub(crate) fn await_some<T>(otherwise: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(since.elapsed() < DEADLINE, "{otherwise} after {} s", DEADLINE.as_secs());
        std::thread::sleep(Duration::from_millis(5));
    }
}
