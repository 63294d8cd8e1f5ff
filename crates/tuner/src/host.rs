//! What all groups of one host share: the netlink connection, the poll counters, and the transaction that is rolled back as a whole.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use abey_linux::device::{Device, device_named, devices};
use abey_linux::kernel::NetnsHandle;
use abey_linux::napi::{Napi, NapiChange, napis, rx_queues};
use abey_linux::netlink::NetlinkError;
use abey_linux::netns::NetNs;
use abey_linux::probe::{NapiCapabilities, napi_capabilities};
use abey_metrics::Counts;
use abey_metrics::polls::{Polls, PollsError};
use abey_reconcile::{ApplyError, Plan, Restored, Step, Target, Transaction};

use crate::TuneError;

/// How long to wait for another process that holds the same instances. `apply --watch` does so while it repairs.
const HELD_TIMEOUT: Duration = Duration::from_secs(2);

/// The kernel of one network namespace.
pub struct Host {
    netns: NetNs,
    handle: NetnsHandle,
    capabilities: NapiCapabilities,
    journals: PathBuf,
    /// All changes; `None` before the first.
    transaction: Option<Transaction>,
    /// The poll counters; `None` until a group needs them.
    polls: Option<Polls>,
    /// The instances whose polls are counted, by group.
    counted: BTreeMap<u32, BTreeSet<u32>>,
}

/// A host that several groups use.
pub type SharedHost = Rc<RefCell<Host>>;

impl Host {
    /// Opens the kernel of a network namespace. Changes are journalled in `journals`.
    ///
    /// # Errors
    /// When the namespace or netlink cannot be opened.
    pub fn open(netns: NetNs, journals: PathBuf) -> Result<SharedHost, TuneError> {
        let mut handle = NetnsHandle::open(&netns)?;
        let capabilities = napi_capabilities(handle.netlink())?;
        let (transaction, polls, counted) = (None, None, BTreeMap::new());
        Ok(Rc::new(RefCell::new(Self { netns, handle, capabilities, journals, transaction, polls, counted })))
    }

    /// Returns which NAPI settings the kernel has.
    pub fn capabilities(&self) -> NapiCapabilities {
        self.capabilities
    }

    /// Returns the connection to the namespace.
    pub fn handle(&mut self) -> &mut NetnsHandle {
        &mut self.handle
    }

    /// Returns the device of a name.
    ///
    /// # Errors
    /// When there is none.
    pub fn device(&mut self, name: &str) -> Result<Device, TuneError> {
        Ok(device_named(self.handle.netlink(), name, self.netns.description())?)
    }

    /// Returns the device of a name, if it exists now.
    ///
    /// # Errors
    /// When devices cannot be listed.
    pub fn find_device(&mut self, name: &str) -> Result<Option<Device>, TuneError> {
        Ok(devices(self.handle.netlink())?.into_iter().find(|device| device.name == name))
    }

    /// Returns the targeted instances; none while the device is absent or down.
    ///
    /// # Errors
    /// When instances cannot be listed.
    pub fn instances(&mut self, device: &Device, target: &Target) -> Result<Vec<Napi>, TuneError> {
        let found = match self.try_instances(device, target) {
            Err(error) if error.is_not_found() => Vec::new(),
            other => other?,
        };
        Ok(found)
    }

    fn try_instances(&mut self, device: &Device, target: &Target) -> Result<Vec<Napi>, NetlinkError> {
        let netlink = self.handle.netlink();
        let mut all = napis(netlink, Some(device.ifindex))?;
        match target {
            Target::Device => {}
            Target::Napi(id) => all.retain(|napi| napi.id == *id),
            Target::Queues(queues) => {
                let served = rx_queues(netlink, device.ifindex)?;
                all.retain(|napi| queues.iter().any(|queue| served.get(queue) == Some(&napi.id)));
            }
        }
        Ok(all)
    }

    /// Returns the targeted receive queues, grouped by instance.
    ///
    /// # Errors
    /// When queues cannot be listed.
    pub fn queues(&mut self, device: &Device, target: &Target) -> Result<Vec<Vec<u32>>, TuneError> {
        let mut by_napi: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (queue, napi) in rx_queues(self.handle.netlink(), device.ifindex)? {
            let is_targeted = match target {
                Target::Device => true,
                Target::Queues(queues) => queues.contains(&queue),
                Target::Napi(id) => napi == *id,
            };
            if is_targeted {
                by_napi.entry(napi).or_default().push(queue);
            }
        }
        Ok(by_napi.into_values().collect())
    }

    /// Plans a change without applying it.
    ///
    /// # Errors
    /// When the kernel or the driver does not support it.
    pub fn plan(&mut self, device: &Device, target: &Target, desired: &NapiChange) -> Result<Plan, ApplyError> {
        Plan::new(&mut self.handle, device, target, desired, self.capabilities)
    }

    /// Applies a change within the transaction.
    ///
    /// # Errors
    /// When the kernel refuses it, or another process holds the instances.
    pub fn apply(&mut self, plan: &Plan) -> Result<(), ApplyError> {
        if self.transaction.is_none() {
            self.transaction = Some(Transaction::begin(NetnsHandle::open(&self.netns)?, Some(&self.journals)));
        }
        let transaction = self.transaction.as_mut().expect("begun");
        let since = Instant::now();
        loop {
            match transaction.replace(plan.clone()) {
                Err(ApplyError::Held { .. }) if since.elapsed() < HELD_TIMEOUT => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                other => return other.map(drop),
            }
        }
    }

    /// Counts the polls of these instances for a group, instead of its earlier ones.
    pub(crate) fn count_polls(&mut self, group: u32, napis: BTreeSet<u32>) -> Result<(), TuneError> {
        self.counted.insert(group, napis);
        let polls = match self.polls.take() {
            Some(polls) => polls,
            None => Polls::open().map_err(TuneError::unsupported)?,
        };
        let all = self.counted.values().flatten().copied().collect();
        self.polls.insert(polls).watch(&all).map_err(TuneError::failed)
    }

    /// Returns the number of a new group.
    pub(crate) fn add_group(&mut self) -> u32 {
        let number = self.counted.last_key_value().map_or(0, |(last, _)| last + 1);
        self.counted.insert(number, BTreeSet::new());
        number
    }

    /// Returns the counts of an instance, and the number of its polls on each CPU.
    pub(crate) fn counts(&self, napi: u32) -> Result<(Counts, BTreeMap<u32, u64>), PollsError> {
        let Some(polls) = &self.polls else { return Ok(Default::default()) };
        Ok((polls.read(napi)?, polls.by_cpu(napi)?))
    }

    /// Rolls all changes back, or leaves them with `keep`.
    pub(crate) fn finish(self, keep: bool) -> Result<(), TuneError> {
        let Some(transaction) = self.transaction else { return Ok(()) };
        if keep {
            transaction.finish().keep();
            return Ok(());
        }
        let restored = transaction.roll_back().map_err(|error| {
            TuneError::failed(format!("settings could not be put back: {error}; `abey set --restore` tries again"))
        })?;
        let others: BTreeSet<String> = restored.iter().filter_map(left_to_others).collect();
        for device in others {
            eprintln!("abey: another program changed {device} meanwhile: its settings stay");
        }
        Ok(())
    }
}

/// Returns the device of a step that was not rolled back because another program had changed the setting.
fn left_to_others(restored: &Restored) -> Option<String> {
    let Restored::ChangedSince(step) = restored else { return None };
    Step::changes(step).into_iter().next().map(|change| change.device)
}
