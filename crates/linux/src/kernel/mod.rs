//! Reads and changes the settings of devices, interrupts and threads, behind a trait: tests replace the kernel with one
//! that has features which no available NIC has.

mod handle;

pub use handle::NetnsHandle;

use crate::cpu::{CpuError, CpuList, Scheduling, irq_affinity, set_irq_affinity, set_thread_affinity, thread_affinity};
use crate::device::DeviceId;
use crate::ethtool::channels::{channels, set_channels};
use crate::ethtool::rss::context_ids;
use crate::ethtool::{ChannelCounts, Channels, FlowRule, RssContext};
use crate::features::{features, set_features};
use crate::machine::{Capability, MachineError, ThreadState};
use crate::napi::{Napi, NapiChange, napi, napis, rx_queues, set_napi};
use crate::process::ProcessError;
use crate::xps::{parse_mask, to_mask};

/// The device feature that flow rules need: `ethtool -K DEV ntuple on`.
pub const NTUPLE: &str = "rx-ntuple-filter";

/// The settings of the machine's devices, interrupts and threads.
///
/// Every error names the device and the action; its kind is a [`MachineError`] variant.
#[expect(clippy::missing_errors_doc, reason = "the same for every function: see the trait")]
pub trait Kernel {
    /// Returns the numbers of queues of a device.
    fn channels(&mut self, device: &DeviceId) -> Result<Channels, MachineError>;
    /// Changes the numbers of queues of a device. Most drivers recreate all queues for it.
    fn set_channels(&mut self, device: &DeviceId, counts: &ChannelCounts) -> Result<(), MachineError>;
    /// Returns an RSS context with its indirection table; 0 is the default context.
    fn rss(&mut self, device: &DeviceId, context: u32) -> Result<RssContext, MachineError>;
    /// Returns the additional RSS contexts.
    fn rss_contexts(&mut self, device: &DeviceId) -> Result<Vec<RssContext>, MachineError>;
    /// Writes the indirection table of an RSS context.
    fn set_rss_table(&mut self, device: &DeviceId, context: u32, table: &[u32]) -> Result<(), MachineError>;
    /// Creates an RSS context and returns its number. An empty key leaves the choice of the hash key to the driver.
    fn create_rss_context(&mut self, device: &DeviceId, table: &[u32], key: &[u8]) -> Result<u32, MachineError>;
    /// Deletes an additional RSS context.
    fn delete_rss_context(&mut self, device: &DeviceId, context: u32) -> Result<(), MachineError>;
    /// Returns the flow rules.
    fn rules(&mut self, device: &DeviceId) -> Result<Vec<FlowRule>, MachineError>;
    /// Inserts a flow rule and returns its location.
    fn insert_rule(&mut self, device: &DeviceId, rule: &FlowRule) -> Result<u32, MachineError>;
    /// Deletes the flow rule at a location.
    fn delete_rule(&mut self, device: &DeviceId, location: u32) -> Result<(), MachineError>;
    /// Returns whether flow rules are enabled ([`NTUPLE`]); `None` where the device has no such feature.
    fn ntuple(&mut self, device: &DeviceId) -> Result<Option<bool>, MachineError>;
    /// Enables or disables flow rules.
    fn set_ntuple(&mut self, device: &DeviceId, on: bool) -> Result<(), MachineError>;
    /// Returns the CPUs that use a transmit queue; an empty list where there is no XPS map.
    fn xps(&mut self, device: &DeviceId, queue: u32) -> Result<CpuList, MachineError>;
    /// Sets the CPUs that use a transmit queue.
    fn set_xps(&mut self, device: &DeviceId, queue: u32, cpus: &CpuList) -> Result<(), MachineError>;
    /// Returns the CPUs that an interrupt may be delivered to.
    fn irq(&mut self, device: &str, irq: u32) -> Result<CpuList, MachineError>;
    /// Sets the CPUs that an interrupt may be delivered to.
    fn set_irq(&mut self, device: &str, irq: u32, cpus: &CpuList) -> Result<(), MachineError>;
    /// Returns a NAPI instance with its settings.
    fn napi(&mut self, device: &str, id: u32) -> Result<Napi, MachineError>;
    /// Changes settings of a NAPI instance.
    fn set_napi(&mut self, device: &str, id: u32, change: &NapiChange) -> Result<(), MachineError>;
    /// Returns the receive queues of a device that have a known NAPI instance, with that instance.
    fn queue_napis(&mut self, device: &DeviceId) -> Result<Vec<(u32, Napi)>, MachineError>;
    /// Returns the CPUs and the scheduling of a thread.
    fn thread(&mut self, device: &str, tid: u32) -> Result<ThreadState, MachineError>;
    /// Sets the CPUs and the scheduling of a thread.
    fn set_thread(&mut self, device: &str, thread: &ThreadState) -> Result<(), MachineError>;
    /// Returns the IDs of the threads of a process.
    fn process_threads(&mut self, pid: u32) -> Result<Vec<u32>, MachineError>;
    /// Returns the content of a file below `/sys/class/net/DEVICE`.
    fn device_file(&mut self, device: &str, file: &str) -> Result<String, MachineError>;
    /// Writes a file below `/sys/class/net/DEVICE`.
    fn set_device_file(&mut self, device: &str, file: &str, value: &str) -> Result<(), MachineError>;
    /// Returns the inode number of the network namespace.
    fn network_namespace(&self) -> u64;
}

