//! The test network: two namespaces and a veth pair.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use abey_delivery::{Mode, NapiSettings};
use abey_linux::device::{Device, device_named};
use abey_linux::napi::napis;
use abey_linux::netlink::Netlink;
use abey_linux::netns::NetNs;
use abey_linux::probe::{NapiCapabilities, napi_capabilities};
use abey_testbed::spawn::SpawnExt;
use abey_testbed::veth::{End, compute_checksums, create, keep_queues, set_up};

use super::{ABEY, UnprivilegedUser, finish, is_root, library, quiet, unique};

/// Two anonymous namespaces joined by a veth pair, and a directory for journals. No other test uses them.
pub(crate) struct TestBed {
    pub(crate) server: NetNs,
    pub(crate) client: NetNs,
    /// The server's device; its name is unique on the machine, as counting polls needs.
    pub(crate) device: Device,
    /// Name of the client's device.
    client_device: String,
    pub(crate) capabilities: NapiCapabilities,
    journals: tempfile::TempDir,
}

/// The server's address.
pub(crate) const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 10, 1));
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 10, 2));

/// Returns the server's address with a port. Every port is free, because no other process is in the namespace.
pub(crate) fn at(port: u16) -> SocketAddr {
    SocketAddr::new(SERVER, port)
}

impl TestBed {
    /// Makes the test network with `queues` queues. Returns `None` and prints the reason where it cannot be made.
    pub(crate) fn new(queues: u32) -> Option<Self> {
        if !is_root() {
            return None;
        }
        library();
        let (server, client) = (NetNs::create().expect("namespace"), NetNs::create().expect("namespace"));
        let testbed = Self::between(server, client, queues);
        if !testbed.capabilities.suspend {
            eprintln!("skipped: this kernel has no IRQ suspension");
            return None;
        }
        Some(testbed)
    }

    /// Makes the pair between two existing namespaces.
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
        set_up(&server, "lo").expect("loopback");
        let mut netlink = Netlink::open(&server).expect("netlink");
        let device = device_named(&mut netlink, &near, "the test network").expect("the device just made");
        let capabilities = napi_capabilities(&mut netlink).expect("probe");
        Self {
            server,
            client,
            device,
            client_device: far,
            capabilities,
            journals: tempfile::tempdir().expect("directory"),
        }
    }

    /// Makes the client's device compute the checksums of the packets it sends, as a device on a real wire does.
    pub(crate) fn with_checksums(self) -> Self {
        compute_checksums(&self.client, &self.client_device).expect("checksums");
        self
    }

    /// Returns the device as an argument of `--nic`.
    pub(crate) fn nic(&self) -> String {
        format!("af_xdp:{}", self.device.name)
    }

    /// Returns the datapaths on the device that `abey status` shows.
    pub(crate) fn datapaths(&self) -> Vec<serde_json::Value> {
        let mut command = self.command(ABEY);
        command.args(["status", "--json", "--interval", "10ms", &self.nic()]);
        let document: Option<serde_json::Value> = serde_json::from_str(&finish(command).out).ok();
        document.and_then(|document| document["datapaths"].as_array().cloned()).unwrap_or_default()
    }

    /// Returns a TCP counter (`/proc/net/snmp`) of the server's namespace.
    pub(crate) fn kernel_tcp(&self, counter: &str) -> u64 {
        let read = || fs::read_to_string("/proc/thread-self/net/snmp").expect("the kernel's counters");
        let text = self.server.run(read).expect("namespace");
        let mut lines = text.lines().filter(|line| line.starts_with("Tcp:")).map(str::split_whitespace);
        let (mut names, mut values) = (lines.next().expect("names"), lines.next().expect("values"));
        let at = names.position(|name| name == counter).expect("a counter of this name");
        values.nth(at).expect("its value").parse().expect("a number")
    }

    /// Makes a second pair between the same namespaces, and returns the name of the server's device.
    pub(crate) fn second_device(&self) -> String {
        let (near, far) = (unique("at"), unique("ad"));
        let ip = |last| IpAddr::V4(Ipv4Addr::new(198, 18, 11, last));
        let near_end = End { netns: &self.server, name: &near, address: (ip(1), 24) };
        create(&near_end, &End { netns: &self.client, name: &far, address: (ip(2), 24) }, 1).expect("veth pair");
        near
    }

    /// Returns the settings of every NAPI instance of the server's device.
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

    /// Returns the number of journals of unfinished changes. The state file of `abey apply` does not count.
    pub(crate) fn journals_under_way(&self) -> usize {
        let files = fs::read_dir(self.journals()).expect("directory").flatten();
        files.filter(|file| file.path().extension().is_some_and(|extension| extension == "json")).count()
    }

    /// Returns whether the device has the kernel's default settings and no journal is left.
    pub(crate) fn is_as_before(&self) -> bool {
        let default = |one: &NapiSettings| *one == NapiSettings::default();
        let journals = fs::read_dir(self.journals()).expect("directory").count();
        self.settings().iter().all(default) && journals == 0
    }

    pub(crate) fn assert_as_before(&self) {
        assert!(self.is_as_before(), "{:?}, {:?}", self.settings(), fs::read_dir(self.journals()));
    }

    /// Returns whether every NAPI instance has the mode's settings.
    pub(crate) fn has_mode(&self, mode: &str) -> bool {
        let wanted = napi_settings(mode);
        self.settings().iter().all(|one| *one == wanted)
    }

    /// Returns a command that runs a program in the server's namespace.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = quiet(program);
        command.in_netns(&self.server);
        command
    }

    /// Returns `abey SUBCOMMAND ARGUMENTS` in the server's namespace, with the journals of this test.
    pub(crate) fn abey(&self, subcommand: &str, arguments: &[&str]) -> Command {
        let mut command = self.command(ABEY);
        command.arg(subcommand).arg("--journals").arg(self.journals()).args(arguments);
        command
    }

    /// Returns `abey run OPTIONS -- PROGRAM`.
    pub(crate) fn run(&self, options: &[&str], program: &[&str]) -> Command {
        let mut command = self.abey("run", options);
        command.arg("--").args(program);
        command
    }

    /// Returns `abey run --mode MODE --dev DEVICE -- PROGRAM`.
    pub(crate) fn run_mode(&self, mode: &str, program: &[&str]) -> Command {
        self.run(&["--mode", mode, "--dev", &self.device.name], program)
    }

    /// Returns `abey SUBCOMMAND ARGUMENTS` in the server's namespace as a user without privileges, with journals which that user
    /// may write.
    pub(crate) fn abey_unprivileged(&self, user: &UnprivilegedUser, subcommand: &str, arguments: &[&str]) -> Command {
        let mut command = user.command();
        command.in_netns(&self.server);
        command.arg(subcommand).arg("--journals").arg(user.journals()).args(arguments);
        command
    }
}

/// Returns the NAPI settings of a mode.
pub(crate) fn napi_settings(mode: &str) -> NapiSettings {
    mode.parse::<Mode>().expect("a mode").settings().napi
}
