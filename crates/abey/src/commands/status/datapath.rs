//! Running datapaths, read at the begin and end of an interval.

use abey_datapath::control::{MAX_SOCKETS, Status};
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
        let mut notes: Vec<String> = unreachable.into_iter().map(|one| one.error.to_string()).collect();
        let mut samples = Vec::new();
        for Datapath { client, status: before } in reached {
            match client.status() {
                // The process ID that the datapath reports may be that of another PID namespace.
                Ok(status) => {
                    let mut sample = DatapathSample::between(before, Status { pid: client.pid(), ..status });
                    if self.with_sockets {
                        match client.sockets(MAX_SOCKETS) {
                            Ok(pages) => sample.sockets = Some(pages),
                            Err(error) => notes.push(format!("the sockets are not listed: {error}")),
                        }
                    }
                    samples.push(sample);
                }
                Err(error) => notes.push(error.to_string()),
            }
        }
        notes.extend(samples.iter().flat_map(DatapathSample::warnings));
        (samples, notes)
    }
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
