//! The host that a runtime is on its network: the shards, addresses and steering of one NIC, and the settings of waits.
//! Sockets and epolls hold it.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use abey_delivery::{EpollBusyPoll, ModeSettings, Nanos, NapiSettings, SocketBusyPoll};
use abey_nic::Protocol;
use abey_nic::rss::Rss;
use abey_tcpip::SocketId;

use crate::clock::Clock;
use crate::error::OpenError;
use crate::handover::Pumps;
use crate::kernel::Kernel;
use crate::kernel::ports::Lease;
use crate::shard::{Core, Hairpin, Shard};

/// `None` in an atomic word of nanoseconds.
const NONE: u64 = u64::MAX;

/// The settings of a mode that are those of epolls and sockets, and not of NAPI instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitSettings {
    pub(crate) epoll: Option<EpollBusyPoll>,
    pub(crate) max_wait: Option<Nanos>,
    pub(crate) socket_busy_poll: Option<Nanos>,
}

impl WaitSettings {
    /// Returns the settings of a mode that consist of these and the settings of an instance.
    pub(crate) fn with(self, napi: NapiSettings) -> ModeSettings {
        let Self { epoll, max_wait, socket_busy_poll } = self;
        ModeSettings { napi, epoll, max_wait, socket_busy_poll }
    }
}

impl From<&ModeSettings> for WaitSettings {
    fn from(settings: &ModeSettings) -> Self {
        let ModeSettings { epoll, max_wait, socket_busy_poll, .. } = *settings;
        Self { epoll, max_wait, socket_busy_poll }
    }
}

/// The constant properties of a host.
#[derive(Debug)]
pub(crate) struct HostConfig {
    pub(crate) clock: Clock,
    pub(crate) shards: Arc<[Arc<Shard>]>,
    /// The name of the NIC.
    pub(crate) device: String,
    /// The addresses with the lengths of their prefixes.
    pub(crate) addresses: Vec<(IpAddr, u8)>,
    /// How the NIC steers frames to queues, if that is known.
    pub(crate) rss: Option<Rss>,
    /// Other processes own some of the NIC's queue pairs.
    pub(crate) is_part: bool,
    /// How frames of this host to itself are steered.
    pub(crate) hairpin: Arc<Hairpin>,
    /// `None` if the device is not shared with the kernel.
    pub(crate) kernel: Option<Arc<Kernel>>,
}

/// A host on the network.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) config: HostConfig,
    /// The busy-poll parameters of new epolls.
    busy_poll: Mutex<Option<EpollBusyPoll>>,
    max_wait: AtomicU64,
    socket_busy_poll: AtomicU64,
    next_shard: AtomicUsize,
    is_shut_down: AtomicBool,
    /// The connections that pumps serve.
    pub(crate) pumps: Pumps,
}

impl Host {
    pub(crate) fn new(config: HostConfig, waits: WaitSettings) -> Self {
        let host = Self {
            config,
            busy_poll: Mutex::new(None),
            max_wait: AtomicU64::new(NONE),
            socket_busy_poll: AtomicU64::new(NONE),
            next_shard: AtomicUsize::new(0),
            is_shut_down: AtomicBool::new(false),
            pumps: Pumps::default(),
        };
        host.set_wait_settings(waits);
        host
    }

    pub(crate) fn clock(&self) -> Clock {
        self.config.clock
    }

    pub(crate) fn shards(&self) -> &Arc<[Arc<Shard>]> {
        &self.config.shards
    }

    pub(crate) fn kernel(&self) -> Option<&Arc<Kernel>> {
        self.config.kernel.as_ref()
    }

    /// Returns the shard with this index.
    pub(crate) fn shard(&self, index: usize) -> Result<&Arc<Shard>, OpenError> {
        self.shards().get(index).ok_or(OpenError::NoSuchShard { index, count: self.shards().len() })
    }

    /// Returns the shards in turn.
    pub(crate) fn next_shard(&self) -> &Arc<Shard> {
        &self.shards()[self.next_shard.fetch_add(1, Ordering::Relaxed) % self.shards().len()]
    }

    pub(crate) fn wait_settings(&self) -> WaitSettings {
        WaitSettings {
            epoll: *self.busy_poll.lock().unwrap_or_else(PoisonError::into_inner),
            max_wait: self.max_wait(),
            socket_busy_poll: load(&self.socket_busy_poll),
        }
    }

    /// Sets the settings of sockets, and those of new epolls.
    pub(crate) fn set_wait_settings(&self, settings: WaitSettings) {
        let word = |span: Option<Nanos>| span.map_or(NONE, Nanos::as_nanos);
        self.max_wait.store(word(settings.max_wait), Ordering::Relaxed);
        self.socket_busy_poll.store(word(settings.socket_busy_poll), Ordering::Relaxed);
        *self.busy_poll.lock().unwrap_or_else(PoisonError::into_inner) = settings.epoll;
    }

    /// Returns how long one wait of an epoll may block.
    pub(crate) fn max_wait(&self) -> Option<Nanos> {
        load(&self.max_wait)
    }

    /// Returns how blocking calls busy poll.
    pub(crate) fn socket_busy_poll(&self) -> Option<SocketBusyPoll> {
        load(&self.socket_busy_poll).map(SocketBusyPoll::new)
    }

    /// Makes every later call fail: the runtime was dropped.
    pub(crate) fn shut_down(&self) {
        self.is_shut_down.store(true, Ordering::Release);
    }

