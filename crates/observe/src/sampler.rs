//! Puts a sample together.

use std::collections::BTreeSet;
use std::time::Instant;

use abey_delivery::Nanos;
use abey_linux::netns::NetNs;
use glob::Pattern;

use crate::collector::{Collector, Outcome};
use crate::datapath::Datapaths;
use crate::host::{Softirqs, count_interrupts};
use crate::kernel::Kernel;
use crate::polls::{Polls, PollsError};
use crate::sample::{Instance, Sample};

/// What is sampled.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is asked.
    pub collectors: BTreeSet<Collector>,
    /// Patterns of the names of devices and NICs; without any, all.
    pub devices: Vec<Pattern>,
}

/// Takes samples, over connections that stay open.
#[derive(Debug)]
pub struct Sampler {
    collectors: BTreeSet<Collector>,
    kernel: Kernel,
    polls: Option<Result<Polls, String>>,
    softirqs: Softirqs,
    datapaths: Datapaths,
}

impl Sampler {
    /// For the devices of this namespace, and the datapaths of the machine. Nothing is read yet, and nothing refused.
    #[must_use]
    pub fn new(netns: NetNs, options: &Options) -> Self {
        Self {
            collectors: options.collectors.clone(),
            kernel: Kernel::new(netns, &options.devices),
            polls: None,
            softirqs: Softirqs::default(),
            datapaths: Datapaths::new(&options.devices),
        }
    }

    /// How everything is now; `now` is a moment on any clock that does not go back.
    pub fn sample(&mut self, now: Nanos) -> Sample {
        let mut outcomes = Vec::new();
        let mut instances = Vec::new();
        let mut datapaths = Vec::new();
        let mut softnet = None;
        for collector in self.collectors.clone() {
            let began = Instant::now();
            let result = match collector {
                Collector::Napi => self.kernel.instances(now).map(|found| instances = found).map_err(say),
                Collector::Polls => self.count_polls(&mut instances),
                Collector::Interrupts => count_interrupts(&mut instances).map_err(say),
                Collector::Softnet => self.softirqs.read().map(|read| softnet = Some(read)).map_err(say),
                Collector::Datapath => {
                    let (found, shards, result) = self.datapaths.read(now);
                    datapaths = found;
                    instances.extend(shards);
                    result
                }
            };
            outcomes.push(Outcome { collector, took: began.elapsed(), result });
        }
        Sample { at: now, instances, datapaths, softnet, outcomes }
    }

    /// Of the kernel's instances. What is lacking for it is lacking for good: it is looked for once.
    fn count_polls(&mut self, instances: &mut [Instance]) -> Result<(), String> {
        let polls = self.polls.get_or_insert_with(|| Polls::open().map_err(say));
        let polls = polls.as_mut().map_err(|why| why.clone())?;
        polls.watch(&instances.iter().map(|one| one.key.napi).collect()).map_err(say)?;
        for one in instances {
            let counts = polls.read(one.key.napi).map_err(|error: PollsError| say(error))?;
            one.counts.add(&counts);
        }
        Ok(())
    }
}

fn say(error: impl std::fmt::Display) -> String {
    error.to_string()
}
