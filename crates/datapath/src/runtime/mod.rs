//! The runtime: the shards of one NIC, their threads, and the settings they live by.

mod assemble;
mod builder;
mod steering;

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

use abey_delivery::{EpollBusyPoll, Mode, ModeSettings, Nanos, NapiId, NapiSettings, SocketBusyPoll, Store};
use abey_nic::rss::Rss;
use abey_nic::{LinkState, Protocol, Warning};
use abey_tcpip::SocketId;

pub use builder::Builder;

use crate::clock::Clock;
use crate::control::{self, ControlError, Waits};
use crate::counters::Counters;
use crate::epoll::{Epoll, Queue};
use crate::error::{OpenError, SetError, number};
use crate::kernel::{Kernel, Lease};
use crate::pool::Pool;
use crate::shard::{Core, Shard};
use crate::threads::Threads;

/// The user-space datapath of one NIC.
///
/// Dropping it resets its connections and ends its threads; sockets and epolls that are left say so. A device that is
/// shared with the kernel is the kernel's alone again, but its queues are free only when the last socket is dropped too.
#[derive(Debug)]
pub struct Runtime {
    shared: Arc<Shared>,
    stop: Arc<AtomicBool>,
    pool: Arc<Pool>,
    threads: Vec<JoinHandle<()>>,
}

/// "None" in a word of nanoseconds.
const NEVER: u64 = u64::MAX;

/// What sockets and epolls keep.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) clock: Clock,
    pub(crate) shards: Arc<[Arc<Shard>]>,
    /// What the NIC is called.
    pub(crate) device: String,
    pub(crate) threads: Arc<Threads>,
    addresses: Vec<(std::net::IpAddr, u8)>,
    rss: Option<Rss>,
    is_part: bool,
    /// Where the device is shared with the kernel.
    pub(crate) kernel: Option<Arc<Kernel>>,
    /// Those that were told.
    warnings: Mutex<Vec<Warning>>,
    store: Mutex<Store>,
    /// For epolls to come.
    busy_poll: Mutex<Option<EpollBusyPoll>>,
    epolls: Mutex<Vec<Weak<Queue>>>,
    max_wait: AtomicU64,
    socket_busy_poll: AtomicU64,
    next: AtomicUsize,
    over: AtomicBool,
}

/// What a shard holds at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Census {
    /// Sockets, those included that their application has closed and that still finish.
    pub sockets: usize,
    /// Connections in TIME-WAIT.
    pub time_waits: usize,
    /// Sockets that an application holds.
    pub held: usize,
    /// Ports that are reserved in the kernel, those included whose last connections still finish.
    pub kernel_ports: usize,
}

impl Runtime {
    /// Begins to build a runtime.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    #[cfg(test)]
    pub(crate) fn pool(&self) -> Arc<Pool> {
        self.pool.clone()
    }

    /// An epoll for this runtime's sockets, with the busy-poll parameters of the mode.
    pub fn epoll(&self) -> Epoll {
        Epoll::new(&self.shared)
    }

    /// The router for what is on no prefix.
    pub fn gateway(&self, is_v4: bool) -> Option<std::net::IpAddr> {
        let shard = self.shared.shards.first()?;
        shard.with(|core| {
            let settings = core.stack.config().settings();
            if is_v4 { settings.gateway_v4.map(Into::into) } else { settings.gateway_v6.map(Into::into) }
        })
    }

    /// How many shards there are: one for each queue pair.
    pub fn shards(&self) -> usize {
        self.shared.shards.len()
    }

    /// Whether other processes have some of the NIC's queue pairs. Who connects from here cannot choose that the answers
    /// come to this process rather than to one of those, and is refused
    /// ([`OpenError::NoSteering`]).
    pub fn is_part(&self) -> bool {
        self.shared.is_part
    }

    /// The instances' IDs, in the order of the shards.
    pub fn napi_ids(&self) -> Vec<u32> {
        self.shared.shards.iter().map(|shard| number(shard.id)).collect()
    }

    /// The settings of an instance.
    ///
    /// # Errors
    /// If there is none of that ID.
    pub fn settings(&self, napi: u32) -> Result<NapiSettings, SetError> {
        let id = self.shared.find(napi)?;
        self.shared.store().settings(id).copied().ok_or(SetError::NoSuchNapi(napi))
    }

