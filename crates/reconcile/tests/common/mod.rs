//! What the tests of this crate share: a test network of their own.

use std::net::{IpAddr, Ipv4Addr};

use abey_linux::netns::NetNs;
use abey_testbed::veth::{End, create};

/// The address of `near0`.
pub(crate) const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
/// The address of `far0`.
pub(crate) const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));

/// Two namespaces joined by the pair `near0` and `far0`, or `None` with a printed reason.
pub(crate) fn pair(queues: u32) -> Option<(NetNs, NetNs)> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: needs root to make network namespaces");
        return None;
    }
    let (near, far) = (NetNs::create().expect("namespace"), NetNs::create().expect("namespace"));
    create(
        &End { netns: &near, name: "near0", address: (NEAR, 24) },
        &End { netns: &far, name: "far0", address: (FAR, 24) },
        queues,
    )
    .expect("veth pair");
    Some((near, far))
}
