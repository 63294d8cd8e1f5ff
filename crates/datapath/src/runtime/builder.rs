//! The builder of a runtime. It checks the configuration before it opens the NIC.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use abey_delivery::{Mode, ModeSettings, NapiConfig, SoftirqLimits};
use abey_nic::rss::Rss;
use abey_nic::{NicName, QueuePair};
use abey_tcpip::{Config, Resolution, Settings};
use rustix::thread::{CpuSet, sched_getaffinity};

use super::Runtime;
use super::assemble::{Device, system};
use crate::error::BuildError;
use crate::kernel::Kernel;
use crate::kernel::interface::Interface;
use abey_delivery::record::Recorder;

/// The most workers of the pool.
const MAX_WORKERS: usize = 64;

/// A function that wraps the queue pair of a given index.
type Decorator = Box<dyn FnMut(usize, Box<dyn QueuePair>) -> Box<dyn QueuePair>>;

/// The configuration of a runtime.
pub struct Builder {
    nic: NicSource,
    decorate: Option<Decorator>,
    pub(super) stack: Settings,
    pub(super) settings: ModeSettings,
    pub(super) napi: NapiConfig,
    pub(super) softirq: SoftirqLimits,
    pub(super) cpus: Vec<usize>,
    pub(super) workers: usize,
    pub(super) recorders: Vec<Recorder>,
}

