//! A NIC that was opened for a server or a load: its warnings are told, and what it carries is recorded.

use std::cell::OnceCell;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use abey_bench::Datapath;
use abey_nic::{Pcap, QueuePair, Recording};

use crate::failure::Failure;

/// An open NIC with its runtime, and what it is recorded in.
pub(crate) struct Opened {
    pub(crate) datapath: Datapath,
    pub(super) warnings: Warnings,
    pub(super) record: Option<Record>,
}

impl Opened {
    /// Writes out what was recorded.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        self.warnings.end();
        drop(self.datapath);
        self.record.map_or(Ok(()), Record::finish)
    }
}

/// How often the NIC is asked for warnings.
const WARNINGS_EVERY: Duration = Duration::from_secs(1);

/// Tells the operator what is wrong with the other end of the wire, while it is: with a peer that leaves its checksums to
/// a NIC that is not there, nothing else would ever be heard.
pub(super) struct Warnings {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Warnings {
    pub(super) fn watch(datapath: Datapath) -> Result<Self, Failure> {
        let (stop, stopped) = mpsc::channel();
        let watch = move || loop {
            let ended = stopped.recv_timeout(WARNINGS_EVERY) != Err(RecvTimeoutError::Timeout);
            for warning in datapath.runtime().warnings() {
                eprintln!("abey: {warning}");
            }
            if ended {
                break;
            }
        };
        let thread = std::thread::Builder::new().name("abey-warnings".to_owned()).spawn(watch);
        let thread = thread.map_err(|error| Failure::lacks(format!("cannot start a thread: {error}")))?;
        Ok(Self { stop, thread })
    }

    fn end(self) {
        // It waits for this or for its time.
        let _ = self.stop.send(());
        let _ = self.thread.join();
    }
}

/// A recording that begins when the NIC is open, so that one that cannot be opened leaves the file as it was.
#[derive(Clone)]
pub(super) struct Record {
    path: PathBuf,
    recording: Rc<OnceCell<io::Result<Recording>>>,
}

impl Record {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), recording: Rc::default() }
    }

    /// The queue pair, recorded if the file can be written.
    pub(super) fn wrap(&self, queue: Box<dyn QueuePair>) -> Box<dyn QueuePair> {
        match self.recording.get_or_init(|| Recording::create(&self.path)) {
            Ok(recording) => Box::new(Pcap::new(queue, recording.clone())),
            Err(_) => queue,
        }
    }

    /// That the file can be written.
    pub(super) fn check(&self) -> Result<(), Failure> {
        match self.recording.get() {
            Some(Err(error)) => Err(Failure::usage(format!("cannot write {}: {error}", self.path.display()))),
            _ => Ok(()),
        }
    }

    fn finish(self) -> Result<(), Failure> {
        let Some(Ok(recording)) = self.recording.get() else { return Ok(()) };
        recording.flush().map_err(|error| Failure::check(format!("cannot write {}: {error}", self.path.display())))
    }
}
