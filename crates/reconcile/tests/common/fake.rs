//! A simulated kernel with features that test machines lack (RSS contexts, flow rules, interrupts) and injected failures.

use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::rc::Rc;

use abey_linux::cpu::{CpuList, Scheduling, SchedulingPolicy};
use abey_linux::device::DeviceId;
use abey_linux::ethtool::{ChannelCounts, Channels, Count, FlowRule, FlowTarget, RssContext, spread};
use abey_linux::kernel::Kernel;
use abey_linux::machine::{MachineError, ThreadState};
use abey_linux::napi::{Napi, NapiChange};
use abey_reconcile::Host;

/// One NIC with queues, each with a NAPI instance, an interrupt and a thread.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Nic {
    pub(crate) channels: Channels,
    pub(crate) contexts: BTreeMap<u32, RssContext>,
    /// Whether the default table was written: queues that it names cannot be removed then.
    pub(crate) configured: bool,
    pub(crate) rules: BTreeMap<u32, FlowRule>,
    pub(crate) ntuple: bool,
    pub(crate) xps: BTreeMap<u32, CpuList>,
    pub(crate) irqs: BTreeMap<u32, CpuList>,
    pub(crate) napis: Vec<Napi>,
    pub(crate) threads: BTreeMap<u32, ThreadState>,
    pub(crate) present: bool,
}

/// The record of changes, and the injected failures.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// The changes, in order.
    pub(crate) log: Vec<String>,
    /// Number of changes until one fails.
    pub(crate) fails_after: Option<usize>,
    /// Whether the device is removed by that change.
    pub(crate) removes_device: bool,
}

/// The kernel. A clone shares the state.
#[derive(Clone, Debug)]
pub(crate) struct FakeKernel {
    nic: Rc<RefCell<Nic>>,
    faults: Rc<RefCell<Faults>>,
}

pub(crate) const TABLE: usize = 16;

pub(crate) fn nic() -> DeviceId {
    DeviceId { name: "nic0".to_owned(), ifindex: 7 }
}

fn cpus(text: &str) -> CpuList {
    text.parse().expect("CPUs")
}

impl Nic {
    /// Returns a NIC with this number of queues, of at most eight.
    fn new(queues: u32) -> Self {
        let mut kernel = Self {
            channels: Channels { combined: Count { now: 0, most: 8 }, ..Channels::default() },
            contexts: BTreeMap::new(),
            configured: false,
            rules: BTreeMap::new(),
            ntuple: false,
            xps: BTreeMap::new(),
            irqs: BTreeMap::new(),
            napis: Vec::new(),
            threads: BTreeMap::new(),
            present: true,
        };
        kernel.make_queues(queues, 100);
        kernel
    }

    /// Recreates all queues with the default settings, as many drivers do.
    fn make_queues(&mut self, queues: u32, first_napi: u32) {
        self.channels.combined.now = queues;
        let table = spread(TABLE, &(0..queues).collect::<Vec<_>>());
        self.configured = false;
        self.contexts.insert(0, RssContext { table, ..RssContext::default() });
        self.xps = (0..queues).map(|queue| (queue, CpuList::default())).collect();
        self.irqs = (0..queues).map(|queue| (40 + queue, cpus("0-7"))).collect();
        let other = Scheduling::new(SchedulingPolicy::Other, 0, 0).expect("sound");
        let thread = |queue| (500 + queue, ThreadState { tid: 500 + queue, cpus: cpus("0-7"), scheduling: other });
        self.threads = (0..queues).map(thread).collect();
        let napi = |queue| Napi {
            id: first_napi + queue,
            ifindex: 7,
            irq: Some(40 + queue),
            thread: Some(500 + queue),
            defer_hard_irqs: Some(0),
            gro_flush_timeout: None,
            irq_suspend_timeout: None,
            context: None,
        };
        self.napis = (0..queues).map(napi).collect();
    }

    /// Returns the state without the IDs of NAPI instances, which are new with every change of the channels.
    pub(crate) fn without_ids(mut self) -> Self {
        // Restoring the table writes it.
        self.configured = false;
        for (number, napi) in (0..).zip(&mut self.napis) {
            napi.id = number;
        }
        self
    }
}

impl FakeKernel {
    /// Returns a NIC with this number of queues, of at most eight.
    pub(crate) fn new(queues: u32) -> Self {
        Self { nic: Rc::new(RefCell::new(Nic::new(queues))), faults: Rc::default() }
    }

