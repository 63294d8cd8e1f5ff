//! A kernel of our own that can do what no device here can: RSS contexts, flow rules, interrupts; and that fails at will.

use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::rc::Rc;

use abey_linux::apply::Kernel;
use abey_linux::cpu::{CpuList, Scheduling, SchedulingPolicy};
use abey_linux::device::DeviceId;
use abey_linux::ethtool::{ChannelCounts, Channels, Count, FlowRule, FlowTarget, RssContext, spread};
use abey_linux::machine::{MachineError, ThreadState};
use abey_linux::napi::{Napi, NapiChange};

/// One NIC with queues, each with a NAPI instance, an interrupt and a thread.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Nic {
    pub(crate) channels: Channels,
    pub(crate) contexts: BTreeMap<u32, RssContext>,
    /// Somebody wrote the default table: its queues must not go.
    pub(crate) configured: bool,
    pub(crate) rules: BTreeMap<u32, FlowRule>,
    pub(crate) ntuple: bool,
    pub(crate) xps: BTreeMap<u32, CpuList>,
    pub(crate) irqs: BTreeMap<u32, CpuList>,
    pub(crate) napis: Vec<Napi>,
    pub(crate) threads: BTreeMap<u32, ThreadState>,
    pub(crate) present: bool,
}

/// What happens to the changes that are asked for.
#[derive(Debug, Default)]
pub(crate) struct Fate {
    /// What was changed, in order.
    pub(crate) log: Vec<String>,
    /// Counts down with every change; the one that finds 0 fails.
    pub(crate) fails_in: Option<usize>,
    /// The device goes with that change.
    pub(crate) goes: bool,
}

/// The kernel; a clone is the same one.
#[derive(Clone, Debug)]
pub(crate) struct FakeKernel {
    nic: Rc<RefCell<Nic>>,
    fate: Rc<RefCell<Fate>>,
}

pub(crate) const TABLE: usize = 16;

pub(crate) fn nic() -> DeviceId {
    DeviceId { name: "nic0".to_owned(), ifindex: 7 }
}

fn cpus(text: &str) -> CpuList {
    text.parse().expect("CPUs")
}

impl Nic {
    /// A NIC with so many queues of at most eight.
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

    /// As many drivers do: every queue is new, with nothing left of what was set on the old ones.
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

    /// What can be seen of it, but for the numbers that new instances get.
    pub(crate) fn without_ids(mut self) -> Self {
        // A table that was put back was written, too.
        self.configured = false;
        for (number, napi) in (0..).zip(&mut self.napis) {
            napi.id = number;
        }
        self
    }
}

impl FakeKernel {
    /// A NIC with so many queues of at most eight.
    pub(crate) fn new(queues: u32) -> Self {
        Self { nic: Rc::new(RefCell::new(Nic::new(queues))), fate: Rc::default() }
    }

    pub(crate) fn nic(&self) -> RefMut<'_, Nic> {
        self.nic.borrow_mut()
    }

    pub(crate) fn fate(&self) -> RefMut<'_, Fate> {
        self.fate.borrow_mut()
    }

    fn there(&self) -> Result<(), MachineError> {
        if self.nic().present { Ok(()) } else { Err(gone("the device nic0")) }
    }

    fn change(&self, what: String) -> Result<(), MachineError> {
        self.there()?;
        let mut fate = self.fate();
        if fate.fails_in == Some(0) {
            fate.fails_in = None;
            self.nic().present = !fate.goes;
            self.there()?;
            let (device, action) = ("nic0".to_owned(), what);
            return Err(MachineError::Refused {
                device,
                action,
                reason: "as the test wants it".to_owned(),
                errno: None,
            });
        }
        fate.fails_in = fate.fails_in.map(|left| left - 1);
        fate.log.push(what);
        Ok(())
    }
}

fn gone(what: &str) -> MachineError {
    MachineError::Gone { device: "nic0".to_owned(), action: "look".to_owned(), what: what.to_owned() }
}

fn refused(reason: &str) -> MachineError {
    let (device, action) = ("nic0".to_owned(), "change".to_owned());
    MachineError::Refused { device, action, reason: reason.to_owned(), errno: Some(libc::EBUSY) }
}

