//! The devices that a program receives from: those with the addresses it listens on.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use abey_linux::device::{Device, devices};
use abey_linux::kernel::NetnsHandle;
use abey_linux::napi::napis;
use abey_linux::netlink::NetlinkError;
use abey_linux::netns::NetNs;
use abey_linux::process;

/// Time that a server may take until it listens.
const LISTEN_LIMIT: Duration = Duration::from_secs(30);

/// Time that a server may listen on loopback only: some open an administration port first.
const LOOPBACK_LIMIT: Duration = Duration::from_secs(1);

/// Reason why the devices of a program are unknown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SearchError {
    /// The program did not listen in time.
    #[error(
        "the program does not listen on any address after {} s: name the device with --dev",
        LISTEN_LIMIT.as_secs()
    )]
    NotListening,
    /// The program listens on loopback addresses only.
    #[error(
        "the program listens on {addresses} only, and loopback has no NAPI instance: let it listen on a network device"
    )]
    LoopbackOnly {
        /// The addresses.
        addresses: String,
    },
    /// No device matches.
    #[error(
        "no device with a NAPI instance has the address the program listens on ({addresses}): name the device with --dev"
    )]
    NoDevice {
        /// The addresses.
        addresses: String,
    },
    /// The program listens on a wildcard address, and several devices match.
    #[error("the program listens on every address, and {devices} could all be meant: name the device with --dev")]
    Ambiguous {
        /// Names of the devices.
        devices: String,
    },
    /// The devices could not be read.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
}

/// A wait for a program to listen.
#[derive(Debug)]
pub struct ListenWait {
    since: Instant,
    /// Since when the program listens on loopback and on no other address.
    loopback_since: Option<Instant>,
}

impl ListenWait {
    /// Begins the wait for a program that has just been started.
    #[must_use]
    pub fn begin() -> Self {
        Self { since: Instant::now(), loopback_since: None }
    }

    /// Returns the addresses that these processes listen on, or `None` while they do not listen yet.
    ///
    /// # Errors
    /// [`SearchError::NotListening`]
    pub fn poll(&mut self, pids: &[u32]) -> Result<Option<Vec<SocketAddr>>, SearchError> {
        let views = pids.iter().filter_map(|pid| process::inspect(*pid).ok());
        let mut listening: Vec<SocketAddr> = views.flat_map(|view| view.listening_addresses()).collect();
        listening.sort_unstable();
        listening.dedup();
        if listening.is_empty() {
            return if self.since.elapsed() > LISTEN_LIMIT { Err(SearchError::NotListening) } else { Ok(None) };
        }
        if listening.iter().all(|address| address.ip().is_loopback()) {
            let since = *self.loopback_since.get_or_insert_with(Instant::now);
            if since.elapsed() < LOOPBACK_LIMIT {
                return Ok(None);
            }
        }
        Ok(Some(listening))
    }
}

/// Returns the devices that packets to these addresses arrive on.
///
/// # Errors
/// There is none, or more than one for a wildcard address.
pub fn devices_of(netns: &NetNs, listening: &[SocketAddr]) -> Result<Vec<Device>, SearchError> {
    let mut place = NetnsHandle::open(netns)?;
    let all = devices(place.netlink())?;
    let wildcard = listening.iter().any(|address| address.ip().is_unspecified());
    let mut found = Vec::new();
    for device in all.into_iter().filter(|device| device.up && !device.loopback) {
        // An IPv4-mapped IPv6 address is the IPv4 address.
        let has = |address: &SocketAddr| device.addresses.contains(&address.ip().to_canonical());
        if !(wildcard || listening.iter().any(has)) {
            continue;
        }
        // Every device receives for a wildcard address; only those with a NAPI instance have delivery modes.
        if !wildcard || !napis(place.netlink(), Some(device.ifindex))?.is_empty() {
            found.push(device);
        }
    }
    let addresses = || listening.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ");
    match found.len() {
        0 if listening.iter().all(|address| address.ip().is_loopback()) => {
            Err(SearchError::LoopbackOnly { addresses: addresses() })
        }
        0 => Err(SearchError::NoDevice { addresses: addresses() }),
        2.. if wildcard => {
            let devices = found.iter().map(|device| device.name.as_str()).collect::<Vec<_>>().join(", ");
            Err(SearchError::Ambiguous { devices })
        }
        _ => Ok(found),
    }
}
