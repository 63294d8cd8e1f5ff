//! Assembles a runtime from a checked configuration and an open NIC, and starts its threads.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::AsFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;

use abey_delivery::record::Recorder;
use abey_delivery::{NapiIndex, QueueKey, Store};
use abey_nic::QueuePair;
use abey_nic::rss::Rss;
use abey_tcpip::{Config, Offloads, Settings, Stack};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::state::RuntimeState;
use super::{Builder, Runtime};
use crate::clock::Clock;
use crate::environment::{Env, Environment};
use crate::error::BuildError;
use crate::host::{Host, HostConfig, WaitSettings};
use crate::kernel::Kernel;
use crate::kernel::thread::KernelThread;
use crate::parker::Parker;
use crate::shard::{Hairpin, ServiceEpoll, Shard, ShardConfig};
use crate::threads::ThreadRole;
use crate::work_queue::WorkQueue;
use crate::{service, worker};

/// An open NIC.
pub(super) struct Device {
    pub(super) name: String,
    pub(super) mac: [u8; 6],
    pub(super) queues: Vec<Box<dyn QueuePair>>,
    pub(super) rss: Option<Rss>,
    /// Other processes own some of its queues.
    pub(super) is_part: bool,
    /// The index of the interface, and the state shared with the kernel; `None` if the device is not shared.
    pub(super) shared: Option<(u32, Kernel)>,
}

impl Builder {
    pub(super) fn assemble(mut self, device: Device) -> Result<Runtime, BuildError> {
        let clock = Clock::new();
        let work_queue = Arc::new(WorkQueue::new());
        let mut store = Store::new();
        let (interface, kernel) = device.shared.map(|(interface, kernel)| (interface, Arc::new(kernel))).unzip();
        let count = device.queues.len();
        let hairpin = Arc::new(Hairpin::new(count));
        let mut recorders = std::mem::take(&mut self.recorders).into_iter();
        let (mut shards, mut parkers) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for (at, nic) in device.queues.into_iter().enumerate() {
            let slot = Slot {
                store: &mut store,
                index: NapiIndex(at as u32),
                mac: device.mac,
                recorder: recorders.next(),
                work_queue: work_queue.clone(),
                clock,
                shards: count,
                hairpin: &hairpin,
                kernel: kernel.as_ref(),
            };
            let (shard, parker) = self.shard(nic, slot)?;
            shards.push(shard);
            parkers.push(parker);
        }
        let ids: Vec<_> = shards.iter().map(|shard| shard.id).collect();
        let change = store.prepare(ids, |settings| *settings = self.settings.napi).expect("`check` validates them");
        store.commit(change, &[]).expect("every shard has a service thread");
        for shard in &shards {
            let others = shards.iter().filter(|other| !Arc::ptr_eq(other, shard));
            shard.set_siblings(others.map(Arc::downgrade).collect());
        }
        let config = HostConfig {
            clock,
            shards: shards.into(),
            device: device.name,
            addresses: self.stack.addresses,
            rss: device.rss,
            is_part: device.is_part,
            hairpin,
            kernel,
        };
        let state = Arc::new(RuntimeState::new(Host::new(config, WaitSettings::from(&self.settings)), store));
        // After an error below, the drop of the runtime stops the threads that were started.
        let mut runtime =
            Runtime { state, stop: Arc::new(AtomicBool::new(false)), work_queue, threads: Mutex::default() };
        if Env::starts_threads() {
            runtime.start_service_threads(&self.cpus, parkers)?;
            runtime.start_workers(self.workers)?;
        }
        runtime.start_kernel_thread(interface)?;
        for shard in runtime.all_shards() {
            shard.enable();
        }
        Ok(runtime)
    }

    /// Creates a shard, and the parker of its service thread.
    fn shard(&self, nic: Box<dyn QueuePair>, slot: Slot<'_>) -> Result<(Arc<Shard>, Arc<Parker>), BuildError> {
        let queue = QueueKey { device: 0, queue: slot.index.0 };
        let (id, _) = slot.store.attach(queue, slot.index).expect("the store is new");
        slot.store.handle_thread_created(id);
        let capabilities = nic.capabilities();
        let offloads = Offloads {
            receive_verified: capabilities.checksum_offload,
            transmit_filled: capabilities.checksum_offload,
        };
        let mtu = capabilities.mtu.min(abey_tcpip::MAXIMUM_MTU);
        let config = Config::new(Settings { mac: slot.mac, mtu, offloads, hairpin: true, ..self.stack.clone() })?;
        let service = Arc::new(Parker::new().map_err(system("create an eventfd"))?);
        let descriptor = nic.as_fd().try_clone_to_owned().map_err(system("duplicate the NIC's descriptor"))?;
        let service_epoll =
            ServiceEpoll::new(descriptor, &service).map_err(system("create the service thread's epoll"))?;
        let shard = Shard::new(ShardConfig {
            id,
            index: slot.index,
            nic,
            service_epoll,
            service: service.clone(),
            stack: Stack::new(config, RandomState::new().build_hasher().finish()),
            config: self.napi,
            settings: self.settings.napi,
            softirq: self.softirq,
            recorder: slot.recorder,
            work_queue: slot.work_queue,
            clock: slot.clock,
            shards: slot.shards,
            hairpin: slot.hairpin.clone(),
            kernel: slot.kernel.map(|kernel| kernel.link.clone()),
        });
        Ok((shard, service))
    }
}