impl Kernel for NetnsHandle {
    fn channels(&mut self, device: &DeviceId) -> Result<Channels, MachineError> {
        channels(&mut self.netlink, device)
    }

    fn set_channels(&mut self, device: &DeviceId, counts: &ChannelCounts) -> Result<(), MachineError> {
        set_channels(&mut self.netlink, device, counts)
    }

    fn rss(&mut self, device: &DeviceId, context: u32) -> Result<RssContext, MachineError> {
        self.ethtool.rss(device, context)
    }

    fn rss_contexts(&mut self, device: &DeviceId) -> Result<Vec<RssContext>, MachineError> {
        let lists = |reason: &str| MachineError::Unsupported {
            device: device.name.clone(),
            action: format!("list the RSS contexts of {device}"),
            reason: reason.to_owned(),
        };
        let family =
            self.ethtool_family.as_ref().ok_or_else(|| lists("this kernel has no `ethtool` netlink interface"))?;
        let ids = match context_ids(&mut self.long_answers, family, device) {
            // If the driver has tables, which the next call checks, it is the kernel that cannot list contexts.
            Err(MachineError::Unsupported { .. }) => {
                self.ethtool.rss(device, crate::ethtool::rss::DEFAULT_CONTEXT)?;
                return Err(lists("this kernel does not list them; Linux 6.11 and later do"));
            }
            ids => ids?,
        };
        if ids.is_empty() {
            // The list leaves out a driver without tables; this call reports that such a driver has no contexts either.
            self.ethtool.rss(device, crate::ethtool::rss::DEFAULT_CONTEXT)?;
        }
        let mut found = Vec::new();
        for id in ids {
            found.push(self.ethtool.rss(device, id)?);
        }
        Ok(found)
    }

    fn set_rss_table(&mut self, device: &DeviceId, context: u32, table: &[u32]) -> Result<(), MachineError> {
        self.ethtool.set_rss_table(device, context, table)
    }

    fn create_rss_context(&mut self, device: &DeviceId, table: &[u32], key: &[u8]) -> Result<u32, MachineError> {
        self.ethtool.create_rss_context(device, table, key)
    }

    fn delete_rss_context(&mut self, device: &DeviceId, context: u32) -> Result<(), MachineError> {
        self.ethtool.delete_rss_context(device, context)
    }

    fn rules(&mut self, device: &DeviceId) -> Result<Vec<FlowRule>, MachineError> {
        self.ethtool.rules(device)
    }

    fn insert_rule(&mut self, device: &DeviceId, rule: &FlowRule) -> Result<u32, MachineError> {
        self.ethtool.insert_rule(device, rule)
    }

    fn delete_rule(&mut self, device: &DeviceId, location: u32) -> Result<(), MachineError> {
        self.ethtool.delete_rule(device, location)
    }

    fn ntuple(&mut self, device: &DeviceId) -> Result<Option<bool>, MachineError> {
        let action = format!("read the offload features of {device}");
        let all = features(&mut self.netlink, &device.name);
        let all = all.map_err(|error| MachineError::from_netlink(&device.name, &action, &error))?;
        Ok(all.get(NTUPLE).copied())
    }

    fn set_ntuple(&mut self, device: &DeviceId, on: bool) -> Result<(), MachineError> {
        let action = format!("turn {NTUPLE} {} on {device}", if on { "on" } else { "off" });
        let set = set_features(&mut self.netlink, &device.name, &[(NTUPLE, on)]);
        set.map_err(|error| MachineError::from_netlink(&device.name, &action, &error))
    }

    fn xps(&mut self, device: &DeviceId, queue: u32) -> Result<CpuList, MachineError> {
        let file = format!("queues/tx-{queue}/xps_cpus");
        let text = self.read_of(device, &file).map_err(|error| self.no_queue(error, device, queue))?;
        parse_mask(&text).ok_or_else(|| MachineError::Refused {
            device: device.name.clone(),
            action: format!("read {file} of {device}"),
            reason: format!("{text:?} is not a mask of CPUs"),
            errno: None,
        })
    }

    fn set_xps(&mut self, device: &DeviceId, queue: u32, cpus: &CpuList) -> Result<(), MachineError> {
        let file = format!("queues/tx-{queue}/xps_cpus");
        self.write_of(device, &file, &to_mask(cpus)).map_err(|error| self.no_queue(error, device, queue))
    }

    fn irq(&mut self, device: &str, irq: u32) -> Result<CpuList, MachineError> {
        let action = format!("read the CPUs of IRQ {irq} of {device}");
        irq_affinity(irq).map_err(|error| MachineError::from_cpu(device, &action, Capability::DacOverride, &error))
    }

