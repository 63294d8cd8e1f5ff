//! The sampler, which runs the collectors.

use std::collections::BTreeSet;
use std::time::Instant;

use abey_delivery::Nanos;
use abey_linux::netns::NetNs;
use glob::Pattern;

use crate::collector::{Collector, CollectorResult};
use crate::datapath::Datapaths;
use crate::host::{SoftnetTotals, count_interrupts};
use crate::kernel::Kernel;
use crate::polls::{Polls, PollsError};
use crate::sample::{Instance, Sample};

/// Options of a sampler.
#[derive(Clone, Debug)]
pub struct Options {
    /// The collectors to run.
    pub collectors: BTreeSet<Collector>,
    /// Patterns of device and NIC names; if empty, all.
    pub devices: Vec<Pattern>,
}

/// Takes samples over connections that stay open.
#[derive(Debug)]
pub struct Sampler {
    collectors: BTreeSet<Collector>,
    kernel: Kernel,
    polls: Option<Result<Polls, String>>,
    softnet: SoftnetTotals,
    datapaths: Datapaths,
}

impl Sampler {
    /// Creates a sampler for the devices of a network namespace and the datapaths of the machine. Opens nothing yet.
    #[must_use]
    pub fn new(netns: NetNs, options: &Options) -> Self {
        Self {
            collectors: options.collectors.clone(),
            kernel: Kernel::new(netns, &options.devices),
            polls: None,
            softnet: SoftnetTotals::default(),
            datapaths: Datapaths::new(&options.devices),
        }
    }

    /// Takes a sample. `now` is a time on any clock that does not go back.
    pub fn sample(&mut self, now: Nanos) -> Sample {
        let mut results = Vec::new();
        let mut instances = Vec::new();
        let mut datapaths = Vec::new();
        let mut softnet = None;
        for collector in self.collectors.clone() {
            let began = Instant::now();
            let result = match collector {
                Collector::Napi => self.kernel.instances(now).map(|found| instances = found).map_err(to_text),
                Collector::Polls => self.count_polls(&mut instances),
                Collector::Interrupts => count_interrupts(&mut instances).map_err(to_text),
                Collector::Softnet => self.softnet.read().map(|read| softnet = Some(read)).map_err(to_text),
                Collector::Datapath => {
                    let (found, shards, result) = self.datapaths.read(now);
                    datapaths = found;
                    instances.extend(shards);
                    result
                }
            };
            results.push(CollectorResult { collector, duration: began.elapsed(), result });
        }
        Sample { at: now, instances, datapaths, softnet, results }
    }

    /// Adds the poll counts to the kernel's instances. The BPF programs are loaded at the first call; a failure is final.
    fn count_polls(&mut self, instances: &mut [Instance]) -> Result<(), String> {
        let polls = self.polls.get_or_insert_with(|| Polls::open().map_err(to_text));
        let polls = polls.as_mut().map_err(|error| error.clone())?;
        polls.watch(&instances.iter().map(|one| one.key.napi).collect()).map_err(to_text)?;
        for one in instances {
            let counts = polls.read(one.key.napi).map_err(|error: PollsError| to_text(error))?;
            one.counts.add(&counts);
        }
        Ok(())
    }
}

fn to_text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