/// The place of a new shard in its runtime.
struct Slot<'a> {
    store: &'a mut Store,
    index: NapiIndex,
    mac: [u8; 6],
    recorder: Option<Recorder>,
    work_queue: Arc<WorkQueue>,
    clock: Clock,
    shards: usize,
    hairpin: &'a Arc<Hairpin>,
    kernel: Option<&'a Arc<Kernel>>,
}

impl Runtime {
    fn keep(&mut self, thread: JoinHandle<()>) {
        self.threads.get_mut().unwrap_or_else(PoisonError::into_inner).push(thread);
    }

    fn start_service_threads(&mut self, cpus: &[usize], parkers: Vec<Arc<Parker>>) -> Result<(), BuildError> {
        let mut cpus = cpus.iter().copied();
        let state = self.state.clone();
        for (shard, parker) in state.host.shards().iter().zip(parkers) {
            let name = thread_name(&state.host.config.device, shard.id.get());
            let (shard, stop, cpu) = (shard.clone(), self.stop.clone(), cpus.next());
            let threads = state.threads.clone();
            let (sender, receiver) = mpsc::channel();
            let thread = std::thread::Builder::new().name(name.clone()).spawn(move || {
                let is_pinned = cpu.is_none_or(|cpu| {
                    let mut set = CpuSet::new();
                    set.set(cpu);
                    sched_setaffinity(None, &set).is_ok()
                });
                threads.register(ThreadRole::Service(shard.id));
                if sender.send(is_pinned).is_ok() && is_pinned {
                    service::run(&shard, &parker, &stop);
                }
            });
            self.keep(thread.map_err(system("start a service thread"))?);
            if receiver.recv() != Ok(true) {
                return Err(BuildError::Pin { cpu: cpu.unwrap_or(0), thread: name });
            }
        }
        Ok(())
    }

    fn start_workers(&mut self, workers: usize) -> Result<(), BuildError> {
        let (sender, receiver) = mpsc::channel::<()>();
        for worker in 0..workers {
            let (queue, sender) = (self.work_queue.clone(), sender.clone());
            let (shards, threads) = (self.host().shards().clone(), self.state.threads.clone());
            let thread = std::thread::Builder::new().name(format!("napi-work/{worker}")).spawn(move || {
                threads.register(ThreadRole::Worker);
                drop(sender);
                worker::run(&queue, &shards);
            });
            self.keep(thread.map_err(system("start a worker"))?);
        }
        drop(sender);
        // Fails when every worker has dropped its sender, and so all are registered when the runtime is returned.
        let _ = receiver.recv();
        Ok(())
    }

    /// Starts the kernel thread, if the device is shared with the kernel.
    fn start_kernel_thread(&mut self, interface: Option<u32>) -> Result<(), BuildError> {
        let host = self.host();
        let (Some(interface), Some(kernel)) = (interface, host.kernel()) else { return Ok(()) };
        let addresses = host.config.addresses.iter().map(|(address, _)| *address).collect();
        let thread = KernelThread::open(kernel.clone(), interface, host.shards().clone(), addresses);
        let device = host.config.device.clone();
        let thread = thread.map_err(|source| BuildError::Netlink { device, source })?;
        let threads = self.state.threads.clone();
        let thread = std::thread::Builder::new().name("abey-kernel".to_owned()).spawn(move || {
            threads.register(ThreadRole::Kernel);
            thread.run();
        });
        self.keep(thread.map_err(system("start the kernel thread"))?);
        Ok(())
    }
}

/// Returns a name like the kernel's, `napi/<device>-<id>`, within the 15 bytes that a thread's name may have.
fn thread_name(device: &str, id: u32) -> String {
    let id = id.to_string();
    let room = 15 - "napi/-".len() - id.len().min(9);
    let device: String =
        device.rsplit(':').next().unwrap_or(device).chars().filter(char::is_ascii_graphic).take(room).collect();
    format!("napi/{device}-{id}")
}

pub(super) fn system<E: Into<std::io::Error>>(action: &'static str) -> impl FnOnce(E) -> BuildError {
    move |error: E| BuildError::System { action, source: error.into() }
}

#[cfg(test)]
mod tests {
    use super::thread_name;

    #[test]
    fn thread_names_have_at_most_15_bytes() {
        assert_eq!(thread_name("af_xdp:eth0", 3), "napi/eth0-3");
        assert_eq!(thread_name("memory:a-very-long-name", 12), "napi/a-very--12");
        assert!(thread_name("memory:a-very-long-name", 12).len() <= 15);
    }
}