impl Kernel for FakeKernel {
    fn channels(&mut self, _: &DeviceId) -> Result<Channels, MachineError> {
        self.there().map(|()| self.nic().channels)
    }

    fn set_channels(&mut self, _: &DeviceId, counts: &ChannelCounts) -> Result<(), MachineError> {
        let queues = counts.combined.expect("combined");
        // As the kernel.
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
        self.there()?;
        self.nic().contexts.get(&context).cloned().ok_or_else(|| refused("no such context"))
    }

    fn rss_contexts(&mut self, _: &DeviceId) -> Result<Vec<RssContext>, MachineError> {
        self.there()?;
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
        // As the kernel: a context that a rule points at stays.
        if self.nic().rules.values().any(|rule| rule.target() == FlowTarget::Context(context)) {
            return Err(refused("a rule points at it"));
        }
        self.change(format!("no context {context}"))?;
        self.nic().contexts.remove(&context);
        Ok(())
    }

    fn rules(&mut self, _: &DeviceId) -> Result<Vec<FlowRule>, MachineError> {
        self.there().map(|()| self.nic().rules.values().cloned().collect())
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
        self.there().map(|()| Some(self.nic().ntuple))
    }

    fn set_ntuple(&mut self, _: &DeviceId, on: bool) -> Result<(), MachineError> {
        self.change(format!("ntuple {on}"))?;
        self.nic().ntuple = on;
        Ok(())
    }

    fn xps(&mut self, _: &DeviceId, queue: u32) -> Result<CpuList, MachineError> {
        self.there()?;
        self.nic().xps.get(&queue).cloned().ok_or_else(|| gone("the queue"))
    }

    fn set_xps(&mut self, _: &DeviceId, queue: u32, cpus: &CpuList) -> Result<(), MachineError> {
        self.change(format!("xps {queue}"))?;
        self.nic().xps.insert(queue, cpus.clone());
        Ok(())
    }

    fn irq(&mut self, _: &str, irq: u32) -> Result<CpuList, MachineError> {
        self.there()?;
        self.nic().irqs.get(&irq).cloned().ok_or_else(|| gone("the IRQ"))
    }

    fn set_irq(&mut self, _: &str, irq: u32, cpus: &CpuList) -> Result<(), MachineError> {
        self.change(format!("irq {irq}"))?;
        self.nic().irqs.insert(irq, cpus.clone());
        Ok(())
    }

    fn napi(&mut self, _: &str, id: u32) -> Result<Napi, MachineError> {
        self.there()?;
        self.nic().napis.iter().copied().find(|napi| napi.id == id).ok_or_else(|| gone("the NAPI"))
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
        self.there().map(|()| (0..).zip(self.nic().napis.iter().copied()).collect())
    }

    fn thread(&mut self, _: &str, tid: u32) -> Result<ThreadState, MachineError> {
        self.there()?;
        self.nic().threads.get(&tid).cloned().ok_or_else(|| gone("the thread"))
    }

    fn set_thread(&mut self, _: &str, thread: &ThreadState) -> Result<(), MachineError> {
        self.change(format!("thread {}", thread.tid))?;
        self.nic().threads.insert(thread.tid, thread.clone());
        Ok(())
    }

    fn process_threads(&mut self, _: u32) -> Result<Vec<u32>, MachineError> {
        Err(gone("the process"))
    }

    fn device_file(&mut self, _: &str, _: &str) -> Result<String, MachineError> {
        Err(gone("the file"))
    }

    fn set_device_file(&mut self, _: &str, _: &str, _: &str) -> Result<(), MachineError> {
        Err(gone("the file"))
    }

    fn drop_in(&mut self, _: &std::path::Path) -> Result<Option<String>, MachineError> {
        Err(gone("the unit"))
    }

    fn set_drop_in(&mut self, _: &std::path::Path, _: Option<&str>) -> Result<(), MachineError> {
        Err(gone("the unit"))
    }

    fn reload_units(&mut self) -> Result<(), MachineError> {
        Err(gone("systemd"))
    }

    fn network_namespace(&self) -> u64 {
        1
    }
}