    pub(crate) fn nic(&self) -> RefMut<'_, Nic> {
        self.nic.borrow_mut()
    }

    pub(crate) fn faults(&self) -> RefMut<'_, Faults> {
        self.faults.borrow_mut()
    }

    fn check_present(&self) -> Result<(), MachineError> {
        if self.nic().present { Ok(()) } else { Err(missing("the device nic0")) }
    }

    fn change(&self, what: String) -> Result<(), MachineError> {
        self.check_present()?;
        let mut faults = self.faults();
        if faults.fails_after == Some(0) {
            faults.fails_after = None;
            self.nic().present = !faults.removes_device;
            self.check_present()?;
            let (device, action) = ("nic0".to_owned(), what);
            return Err(MachineError::Refused { device, action, reason: "injected failure".to_owned(), errno: None });
        }
        faults.fails_after = faults.fails_after.map(|left| left - 1);
        faults.log.push(what);
        Ok(())
    }
}

fn missing(what: &str) -> MachineError {
    MachineError::Gone { device: "nic0".to_owned(), action: "read".to_owned(), what: what.to_owned() }
}

fn refused(reason: &str) -> MachineError {
    let (device, action) = ("nic0".to_owned(), "change".to_owned());
    MachineError::Refused { device, action, reason: reason.to_owned(), errno: Some(libc::EBUSY) }
}

impl Kernel for FakeKernel {
    fn channels(&mut self, _: &DeviceId) -> Result<Channels, MachineError> {
        self.check_present().map(|()| self.nic().channels)
    }

    fn set_channels(&mut self, _: &DeviceId, counts: &ChannelCounts) -> Result<(), MachineError> {
        let queues = counts.combined.expect("combined");
        // The kernel does not remove queues that a written table names.
        let named = self.nic().contexts[&0].table.iter().any(|queue| *queue >= queues);
        if self.nic().configured && named {
            return Err(refused("the RSS table names queues that would go"));
        }
        self.change(format!("channels {counts}"))?;
        let mut nic = self.nic();
        let first_napi = nic.napis.first().map_or(100, |napi| napi.id + 100);
        nic.make_queues(queues, first_napi);
        Ok(())
    }

    fn rss(&mut self, _: &DeviceId, context: u32) -> Result<RssContext, MachineError> {
        self.check_present()?;
        self.nic().contexts.get(&context).cloned().ok_or_else(|| refused("no such context"))
    }

    fn rss_contexts(&mut self, _: &DeviceId) -> Result<Vec<RssContext>, MachineError> {
        self.check_present()?;
        Ok(self.nic().contexts.values().filter(|context| context.id != 0).cloned().collect())
    }

    fn set_rss_table(&mut self, _: &DeviceId, context: u32, table: &[u32]) -> Result<(), MachineError> {
        self.change(format!("table {context}"))?;
        self.nic().configured |= context == 0;
        self.nic().contexts.get_mut(&context).expect("there").table = table.to_vec();
        Ok(())
    }

    fn create_rss_context(&mut self, _: &DeviceId, table: &[u32], _: &[u8]) -> Result<u32, MachineError> {
        self.change("new context".to_owned())?;
        let mut nic = self.nic();
        let id = (1..).find(|id| !nic.contexts.contains_key(id)).expect("free");
        nic.contexts.insert(id, RssContext { id, table: table.to_vec(), ..RssContext::default() });
        Ok(id)
    }

    fn delete_rss_context(&mut self, _: &DeviceId, context: u32) -> Result<(), MachineError> {
        // The kernel does not delete a context that a rule points at.
        if self.nic().rules.values().any(|rule| rule.target() == FlowTarget::Context(context)) {
            return Err(refused("a rule points at it"));
        }
        self.change(format!("no context {context}"))?;
        self.nic().contexts.remove(&context);
        Ok(())
    }

    fn rules(&mut self, _: &DeviceId) -> Result<Vec<FlowRule>, MachineError> {
        self.check_present().map(|()| self.nic().rules.values().cloned().collect())
    }

