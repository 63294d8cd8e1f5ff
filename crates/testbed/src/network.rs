//! The test network of the tests that call [`in_namespace`](crate::namespace::in_namespace): `near0` and `far0` with known
//! addresses. Made with the program `ip`.

use std::fs::File;
use std::process::Command;

use crate::namespace::{another_namespace, inside, ip, path, run};

/// Makes the pair `near0` (10.8.0.1, fd08::1) in the calling thread's namespace and `far0` (10.8.0.2, fd08::2) in a new one,
/// which it returns. The Ethernet addresses are 02:00:00:00:08:01 and 02:00:00:00:08:02.
///
/// # Panics
/// When the pair cannot be made.
#[must_use]
pub fn veth(queues: u32) -> File {
    let far = another_namespace();
    let path = path(&far);
    let channels = format!("numrxqueues {queues} numtxqueues {queues}");
    ip(&format!(
        "link add near0 address 02:00:00:00:08:01 {channels} type veth peer name far0 address 02:00:00:00:08:02 {channels} netns {path}"
    ));
    configure("near0", 1);
    inside(&far, || configure("far0", 2));
    far
}

/// Makes a pair as [`veth`] does, whose far end computes the checksums of what it sends and leaves each connection on one
/// queue. Needs the program `ethtool`.
///
/// # Panics
/// When the pair cannot be made.
#[must_use]
pub fn checked_veth(queues: u32) -> File {
    let far = veth(queues);
    inside(&far, || compute_checksums("far0"));
    crate::veth::keep_queues(&far).expect("a setting of this kernel");
    far
}

/// Makes the kernel compute the checksums of what it sends over a veth device of the calling thread's namespace.
///
/// # Panics
/// When the program `ethtool` fails.
pub fn compute_checksums(device: &str) {
    run("ethtool", &format!("-K {device} tx off"));
}

/// Gives a device the test network's addresses of host `last`, and brings it up.
///
/// # Panics
/// When that fails.
pub fn configure(device: &str, last: u8) {
    ip("link set lo up");
    ip(&format!("addr add 10.8.0.{last}/24 dev {device}"));
    ip(&format!("addr add fd08::{last}/64 dev {device} nodad"));
    ip(&format!("link set {device} up"));
}

/// Adds permanent neighbour entries at both ends of [`veth`], so that neither sends ARP or neighbour solicitations.
///
/// # Panics
/// When that fails.
pub fn add_neighbours(far: &File) {
    let add = |device: &str, other: u8| {
        for address in [format!("10.8.0.{other}"), format!("fd08::{other}")] {
            ip(&format!("neigh add {address} lladdr 02:00:00:00:08:0{other} dev {device} nud permanent"));
        }
    };
    add("near0", 2);
    inside(far, || add("far0", 1));
}

/// Returns whether an XDP program is attached to `near0`.
///
/// # Panics
/// When the program `ip` cannot be run.
#[must_use]
pub fn has_program() -> bool {
    let output = Command::new("ip").args(["-details", "link", "show", "near0"]).output().expect("ip");
    String::from_utf8_lossy(&output.stdout).contains("xdp")
}
