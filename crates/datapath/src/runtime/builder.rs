//! Builds a runtime: everything is checked before anything is opened.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use abey_delivery::{Mode, ModeSettings, NapiConfig, SoftirqLimits};
use abey_nic::rss::Rss;
use abey_nic::{NicName, QueuePair};
use abey_tcpip::{Config, Resolution, Settings};
use rustix::thread::{CpuSet, sched_getaffinity};

use super::Runtime;
use super::assemble::{Device, system};
use crate::error::BuildError;
use crate::kernel::{Interface, Kernel};
use abey_record::Recorder;

/// Most workers of the pool.
const MAX_WORKERS: usize = 64;

/// Wraps a queue pair.
type Decorator = Box<dyn FnMut(usize, Box<dyn QueuePair>) -> Box<dyn QueuePair>>;

/// How a runtime is to be.
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
    /// The NIC of this name: `memory:NAME`, `tap:DEV` or `af_xdp:DEV`.
    ///
    /// With AF_XDP the kernel stays in charge of the interface: addresses and gateways are the kernel's, unless they are
    /// given, and are looked up once; a port is ours only while a socket here uses it.
    #[must_use]
    pub fn nic(mut self, name: &str, options: abey_nic::Options) -> Self {
        self.nic = NicSource::Named { name: name.to_owned(), options };
        self
    }

    /// A NIC that is open already, such as [some of its queue pairs](abey_nic::broker::open_claimed). Otherwise as [`Self::nic`].
    #[must_use]
    pub fn opened(mut self, nic: abey_nic::Nic) -> Self {
        self.nic = NicSource::Opened(nic);
        self
    }

    /// Queue pairs that are open already, perhaps wrapped: what the device is called, the Ethernet address to have, and
    /// how frames are steered to the queues, where that is known.
    #[must_use]
    pub fn queues(mut self, name: &str, station: [u8; 6], queues: Vec<Box<dyn QueuePair>>, rss: Option<Rss>) -> Self {
        self.nic = NicSource::Given(Box::new(Device {
            name: name.to_owned(),
            station,
            queues,
            rss,
            is_part: false,
            shared: None,
        }));
        self
    }

    /// Wraps every queue pair of the NIC, given its number: a [recording](abey_nic::Pcap), a [bad wire](abey_nic::Impaired).
    #[must_use]
    pub fn decorate(mut self, wrap: impl FnMut(usize, Box<dyn QueuePair>) -> Box<dyn QueuePair> + 'static) -> Self {
        self.decorate = Some(Box::new(wrap));
        self
    }

    /// One of the host's addresses, with the length of its prefix.
    #[must_use]
    pub fn address(mut self, address: IpAddr, prefix: u8) -> Self {
        self.stack.addresses.push((address, prefix));
        self
    }

    /// Where IPv4 packets go whose destination is on no prefix.
    #[must_use]
    pub fn gateway_v4(mut self, gateway: Ipv4Addr) -> Self {
        self.stack.gateway_v4 = Some(gateway);
        self
    }

    /// Where IPv6 packets go whose destination is on no prefix.
    #[must_use]
    pub fn gateway_v6(mut self, gateway: Ipv6Addr) -> Self {
        self.stack.gateway_v6 = Some(gateway);
        self
    }

    /// The mode to begin in.
    #[must_use]
    pub fn mode(self, mode: Mode) -> Self {
        self.settings(mode.settings())
    }

    /// Settings to begin with that have no name.
    #[must_use]
    pub fn settings(mut self, settings: ModeSettings) -> Self {
        self.settings = settings;
        self
    }

    /// What is fixed about the instances.
    #[must_use]
    pub fn napi_config(mut self, config: NapiConfig) -> Self {
        self.napi = config;
        self
    }

    /// What one softirq run may use.
    #[must_use]
    pub fn softirq_limits(mut self, limits: SoftirqLimits) -> Self {
        self.softirq = limits;
        self
    }

    /// The CPUs that the service threads are pinned to, in the order of the queues.
    #[must_use]
    pub fn pin(mut self, cpus: Vec<usize>) -> Self {
        self.cpus = cpus;
        self
    }

    /// How many workers the pool of `workqueue` has.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// What is told of every transition of the delivery core, in the order of the queues.
    #[must_use]
    pub fn recorders(mut self, recorders: Vec<Recorder>) -> Self {
        self.recorders = recorders;
        self
    }

    /// Changes the stack's settings: buffers, timeouts, limits. The link's part (address, MTU, offloads) is the NIC's.
    #[must_use]
    pub fn stack(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.stack);
        self
    }

    /// Opens the NIC and starts the threads.
    ///
    /// # Errors
    /// What cannot be; everything that can be checked is, before the NIC is opened.
    pub fn build(mut self) -> Result<Runtime, BuildError> {
        let interface = self.ask_the_kernel()?;
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

    /// Under AF_XDP: the interface, whose addresses and gateways are ours unless others were given.
    fn ask_the_kernel(&mut self) -> Result<Option<Interface>, BuildError> {
        let name = match &self.nic {
            NicSource::Named { name, .. } => name.parse().ok(),
            NicSource::Opened(nic) => Some(nic.name().clone()),
            _ => None,
        };
        let Some(NicName::AfXdp(device)) = name else { return Ok(None) };
        self.stack.resolution = Resolution::External;
        let interface = Interface::look_up(&device)?.filter(|interface| interface.is_up);
        let Some(interface) = interface else {
            // Opening it says what is the matter; the rest is checked before as far as it can be.
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
        // The station and the MTU come from the NIC; the rest can be checked without.
        let station = [2, 0, 0, 0, 0, 1];
        Config::new(Settings { station, ..self.stack.clone() })?;
        Ok(())
    }
}

/// Makes arrangements with the kernel about an open NIC, if it is shared with it.
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
        station: nic.hardware_address(),
        queues: nic.take_queues(),
        rss: nic.rss().cloned(),
        is_part: nic.is_part(),
        shared,
    })
}