    /// Changes the settings of some instances, all or nothing, while traffic flows. They are obeyed from the next schedule
    /// on.
    ///
    /// # Errors
    /// An ID that is not there, or settings that make no sense together; then nothing was changed.
    pub fn set(&self, napis: &[u32], change: impl FnMut(&mut NapiSettings)) -> Result<(), SetError> {
        let ids = napis.iter().map(|napi| self.shared.find(*napi)).collect::<Result<Vec<_>, _>>()?;
        self.shared.set(&ids, change)
    }

    /// Puts every instance and every epoll of this runtime into a mode, while traffic flows.
    ///
    /// # Errors
    /// None for a mode that was parsed.
    pub fn set_mode(&self, mode: Mode) -> Result<(), SetError> {
        self.set_mode_settings(mode.settings())
    }

    /// As [`Self::set_mode`], for settings that have no name.
    ///
    /// # Errors
    /// Settings that make no sense together.
    pub fn set_mode_settings(&self, settings: ModeSettings) -> Result<(), SetError> {
        settings.validate()?;
        self.set(&self.napi_ids(), |napi| *napi = settings.napi)?;
        self.shared.set_waits(&settings);
        Ok(())
    }

    /// What one shard did so far, or all together.
    pub fn counters(&self, shard: Option<usize>) -> Counters {
        let mut sum = Counters::default();
        for (_, shard) in
            self.shared.shards.iter().enumerate().filter(|(at, _)| shard.is_none_or(|wanted| wanted == *at))
        {
            sum += shard.counters();
        }
        sum
    }

    /// What the stacks did so far, together.
    pub fn stack_counters(&self) -> abey_tcpip::Counters {
        let mut sum = abey_tcpip::Counters::default();
        for shard in self.shared.shards.iter() {
            shard.with(|core| sum.add(core.stack.counters()));
        }
        sum
    }

    /// What the NIC's queue pairs did so far, together: frames, drops, checksums that were left partial.
    pub fn nic_counters(&self) -> abey_nic::Counters {
        let mut sum = abey_nic::Counters::default();
        for shard in self.shared.shards.iter() {
            sum += shard.with(|core| core.nic_counters());
        }
        sum
    }

    /// Whether anybody is at the other end of the wire. May cost a system call.
    pub fn link(&self) -> LinkState {
        self.shared.shards[0].with(|core| core.nic_link())
    }

    /// What the operator should put right about the other end of the wire, and was not told by an earlier call.
    pub fn warnings(&self) -> Vec<Warning> {
        let mut told = self.shared.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        let before = told.len();
        for warning in self.shared.shards.iter().filter_map(|shard| shard.with(|core| core.nic_warning())) {
            if !told.contains(&warning) {
                told.push(warning);
            }
        }
        told[before..].to_vec()
    }

    /// What the shards hold now, together.
    pub fn census(&self) -> Census {
        let kernel_ports = self.shared.kernel.as_ref().map_or(0, |kernel| kernel.reserved_ports());
        let mut census = Census { kernel_ports, ..Census::default() };
        for shard in self.shared.shards.iter() {
            let one = shard.with(|core| core.census());
            census.sockets += one.sockets;
            census.time_waits += one.time_waits;
            census.held += one.held;
        }
        census
    }

    /// Lets `abey status`, `abey set` and others reach this runtime, until the answer is dropped: see [`control`].
    ///
    /// # Errors
    /// There is no directory for the socket, or it is not ours alone; or the system refuses.
    pub fn serve_control(&self) -> Result<control::Server, ControlError> {
        self.serve_control_in(&control::own_directory()?)
    }

    /// As [`Self::serve_control`], at a socket that another process has [lent](control::lend) this one.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn serve_control_at(&self, listener: UnixListener) -> std::io::Result<control::Server> {
        control::Server::start_at(&self.shared, listener)
    }

    /// As [`Self::serve_control`], in a directory of the caller's choice: its user's, and nobody else's to write to.
    ///
    /// # Errors
    /// As there.
    pub fn serve_control_in(&self, directory: &Path) -> Result<control::Server, ControlError> {
        control::Server::start(&self.shared, directory)
    }
}