    pub(crate) fn is_shut_down(&self) -> bool {
        self.is_shut_down.load(Ordering::Acquire)
    }

    /// Reserves a port in the kernel, if the device is shared with it. For port 0 the kernel chooses one.
    pub(crate) fn reserve(&self, protocol: Protocol, port: u16) -> Result<Option<Lease>, OpenError> {
        let Some(kernel) = self.kernel() else { return Ok(None) };
        let ports = &kernel.ports;
        let lease = if port == 0 { ports.reserve_any(protocol, |_| true) } else { ports.reserve(protocol, port) };
        lease.map(Some)
    }

    /// Opens a socket in a shard.
    pub(crate) fn open<R: Opened>(
        &self,
        shard: &Shard,
        open: impl FnOnce(&mut Core) -> Result<R, abey_tcpip::OpenError>,
    ) -> Result<R, OpenError> {
        shard.with(|core| {
            if core.is_shut_down {
                return Err(OpenError::RuntimeDropped);
            }
            if let Some(failed) = &core.failed {
                return Err(OpenError::Nic(failed.clone()));
            }
            let opened = open(core)?;
            // Under the same lock, so that no event is lost.
            core.sockets.register(opened.socket());
            Ok(opened)
        })
    }

    /// Returns whether `address` is one of this host's own: a loopback address is its own with the whole prefix.
    pub(crate) fn is_own(&self, address: IpAddr) -> bool {
        let mut own = self.config.addresses.iter();
        own.any(|(own, prefix)| *own == address || own.is_loopback() && shares_prefix(*own, address, *prefix))
    }

    /// Returns whether a UDP socket receives datagrams of `from` to `to`, one of the host's own addresses.
    pub(crate) fn has_receiver(&self, from: SocketAddr, to: SocketAddr) -> bool {
        let shard = self.config.hairpin.shard_of_flow(from, to);
        from.is_ipv4() == to.is_ipv4() && self.shards()[shard].with(|core| core.stack.has_receiver(from, to))
    }

    /// Returns the source address for packets to `remote`: `remote` itself if it is this host's, or an address with a prefix
    /// that includes `remote`, or else the first of the same family.
    pub(crate) fn source_for(&self, remote: IpAddr) -> Option<IpAddr> {
        if self.config.addresses.iter().any(|(own, _)| *own == remote) {
            return Some(remote);
        }
        let same_family = || {
            let own = self.config.addresses.iter();
            own.filter(move |(own, _)| own.is_ipv4() == remote.is_ipv4() && own.is_loopback() == remote.is_loopback())
        };
        let on_link = same_family().find(|(own, prefix)| shares_prefix(*own, remote, *prefix));
        on_link.or_else(|| same_family().next()).map(|(own, _)| *own)
    }

    /// Returns a predicate of local ports: whether the NIC delivers the answers from `remote` to this shard.
    ///
    /// # Errors
    /// There are several shards, and it is not known how the NIC steers frames.
    pub(crate) fn steering(
        &self,
        remote: SocketAddr,
        local: Option<IpAddr>,
        shard: usize,
    ) -> Result<impl Fn(u16) -> bool + use<'_>, OpenError> {
        let rss = &self.config.rss;
        let several = self.shards().len() > 1 || self.config.is_part;
        let forwards = self.kernel().is_some_and(|kernel| kernel.link.port_owners.is_some());
        let is_own = self.is_own(remote.ip());
        if !is_own && several && rss.is_none() && !forwards {
            return Err(OpenError::NoSteering(remote));
        }
        Ok(move |port: u16| match (rss, local) {
            (_, Some(local)) if is_own => {
                self.config.hairpin.shard_of_flow(remote, SocketAddr::new(local, port)) == shard
            }
            _ if is_own => true,
            // The answers go from the remote end to the local end.
            (Some(rss), Some(local)) if several => {
                rss.queue_of_flow(remote, SocketAddr::new(local, port)) as usize == shard
            }
            _ => true,
        })
    }
}

/// Reads an optional time span from a word.
fn load(word: &AtomicU64) -> Option<Nanos> {
    let nanos = word.load(Ordering::Relaxed);
    (nanos != NONE).then(|| Nanos::from_nanos(nanos))
}

/// The result of opening a socket: the socket, perhaps with other values.
pub(crate) trait Opened {
    fn socket(&self) -> SocketId;
}

impl Opened for SocketId {
    fn socket(&self) -> SocketId {
        *self
    }
}

impl<T> Opened for (SocketId, T) {
    fn socket(&self) -> SocketId {
        self.0
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn shares_prefix(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    let differing = octets(a).into_iter().zip(octets(b)).enumerate().find(|(_, (a, b))| a != b);
    differing.is_none_or(|(at, (a, b))| at as u32 * 8 + (a ^ b).leading_zeros() >= u32::from(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_share_a_prefix_of_their_common_bits() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        assert!(shares_prefix(ip("10.0.0.1"), ip("10.0.0.200"), 24));
        assert!(!shares_prefix(ip("10.0.0.1"), ip("10.0.1.1"), 24));
        assert!(shares_prefix(ip("10.0.0.1"), ip("10.0.1.1"), 23));
        assert!(shares_prefix(ip("fd00::1"), ip("fd00::2"), 64) && shares_prefix(ip("::1"), ip("fd00::2"), 0));
    }
}
