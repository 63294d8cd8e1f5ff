//! The runtime: the shards of one NIC, their threads, and the settings they live by.

mod assemble;
mod builder;
mod shared;
mod steering;

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;

use abey_delivery::{Mode, ModeSettings, NapiSettings};
use abey_nic::{LinkState, Warning};

pub use builder::Builder;
pub(crate) use shared::Shared;

use crate::control::{self, ControlError};
use crate::counters::Counters;
use crate::epoll::Epoll;
use crate::error::{SetError, number};
use crate::pool::Pool;

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
    /// ([`NoSteering`](crate::OpenError::NoSteering)).
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
