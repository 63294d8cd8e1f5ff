//! Running datapaths, read at the begin and end of an interval.

use abey_datapath::control::{Client, MAX_SOCKETS, Status, describe, statuses};
use abey_linux::netns::{self, NetNs};
use abey_metrics::status::{DatapathSample, datapath_document, datapath_text};

use crate::datapath_world::{Datapath, Datapaths};
use crate::failure::Failure;
use crate::output::document_text;

/// Datapaths at the begin of an interval.
pub(super) struct Sampling {
    datapaths: Datapaths,
    with_sockets: bool,
}

impl Sampling {
    pub(super) fn start(datapaths: Datapaths) -> Self {
        Self { datapaths, with_sockets: false }
    }

    /// Reads the datapaths again. Returns those that still run, and notes about the others.
    pub(super) fn finish(self) -> (Vec<DatapathSample>, Vec<String>) {
        let Datapaths { reached, unreachable } = self.datapaths;
        let (mut unreachable, mut notes, mut samples) = (unreachable, Vec::new(), Vec::new());
        let (clients, before): (Vec<Client>, Vec<Status>) =
            reached.into_iter().map(|Datapath { client, status }| (client, status)).unzip();
        for ((client, status), before) in statuses(clients).into_iter().zip(before) {
            match status {
                // The process ID that the datapath reports may be that of another PID namespace.
                Ok(status) => {
                    let mut sample = DatapathSample::between(before, Status { pid: client.pid(), ..status });
                    sample.is_local = client.local_pid().is_some();
                    if self.with_sockets {
                        match client.sockets(MAX_SOCKETS) {
                            Ok(pages) => sample.sockets = Some(pages),
                            Err(error) => notes.push(format!("the sockets are not listed: {error}")),
                        }
                    }
                    samples.push(sample);
                }
                Err(error) => unreachable.push(client.unreachable(error)),
            }
        }
        notes.splice(..0, describe(&unreachable));
        notes.extend(elsewhere(&samples));
        notes.extend(samples.iter().flat_map(DatapathSample::warnings));
        (samples, notes)
    }
}

/// Returns a note for each datapath in another network namespace than this process, as far as this PID namespace has it. Names of devices and of shared-memory NICs
/// are names in that namespace.
fn elsewhere(samples: &[DatapathSample]) -> Vec<String> {
    let Ok(here) = NetNs::current() else { return Vec::new() };
    let mut named = None;
    let mut note = |sample: &DatapathSample| {
        let netns = NetNs::of_process(sample.is_local.then(|| sample.pid())?)
            .ok()
            .filter(|netns| netns.inode() != here.inode())?;
        let all = named.get_or_insert_with(netns::all);
        let known = all.iter().find(|one| one.inode() == netns.inode()).unwrap_or(&netns);
        Some(format!("{} of pid {} is in {}", sample.nic(), sample.pid(), known.description()))
    };
    samples.iter().filter_map(&mut note).collect()
}

/// Returns the datapaths in detail, as text or as a JSON document.
pub(super) fn show(datapaths: Datapaths, pause: impl FnOnce(), json: bool) -> Result<String, Failure> {
    let sampling = Sampling { datapaths, with_sockets: true };
    pause();
    let (samples, notes) = sampling.finish();
    if samples.is_empty() {
        return Err(Failure::check(notes.first().map_or("the datapath has just ended", String::as_str)));
    }
    if json { document_text(&datapath_document(&samples, &notes)) } else { Ok(datapath_text(&samples, &notes)) }
}