    fn insert_rule(&mut self, _: &DeviceId, rule: &FlowRule) -> Result<u32, MachineError> {
        if !self.nic().ntuple {
            return Err(refused("ntuple is off"));
        }
        if let FlowTarget::Context(id) = rule.target()
            && !self.nic().contexts.contains_key(&id)
        {
            return Err(refused("no such context"));
        }
        self.change(format!("rule {rule}"))?;
        let mut nic = self.nic();
        let free = || (0..64).rev().find(|place| !nic.rules.contains_key(place)).expect("free");
        let place = if rule.location() == u32::MAX { free() } else { rule.location() };
        nic.rules.insert(place, rule.at(place));
        Ok(place)
    }

    fn delete_rule(&mut self, _: &DeviceId, location: u32) -> Result<(), MachineError> {
        self.change(format!("no rule {location}"))?;
        self.nic().rules.remove(&location);
        Ok(())
    }

    fn ntuple(&mut self, _: &DeviceId) -> Result<Option<bool>, MachineError> {
        self.check_present().map(|()| Some(self.nic().ntuple))
    }

    fn set_ntuple(&mut self, _: &DeviceId, on: bool) -> Result<(), MachineError> {
        self.change(format!("ntuple {on}"))?;
        self.nic().ntuple = on;
        Ok(())
    }

    fn xps(&mut self, _: &DeviceId, queue: u32) -> Result<CpuList, MachineError> {
        self.check_present()?;
        self.nic().xps.get(&queue).cloned().ok_or_else(|| missing("the queue"))
    }

    fn set_xps(&mut self, _: &DeviceId, queue: u32, cpus: &CpuList) -> Result<(), MachineError> {
        self.change(format!("xps {queue}"))?;
        self.nic().xps.insert(queue, cpus.clone());
        Ok(())
    }

    fn irq(&mut self, _: &str, irq: u32) -> Result<CpuList, MachineError> {
        self.check_present()?;
        self.nic().irqs.get(&irq).cloned().ok_or_else(|| missing("the IRQ"))
    }

    fn set_irq(&mut self, _: &str, irq: u32, cpus: &CpuList) -> Result<(), MachineError> {
        self.change(format!("irq {irq}"))?;
        self.nic().irqs.insert(irq, cpus.clone());
        Ok(())
    }

    fn napi(&mut self, _: &str, id: u32) -> Result<Napi, MachineError> {
        self.check_present()?;
        self.nic().napis.iter().copied().find(|napi| napi.id == id).ok_or_else(|| missing("the NAPI"))
    }

    fn set_napi(&mut self, device: &str, id: u32, change: &NapiChange) -> Result<(), MachineError> {
        self.napi(device, id)?;
        self.change(format!("napi {id}"))?;
        let mut nic = self.nic();
        let napi = nic.napis.iter_mut().find(|napi| napi.id == id).expect("there");
        napi.defer_hard_irqs = change.defer_hard_irqs.or(napi.defer_hard_irqs);
        Ok(())
    }

    fn queue_napis(&mut self, _: &DeviceId) -> Result<Vec<(u32, Napi)>, MachineError> {
        self.check_present().map(|()| (0..).zip(self.nic().napis.iter().copied()).collect())
    }

    fn thread(&mut self, _: &str, tid: u32) -> Result<ThreadState, MachineError> {
        self.check_present()?;
        self.nic().threads.get(&tid).cloned().ok_or_else(|| missing("the thread"))
    }

    fn set_thread(&mut self, _: &str, thread: &ThreadState) -> Result<(), MachineError> {
        self.change(format!("thread {}", thread.tid))?;
        self.nic().threads.insert(thread.tid, thread.clone());
        Ok(())
    }

    fn process_threads(&mut self, _: u32) -> Result<Vec<u32>, MachineError> {
        Err(missing("the process"))
    }

    fn device_file(&mut self, _: &str, _: &str) -> Result<String, MachineError> {
        Err(missing("the file"))
    }

    fn set_device_file(&mut self, _: &str, _: &str, _: &str) -> Result<(), MachineError> {
        Err(missing("the file"))
    }

    fn network_namespace(&self) -> u64 {
        1
    }
}

impl Host for FakeKernel {
    fn drop_in(&mut self, _: &std::path::Path) -> Result<Option<String>, MachineError> {
        Err(missing("the unit"))
    }

    fn set_drop_in(&mut self, _: &std::path::Path, _: Option<&str>) -> Result<(), MachineError> {
        Err(missing("the unit"))
    }

    fn reload_units(&mut self) -> Result<(), MachineError> {
        Err(missing("systemd"))
    }
}
