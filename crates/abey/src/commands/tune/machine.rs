//! What all the groups of a kernel's NAPI instances have together: one conversation with the kernel, one count of polls, and
//! one set of changes that is put back as a whole.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use abey_linux::apply::{ApplyError, Place, Plan, Restored, Step, Target, Transaction};
use abey_linux::device::{Device, device_named, devices};
use abey_linux::napi::{Napi, NapiChange, napis, rx_queues};
use abey_linux::netlink::NetlinkError;
use abey_linux::netns::NetNs;
use abey_linux::probe::{NapiCapabilities, napi_capabilities};
use abey_observe::Counts;
use abey_observe::polls::{Polls, PollsError};

use crate::failure::Failure;

/// How long to wait for another Abey that holds the same instances: `apply --watch` does so for a moment when it repairs.
const PATIENCE: Duration = Duration::from_secs(2);

/// A kernel that is tuned.
pub(crate) struct Machine {
    netns: NetNs,
    place: Place,
    able: NapiCapabilities,
    journals: PathBuf,
    /// What was changed; nothing before the first change.
    transaction: Option<Transaction>,
    /// Counts polls, once somebody wants that.
    polls: Option<Polls>,
    /// The instances whose polls count, for each group.
    watched: BTreeMap<u32, BTreeSet<u32>>,
}

/// The same machine, for several groups.
pub(crate) type Shared = Rc<RefCell<Machine>>;

impl Machine {
    pub(crate) fn open(netns: NetNs, journals: PathBuf) -> Result<Shared, Failure> {
        let mut place = Place::open(&netns)?;
        let able = napi_capabilities(place.netlink())?;
        let (transaction, polls, watched) = (None, None, BTreeMap::new());
        Ok(Rc::new(RefCell::new(Self { netns, place, able, journals, transaction, polls, watched })))
    }

    pub(crate) fn able(&self) -> NapiCapabilities {
        self.able
    }

    pub(crate) fn place(&mut self) -> &mut Place {
        &mut self.place
    }

    pub(crate) fn device(&mut self, name: &str) -> Result<Device, Failure> {
        Ok(device_named(self.place.netlink(), name, self.netns.description())?)
    }

    /// The device of this name, if there is one by now.
    pub(crate) fn find_device(&mut self, name: &str) -> Result<Option<Device>, Failure> {
        Ok(devices(self.place.netlink())?.into_iter().find(|device| device.name == name))
    }

    /// The instances that are meant, as they are now; none while the device is away or down.
    pub(crate) fn instances(&mut self, device: &Device, target: &Target) -> Result<Vec<Napi>, Failure> {
        let found = match self.try_instances(device, target) {
            Err(error) if error.is_not_found() => Vec::new(),
            other => other?,
        };
        Ok(found)
    }

    fn try_instances(&mut self, device: &Device, target: &Target) -> Result<Vec<Napi>, NetlinkError> {
        let netlink = self.place.netlink();
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

    /// The receive queues that are meant, by the instance that serves them.
    pub(crate) fn queues(&mut self, device: &Device, target: &Target) -> Result<Vec<Vec<u32>>, Failure> {
        let mut by_napi: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (queue, napi) in rx_queues(self.place.netlink(), device.ifindex)? {
            let is_meant = match target {
                Target::Device => true,
                Target::Queues(queues) => queues.contains(&queue),
                Target::Napi(id) => napi == *id,
            };
            if is_meant {
                by_napi.entry(napi).or_default().push(queue);
            }
        }
        Ok(by_napi.into_values().collect())
    }

    /// Works out a change; nothing is made yet.
    pub(crate) fn plan(&mut self, device: &Device, target: &Target, wanted: &NapiChange) -> Result<Plan, ApplyError> {
        Plan::new(&mut self.place, device, target, wanted, self.able)
    }

    /// Makes a change, which is put back with all others.
    pub(crate) fn make(&mut self, plan: &Plan) -> Result<(), ApplyError> {
        if self.transaction.is_none() {
            self.transaction = Some(Transaction::begin(Place::open(&self.netns)?, Some(&self.journals)));
        }
        let transaction = self.transaction.as_mut().expect("begun");
        let since = Instant::now();
        loop {
            match transaction.replace(plan.clone()) {
                Err(ApplyError::Held { .. }) if since.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                other => return other.map(drop),
            }
        }
    }

    /// From here on the polls of these instances count for the group, and no others.
    pub(crate) fn watch(&mut self, group: u32, napis: BTreeSet<u32>) -> Result<(), Failure> {
        self.watched.insert(group, napis);
        let polls = match self.polls.take() {
            Some(polls) => polls,
            None => Polls::open().map_err(Failure::lacks)?,
        };
        let all = self.watched.values().flatten().copied().collect();
        self.polls.insert(polls).watch(&all).map_err(Failure::check)
    }

    /// A number for a group that nobody else has.
    pub(crate) fn number(&mut self) -> u32 {
        let number = self.watched.last_key_value().map_or(0, |(last, _)| last + 1);
        self.watched.insert(number, BTreeSet::new());
        number
    }

    /// What an instance that is watched did, and how many of its polls ran on each CPU.
    pub(crate) fn counts(&self, napi: u32) -> Result<(Counts, BTreeMap<u32, u64>), PollsError> {
        let Some(polls) = &self.polls else { return Ok(Default::default()) };
        Ok((polls.read(napi)?, polls.by_cpu(napi)?))
    }

    /// Puts everything back, or leaves it for good.
    pub(crate) fn finish(self, keep: bool) -> Result<(), Failure> {
        let Some(transaction) = self.transaction else { return Ok(()) };
        if keep {
            transaction.finish().keep();
            return Ok(());
        }
        let restored = transaction.roll_back().map_err(|error| {
            Failure::check(format!("settings could not be put back: {error}; `abey set --restore` tries again"))
        })?;
        let others: BTreeSet<String> = restored.iter().filter_map(left_to_others).collect();
        for device in others {
            eprintln!("abey: somebody else changed {device} meanwhile: what they set stays");
        }
        Ok(())
    }
}

/// The device of a step that was not put back.
fn left_to_others(restored: &Restored) -> Option<String> {
    let Restored::LeftToOthers(step) = restored else { return None };
    Step::changes(step).into_iter().next().map(|change| change.device)
}
