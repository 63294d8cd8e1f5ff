//! The runtime: the shards of one NIC, their threads, and their settings.

mod assemble;
mod builder;
pub(crate) mod state;

use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use abey_delivery::{Mode, ModeSettings, NapiSettings};
use abey_nic::{LinkState, Warning};
use abey_tcpip::Readiness;

pub use builder::Builder;

use self::state::RuntimeState;
use crate::control::{self, ControlError};
use crate::counters::Counters;
use crate::epoll::Epoll;
use crate::error::{EpollError, SetError, SystemError};
use crate::handover::{HandOverServer, Responder};
use crate::host::Host;
use crate::kernel_wait::{KernelWait, WaitOutcome};
use crate::shard::{Census, Shard};
use crate::source::Source;
use crate::wait;
use crate::work_queue::WorkQueue;

/// The user-space datapath of one NIC.
///
/// Dropping it resets its connections and ends its threads; calls on the remaining sockets and epolls then return errors. A
/// device that was shared with the kernel is the kernel's alone again, but its queues are free only when the last socket is
/// dropped too.
#[derive(Debug)]
pub struct Runtime {
    state: Arc<RuntimeState>,
    stop: Arc<AtomicBool>,
    pub(crate) work_queue: Arc<WorkQueue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Runtime {
    /// Returns a builder.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn host(&self) -> &Arc<Host> {
        &self.state.host
    }

    pub(crate) fn all_shards(&self) -> &[Arc<Shard>] {
        self.host().shards()
    }

    /// Creates an epoll for this runtime's sockets, with the busy-poll parameters of the mode.
    pub fn epoll(&self) -> Epoll {
        self.state.new_epoll()
    }

    /// Waits until one of the `wanted` sockets is ready for some of its interest or has failed, `kernel` has something, or
    /// `timeout` expires (`None` waits for ever). The caller then asks the sockets for their readiness.
    ///
    /// As in the kernel, it busy polls if a blocking read would (`sockbusyX`), and suspends no interrupts. Without sockets it
    /// returns at once.
    ///
    /// # Errors
    /// The runtime was dropped, a socket belongs to another runtime, or the process has no file descriptor left.
    pub fn wait_any(
        &self,
        wanted: &[(&dyn Source, Readiness)],
        timeout: Option<Duration>,
        kernel: &dyn KernelWait,
    ) -> Result<WaitOutcome, EpollError> {
        let host = self.host();
        if host.is_shut_down() {
            return Err(EpollError::RuntimeDropped);
        }
        if wanted.iter().any(|(source, _)| !Arc::ptr_eq(source.info().host, host)) {
            return Err(EpollError::OtherRuntime);
        }
        let until = timeout.map(|timeout| host.clock().after(timeout));
        let reads = wanted.iter().any(|(_, interest)| interest.contains(Readiness::READABLE));
        let busy = host.socket_busy_poll().filter(|_| reads);
        let sockets = wanted
            .iter()
            .flat_map(|(source, interest)| source.info().sockets.iter().map(move |socket| (socket, *interest)));
        wait::wait_any(sockets, until, busy, Some(kernel)).map_err(SystemError::into)
    }

    /// Returns whether a UDP socket that is not connected receives datagrams to `to`, one of the host's own addresses.
    pub fn has_receiver(&self, to: SocketAddr) -> bool {
        let nowhere = SocketAddr::new(to.ip(), 0);
        self.host().has_receiver(nowhere, to)
    }

    /// Returns whether a UDP port was handed to the kernel ([`crate::UdpSocket::hand_over`]).
    pub fn is_udp_port_handed_over(&self, port: u16) -> bool {
        self.host().kernel().is_some_and(|kernel| kernel.ports.was_passed(port))
    }

    /// Returns the default router of IPv4 or IPv6.
    pub fn gateway(&self, is_v4: bool) -> Option<std::net::IpAddr> {
        let shard = self.all_shards().first()?;
        shard.with(|core| {
            let settings = core.stack.config().settings();
            if is_v4 { settings.gateway_v4.map(Into::into) } else { settings.gateway_v6.map(Into::into) }
        })
    }

    /// Returns the number of shards: one for each queue pair.
    pub fn shards(&self) -> usize {
        self.all_shards().len()
    }

    /// Returns whether other processes own some of the NIC's queue pairs.
    ///
    /// Then answers to a connection from here may arrive at another process, and connecting fails
    /// ([`NoSteering`](crate::OpenError::NoSteering)).
    pub fn is_part(&self) -> bool {
        self.host().config.is_part
    }

    /// Returns the IDs of the NAPI instances, in the order of the shards.
    pub fn napi_ids(&self) -> Vec<u32> {
        self.all_shards().iter().map(|shard| shard.id.get()).collect()
    }

    /// Returns the settings of an instance.
    ///
    /// # Errors
    /// No instance has this ID.
    pub fn settings(&self, napi: u32) -> Result<NapiSettings, SetError> {
        let id = self.state.find(napi)?;
        self.state.store().settings(id).copied().ok_or(SetError::NoSuchNapi(napi))
    }