impl Shared {
    pub(crate) fn new_queue(&self) -> Arc<Queue> {
        let busy = *self.busy_poll.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = Arc::new(Queue::new(self.shards.clone(), busy));
        let mut epolls = self.epolls.lock().unwrap_or_else(PoisonError::into_inner);
        epolls.retain(|epoll| epoll.strong_count() > 0);
        epolls.push(Arc::downgrade(&queue));
        queue
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = (std::net::IpAddr, u8)> {
        self.addresses.iter().copied()
    }

    pub(crate) fn store(&self) -> std::sync::MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn find(&self, napi: u32) -> Result<NapiId, SetError> {
        let shard = self.shards.iter().find(|shard| number(shard.id) == napi);
        shard.map(|shard| shard.id).ok_or(SetError::NoSuchNapi(napi))
    }

    /// See [`Runtime::set`].
    pub(crate) fn set(&self, ids: &[NapiId], change: impl FnMut(&mut NapiSettings)) -> Result<(), SetError> {
        let mut store = self.store();
        let change = store.prepare(ids.iter().copied(), change)?;
        // Every shard has its thread from the beginning.
        let threads = change.threads_needed().to_vec();
        for (napi, settings) in store.commit(change, &threads)? {
            self.shards[napi.as_usize()].apply_settings(settings);
        }
        Ok(())
    }

    /// What [`Self::set_waits`] set.
    pub(crate) fn waits(&self) -> Waits {
        Waits {
            epoll: *self.busy_poll.lock().unwrap_or_else(PoisonError::into_inner),
            max_wait: self.max_wait(),
            socket_busy_poll: span(&self.socket_busy_poll),
        }
    }

    pub(crate) fn set_waits(&self, settings: &ModeSettings) {
        let word = |span: Option<Nanos>| span.map_or(NEVER, Nanos::as_nanos);
        self.max_wait.store(word(settings.max_wait), Ordering::Relaxed);
        self.socket_busy_poll.store(word(settings.socket_busy_poll), Ordering::Relaxed);
        *self.busy_poll.lock().unwrap_or_else(PoisonError::into_inner) = settings.epoll;
        for queue in self.live_epolls() {
            queue.set_busy_poll(settings.epoll);
        }
    }

    pub(crate) fn live_epolls(&self) -> Vec<Arc<Queue>> {
        self.epolls.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn max_wait(&self) -> Option<Nanos> {
        span(&self.max_wait)
    }

    pub(crate) fn socket_busy_poll(&self) -> Option<SocketBusyPoll> {
        span(&self.socket_busy_poll).map(SocketBusyPoll::new)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    pub(crate) fn next_shard(&self) -> &Arc<Shard> {
        &self.shards[self.next.fetch_add(1, Ordering::Relaxed) % self.shards.len()]
    }

    /// Reserves a port where it is shared with the kernel; port 0: one that the kernel chooses.
    pub(crate) fn reserve(&self, protocol: Protocol, port: u16) -> Result<Option<Lease>, OpenError> {
        let Some(kernel) = &self.kernel else { return Ok(None) };
        let lease = if port == 0 { kernel.reserve_any(protocol, |_| true) } else { kernel.reserve(protocol, port) };
        lease.map(Some)
    }

    /// Opens a socket in a shard.
    pub(crate) fn open<R>(
        &self,
        shard: &Shard,
        open: impl FnOnce(&mut Core) -> Result<R, abey_tcpip::OpenError>,
    ) -> Result<R, OpenError>
    where
        R: Opened,
    {
        shard.with(|core| {
            if core.over {
                return Err(OpenError::RuntimeGone);
            }
            if let Some(failed) = &core.failed {
                return Err(OpenError::Nic(failed.clone()));
            }
            let opened = open(core)?;
            // Known before the lock is let go, so that no event is lost.
            core.watches(opened.socket());
            Ok(opened)
        })
    }
}

/// A word of nanoseconds.
fn span(word: &AtomicU64) -> Option<Nanos> {
    let nanos = word.load(Ordering::Relaxed);
    (nanos != NEVER).then(|| Nanos::from_nanos(nanos))
}

/// What opening gives: a socket, perhaps with something beside it.
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

impl Drop for Runtime {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        for shard in self.shared.shards.iter() {
            shard.shut_down();
        }
        if let Some(kernel) = &self.shared.kernel {
            kernel.shut_down();
        }
        self.stop.store(true, Ordering::Release);
        self.pool.stop();
        for shard in self.shared.shards.iter() {
            shard.wake_service();
        }
        for queue in self.shared.live_epolls() {
            queue.wake_all();
        }
        for thread in self.threads.drain(..) {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}