    fn set_irq(&mut self, device: &str, irq: u32, cpus: &CpuList) -> Result<(), MachineError> {
        let action = format!("move IRQ {irq} of {device} to CPUs {cpus}");
        let moved = set_irq_affinity(irq, cpus);
        moved.map_err(|error| MachineError::from_cpu(device, &action, Capability::DacOverride, &error))
    }

    fn napi(&mut self, device: &str, id: u32) -> Result<Napi, MachineError> {
        let action = format!("read the settings of NAPI {id} of {device}");
        napi(&mut self.netlink, id).map_err(|error| no_napi(device, id, &action, &error))
    }

    fn set_napi(&mut self, device: &str, id: u32, change: &NapiChange) -> Result<(), MachineError> {
        let action = format!("change the settings of NAPI {id} of {device}");
        set_napi(&mut self.netlink, id, change).map_err(|error| no_napi(device, id, &action, &error))
    }

    fn queue_napis(&mut self, device: &DeviceId) -> Result<Vec<(u32, Napi)>, MachineError> {
        let action = format!("find the NAPI instances of the queues of {device}");
        let failed = |error| MachineError::from_netlink(&device.name, &action, &error);
        let all = napis(&mut self.netlink, Some(device.ifindex)).map_err(failed)?;
        let queues = rx_queues(&mut self.netlink, device.ifindex).map_err(failed)?;
        let find = |id: u32| all.iter().copied().find(|napi| napi.id == id);
        Ok(queues.into_iter().filter_map(|(queue, id)| Some((queue, find(id)?))).collect())
    }

    fn thread(&mut self, device: &str, tid: u32) -> Result<ThreadState, MachineError> {
        let action = format!("read where and how thread {tid} of {device} runs");
        let failed = |error: CpuError| MachineError::from_cpu(device, &action, Capability::SysNice, &error);
        let cpus = thread_affinity(tid).map_err(failed)?;
        Ok(ThreadState { tid, cpus, scheduling: Scheduling::of_thread(tid).map_err(failed)? })
    }

    fn set_thread(&mut self, device: &str, thread: &ThreadState) -> Result<(), MachineError> {
        let ThreadState { tid, cpus, scheduling } = thread;
        let now = self.thread(device, *tid)?;
        if now.cpus != *cpus {
            let action = format!("pin thread {tid} of {device} to CPUs {cpus}");
            let pinned = set_thread_affinity(*tid, cpus);
            pinned.map_err(|error| MachineError::from_cpu(device, &action, Capability::SysNice, &error))?;
        }
        if now.scheduling != *scheduling {
            let action = format!("make thread {tid} of {device} {scheduling}");
            let set = scheduling.set_on_thread(*tid);
            set.map_err(|error| MachineError::from_cpu(device, &action, Capability::SysNice, &error))?;
        }
        Ok(())
    }

    fn process_threads(&mut self, pid: u32) -> Result<Vec<u32>, MachineError> {
        let (device, action) = (String::new(), format!("list the threads of process {pid}"));
        crate::process::threads(pid).map_err(|error| match error {
            ProcessError::NoProcess(_) => MachineError::Gone { device, action, what: format!("process {pid}") },
            other => MachineError::Refused { device, action, reason: other.to_string(), errno: None },
        })
    }

    fn device_file(&mut self, device: &str, file: &str) -> Result<String, MachineError> {
        self.read(device, file).map_err(|error| no_device(error, file))
    }

    fn set_device_file(&mut self, device: &str, file: &str, value: &str) -> Result<(), MachineError> {
        self.write(device, file, value).map_err(|error| no_device(error, file))
    }

    fn network_namespace(&self) -> u64 {
        self.netns_inode
    }
}

impl NetnsHandle {
    /// Distinguishes a missing queue from a device with a single queue, whose file exists and refuses access.
    fn no_queue(&self, error: MachineError, device: &DeviceId, queue: u32) -> MachineError {
        let MachineError::Refused { device: name, action, errno: Some(libc::ENOENT), .. } = error else { return error };
        let there = self.names_of(device, "queues").unwrap_or_default().contains(&format!("tx-{queue}"));
        if there {
            let reason = "it was created with one transmit queue, which every CPU uses".to_owned();
            return MachineError::Unsupported { device: name, action, reason };
        }
        MachineError::Gone { device: name, action, what: format!("transmit queue {queue} of {device}") }
    }
}

fn no_napi(device: &str, id: u32, action: &str, error: &crate::netlink::NetlinkError) -> MachineError {
    if error.is_not_found() {
        return MachineError::Gone { device: device.to_owned(), action: action.to_owned(), what: format!("NAPI {id}") };
    }
    MachineError::from_netlink(device, action, error)
}

fn no_device(error: MachineError, file: &str) -> MachineError {
    match error {
        MachineError::Refused { device, action, errno: Some(libc::ENOENT), .. } => {
            MachineError::Gone { what: format!("{file} of {device}"), device, action }
        }
        other => other,
    }
}
