//! Which device is meant, where none is named: the one that has the address the program listens on.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use abey_linux::apply::Place;
use abey_linux::device::{Device, devices};
use abey_linux::napi::napis;
use abey_linux::netns::NetNs;
use abey_linux::process;

use crate::failure::Failure;

/// The search for the device, by the address that the program listens on.
pub(super) struct Search {
    since: Instant,
    /// When the program was first seen to listen on loopback and nowhere else.
    loopback_since: Option<Instant>,
}

impl Search {
    /// The program has just been started.
    pub(super) fn begin() -> Self {
        Self { since: Instant::now(), loopback_since: None }
    }

    /// How long a server may take until it listens.
    const PATIENCE: Duration = Duration::from_secs(30);

    /// How long a server that listens on loopback may take until it listens on a network device as well: some open a
    /// port for their administration first.
    const LOOPBACK_PATIENCE: Duration = Duration::from_secs(1);

    /// Where the program listens, once it does.
    pub(super) fn look(&mut self, members: &[u32]) -> Result<Option<Vec<SocketAddr>>, Failure> {
        let mut listening: Vec<SocketAddr> = members
            .iter()
            .filter_map(|pid| process::inspect(*pid).ok())
            .flat_map(|view| view.listening_addresses())
            .collect();
        listening.sort_unstable();
        listening.dedup();
        if listening.is_empty() {
            if self.since.elapsed() > Self::PATIENCE {
                return Err(Failure::check(format!(
                    "the program does not listen on any address after {} s: name the device with --dev",
                    Self::PATIENCE.as_secs()
                )));
            }
            return Ok(None);
        }
        if listening.iter().all(|address| address.ip().is_loopback()) {
            let since = *self.loopback_since.get_or_insert_with(Instant::now);
            if since.elapsed() < Self::LOOPBACK_PATIENCE {
                return Ok(None);
            }
        }
        Ok(Some(listening))
    }
}

/// The devices that packets to these addresses arrive on.
pub(super) fn devices_of(netns: &NetNs, listening: &[SocketAddr]) -> Result<Vec<Device>, Failure> {
    let mut place = Place::open(netns)?;
    let all = devices(place.netlink())?;
    let wildcard = listening.iter().any(|address| address.ip().is_unspecified());
    let mut found = Vec::new();
    for device in all.into_iter().filter(|device| device.up && !device.loopback) {
        // An IPv4 address in IPv6 form is the IPv4 address.
        let owns = |address: &SocketAddr| device.addresses.contains(&address.ip().to_canonical());
        if !(wildcard || listening.iter().any(owns)) {
            continue;
        }
        // A wildcard address is on every device; only those with a NAPI instance can deliver in a mode.
        if !wildcard || !napis(place.netlink(), Some(device.ifindex))?.is_empty() {
            found.push(device);
        }
    }
    let addresses = listening.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ");
    match found.len() {
        0 if listening.iter().all(|address| address.ip().is_loopback()) => Err(Failure::check(format!(
            "the program listens on {addresses} only, and loopback has no NAPI instance: let it listen on a network device"
        ))),
        0 => Err(Failure::check(format!(
            "no device with a NAPI instance has the address the program listens on ({addresses}): name the device with --dev"
        ))),
        1 => Ok(found),
        _ if wildcard => {
            let names = found.iter().map(|device| device.name.as_str()).collect::<Vec<_>>().join(", ");
            Err(Failure::usage(format!(
                "the program listens on every address, and {names} could all be meant: name the device with --dev"
            )))
        }
        _ => Ok(found),
    }
}