    /// Changes the settings of some instances while traffic flows, all or none. They take effect at the next schedule.
    ///
    /// # Errors
    /// No instance has one of the IDs, or the settings contradict each other. Then nothing was changed.
    pub fn set(&self, napis: &[u32], change: impl FnMut(&mut NapiSettings)) -> Result<(), SetError> {
        let ids = napis.iter().map(|napi| self.state.find(*napi)).collect::<Result<Vec<_>, _>>()?;
        self.state.set(&ids, change)
    }

    /// Puts every instance and every epoll of this runtime into a mode, while traffic flows.
    ///
    /// # Errors
    /// None for a mode that was parsed.
    pub fn set_mode(&self, mode: Mode) -> Result<(), SetError> {
        self.set_mode_settings(mode.settings())
    }

    /// Applies settings that are no mode's as [`Self::set_mode`] applies those of a mode.
    ///
    /// # Errors
    /// The settings contradict each other.
    pub fn set_mode_settings(&self, settings: ModeSettings) -> Result<(), SetError> {
        settings.validate()?;
        self.set(&self.napi_ids(), |napi| *napi = settings.napi)?;
        self.state.set_waits(&settings);
        Ok(())
    }

    /// Returns the counters of one shard, or the sums of all shards.
    pub fn counters(&self, shard: Option<usize>) -> Counters {
        let mut sum = Counters::default();
        for (_, shard) in self.all_shards().iter().enumerate().filter(|(at, _)| shard.is_none_or(|index| index == *at))
        {
            sum += shard.counters();
        }
        sum
    }

    /// Returns the sums of the TCP/IP stacks' counters.
    pub fn stack_counters(&self) -> abey_tcpip::Counters {
        let mut sum = abey_tcpip::Counters::default();
        for shard in self.all_shards() {
            shard.with(|core| sum.add(core.stack.counters()));
        }
        sum
    }

    /// Returns the sums of the queue pairs' counters: frames, drops, partial checksums.
    pub fn nic_counters(&self) -> abey_nic::Counters {
        let mut sum = abey_nic::Counters::default();
        for shard in self.all_shards() {
            sum += shard.with(|core| core.nic_counters());
        }
        sum
    }

    /// Returns the state of the NIC's link. May cost a system call.
    pub fn link(&self) -> LinkState {
        self.all_shards()[0].with(|core| core.nic_link())
    }

    /// Returns the problems at the other end of the wire that the operator should correct, except those that an earlier
    /// call returned.
    pub fn warnings(&self) -> Vec<Warning> {
        self.state.new_warnings()
    }

    /// Returns the numbers of sockets and ports of all shards.
    pub fn census(&self) -> Census {
        let kernel_ports = self.host().kernel().map_or(0, |kernel| kernel.ports.count());
        let mut census = Census { kernel_ports, ..Census::default() };
        for shard in self.all_shards() {
            let one = shard.with(|core| core.census());
            census.sockets += one.sockets;
            census.time_waits += one.time_waits;
            census.held += one.held;
        }
        census
    }

    /// Serves a [control socket](control) in the user's directory, for `abey status`, `abey set` and others, until the
    /// returned server is dropped.
    ///
    /// # Errors
    /// There is no directory for the socket, other users may write to it, or a system call failed.
    pub fn serve_control(&self) -> Result<control::Server, ControlError> {
        self.serve_control_in(&control::own_directory()?)
    }

    /// Starts a thread that hands connections over at the request of other processes, until the returned server is dropped.
    /// `responder` answers their other questions.
    ///
    /// # Errors
    /// A system call failed.
    pub fn serve_hand_overs(&self, responder: Option<Responder>) -> std::io::Result<HandOverServer> {
        HandOverServer::start(&self.state.host, &self.state.threads, responder)
    }

    /// Returns why the kernel refused the latest connection that a pump serves instead, once.
    pub fn take_hand_over_refusal(&self) -> Option<std::io::Error> {
        self.host().pumps.take_refusal()
    }

    /// Serves a control socket that another process has [lent](control::lend).
    ///
    /// # Errors
    /// A system call failed.
    pub fn serve_control_at(&self, listener: UnixListener) -> std::io::Result<control::Server> {
        control::Server::start_at(&self.state, listener)
    }

    /// Serves a control socket in a given directory, to which no other user may write.
    ///
    /// # Errors
    /// Those of [`Self::serve_control`].
    pub fn serve_control_in(&self, directory: &Path) -> Result<control::Server, ControlError> {
        control::Server::start(&self.state, directory)
    }
}

impl Runtime {
    /// Ends the runtime as a drop does.
    pub fn stop(&self) {
        let host = &self.state.host;
        host.shut_down();
        for shard in host.shards().iter() {
            shard.shut_down();
        }
        if let Some(kernel) = host.kernel() {
            kernel.shut_down();
        }
        self.stop.store(true, Ordering::Release);
        self.work_queue.stop();
        for shard in host.shards().iter() {
            shard.wake_service();
        }
        for epoll in self.state.epolls() {
            epoll.wake_all();
        }
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // The panic of a thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.stop();
    }
}