enum NicSource {
    None,
    Named { name: String, options: abey_nic::Options },
    Opened(abey_nic::Nic),
    Given(Box<Device>),
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            nic: NicSource::None,
            decorate: None,
            stack: Settings::default(),
            settings: ModeSettings::default(),
            napi: NapiConfig::default(),
            softirq: SoftirqLimits::default(),
            cpus: Vec::new(),
            workers: 1,
            recorders: Vec::new(),
        }
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Builder")
            .field("stack", &self.stack)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// Sets the NIC by its name: `memory:NAME`, `tap:DEV` or `af_xdp:DEV`.
    ///
    /// With AF_XDP the kernel still owns the interface. Addresses and gateways that were not given are the kernel's, and are
    /// read once. A port is redirected only while a socket here uses it.
    #[must_use]
    pub fn nic(mut self, name: &str, options: abey_nic::Options) -> Self {
        self.nic = NicSource::Named { name: name.to_owned(), options };
        self
    }

    /// Sets a NIC that is open already, such as [some of its queue pairs](abey_nic::broker::open_claimed). Otherwise the same
    /// as [`Self::nic`].
    #[must_use]
    pub fn opened(mut self, nic: abey_nic::Nic) -> Self {
        self.nic = NicSource::Opened(nic);
        self
    }

    /// Sets queue pairs that are open already, and perhaps wrapped, with the name and Ethernet address of the device. `rss` is
    /// how frames are steered to the queues, if that is known.
    #[must_use]
    pub fn queues(mut self, name: &str, mac: [u8; 6], queues: Vec<Box<dyn QueuePair>>, rss: Option<Rss>) -> Self {
        self.nic = NicSource::Given(Box::new(Device {
            name: name.to_owned(),
            mac,
            queues,
            rss,
            is_part: false,
            shared: None,
        }));
        self
    }

    /// Wraps every queue pair of the NIC, given its index, for example into a [recording](abey_nic::Pcap) or an
    /// [impairment](abey_nic::Impaired).
    #[must_use]
    pub fn decorate(mut self, wrap: impl FnMut(usize, Box<dyn QueuePair>) -> Box<dyn QueuePair> + 'static) -> Self {
        self.decorate = Some(Box::new(wrap));
        self
    }

    /// Adds an address of the host, with the length of its prefix.
    #[must_use]
    pub fn address(mut self, address: IpAddr, prefix: u8) -> Self {
        self.stack.addresses.push((address, prefix));
        self
    }

    /// Sets the default router of IPv4.
    #[must_use]
    pub fn gateway_v4(mut self, gateway: Ipv4Addr) -> Self {
        self.stack.gateway_v4 = Some(gateway);
        self
    }

    /// Sets the default router of IPv6.
    #[must_use]
    pub fn gateway_v6(mut self, gateway: Ipv6Addr) -> Self {
        self.stack.gateway_v6 = Some(gateway);
        self
    }

    /// Sets the initial mode.
    #[must_use]
    pub fn mode(self, mode: Mode) -> Self {
        self.settings(mode.settings())
    }

    /// Sets initial settings that are no mode's.
    #[must_use]
    pub fn settings(mut self, settings: ModeSettings) -> Self {
        self.settings = settings;
        self
    }

    /// Sets the constant properties of the NAPI instances.
    #[must_use]
    pub fn napi_config(mut self, config: NapiConfig) -> Self {
        self.napi = config;
        self
    }

    /// Sets the budget of a softirq run.
    #[must_use]
    pub fn softirq_limits(mut self, limits: SoftirqLimits) -> Self {
        self.softirq = limits;
        self
    }

    /// Sets the CPUs to which the service threads are pinned, in the order of the queues.
    #[must_use]
    pub fn pin(mut self, cpus: Vec<usize>) -> Self {
        self.cpus = cpus;
        self
    }

    /// Sets the number of workers for `workqueue`.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// Sets functions that receive every transition of the delivery core, in the order of the queues.
    #[must_use]
    pub fn recorders(mut self, recorders: Vec<Recorder>) -> Self {
        self.recorders = recorders;
        self
    }

    /// Changes the stack's settings: buffers, timeouts, limits. The Ethernet address, MTU and offloads are the NIC's.
    #[must_use]
    pub fn stack(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.stack);
        self
    }

    /// Opens the NIC and starts the threads.
    ///
    /// # Errors
    /// An invalid configuration, which is checked before the NIC is opened as far as possible; the NIC cannot be opened, or
    /// a thread not started.
    pub fn build(mut self) -> Result<Runtime, BuildError> {
        let interface = self.look_up_interface()?;
        self.check()?;
        let mut device = match std::mem::replace(&mut self.nic, NicSource::None) {
            NicSource::None => return Err(BuildError::NoNic),
            NicSource::Given(device) => *device,
            NicSource::Named { name, options } => share(abey_nic::open(&name, &options)?, interface)?,
            NicSource::Opened(nic) => share(nic, interface)?,
        };
        let queues = device.queues.len();
        if queues == 0 {
            return Err(BuildError::NoQueues(device.name));
        }
        for (what, given) in [("CPUs", self.cpus.len()), ("recorders", self.recorders.len())] {
            if given != 0 && given != queues {
                return Err(BuildError::Count { what, given, queues });
            }
        }
        if let Some(wrap) = &mut self.decorate {
            device.queues = device.queues.into_iter().enumerate().map(|(at, queue)| wrap(at, queue)).collect();
        }
        self.assemble(device)
    }

    /// Looks up the interface of AF_XDP, and takes its addresses and gateways if none were given.
    fn look_up_interface(&mut self) -> Result<Option<Interface>, BuildError> {
        let name = match &self.nic {
            NicSource::Named { name, .. } => name.parse().ok(),
            NicSource::Opened(nic) => Some(nic.name().clone()),
            _ => None,
        };
        let Some(NicName::AfXdp(device)) = name else { return Ok(None) };
        self.stack.resolution = Resolution::External;
        let interface = Interface::look_up(&device)?.filter(|interface| interface.is_up);
        let Some(interface) = interface else {
            // The attempt to open it returns the error. The rest of the configuration is checked first, and needs an address.
            if self.stack.addresses.is_empty() {
                self.stack.addresses.push(([192, 0, 2, 1].into(), 32));
            }
            return Ok(None);
        };
        let stack = &mut self.stack;
        if stack.addresses.is_empty() {
            stack.addresses.clone_from(&interface.addresses);
            stack.gateway_v4 = stack.gateway_v4.or(interface.gateway_v4);
            stack.gateway_v6 = stack.gateway_v6.or(interface.gateway_v6);
        }
        if stack.addresses.is_empty() {
            return Err(BuildError::NoAddress { device });
        }
        Ok(Some(interface))
    }

    fn check(&self) -> Result<(), BuildError> {
        self.settings.validate()?;
        if self.napi.weight == 0 {
            return Err(BuildError::ZeroWeight);
        }
        if !(1..=MAX_WORKERS).contains(&self.workers) {
            return Err(BuildError::Workers(self.workers));
        }
        let allowed = sched_getaffinity(None).map_err(system("look up the CPUs of this process"))?;
        if let Some(&cpu) = self.cpus.iter().find(|cpu| **cpu >= CpuSet::MAX_CPU || !allowed.is_set(**cpu)) {
            return Err(BuildError::Pin { cpu, thread: "a service thread".to_owned() });
        }
        // The Ethernet address and the MTU are the NIC's. The rest can be checked without them.
        let mac = [2, 0, 0, 0, 0, 1];
        Config::new(Settings { mac, hairpin: true, ..self.stack.clone() })?;
        Ok(())
    }
}

/// Prepares an open NIC for sharing with the kernel, if it is one that is shared.
fn share(mut nic: abey_nic::Nic, interface: Option<Interface>) -> Result<Device, BuildError> {
    let shared = match (nic.ports(), nic.name()) {
        (Some(ports), NicName::AfXdp(device)) => {
            let interface = interface.ok_or_else(|| BuildError::Down { device: device.clone() })?;
            let steers = nic.rss().is_some() || nic.queues() == 1 || nic.is_part();
            Some((interface.index, Kernel::new(device, ports.clone(), steers)?))
        }
        _ => None,
    };
    Ok(Device {
        name: nic.name().to_string(),
        mac: nic.hardware_address(),
        queues: nic.take_queues(),
        rss: nic.rss().cloned(),
        is_part: nic.is_part(),
        shared,
    })
}
