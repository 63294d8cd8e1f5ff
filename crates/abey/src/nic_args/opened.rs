//! A NIC that was opened for a server or a load, with its warnings and its recording.

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

/// An open NIC with its runtime and its recording.
pub(crate) struct Opened {
    pub(crate) datapath: Datapath,
    pub(super) warnings: Warnings,
    pub(super) record: Option<Record>,
}

impl Opened {
    /// Ends the runtime and writes out the recording.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        self.warnings.end();
        drop(self.datapath);
        self.record.map_or(Ok(()), Record::finish)
    }
}

/// Interval at which warnings are read.
const WARNINGS_EVERY: Duration = Duration::from_secs(1);

/// A thread that prints warnings about the other end of the wire. Some problems have no other symptom than lost frames,
/// such as a peer that leaves checksums to hardware that does not exist.
pub(super) struct Warnings {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Warnings {
    pub(super) fn watch(datapath: Datapath) -> Result<Self, Failure> {
        let (stop, stopped) = mpsc::channel();
        let print = move || loop {
            let ended = stopped.recv_timeout(WARNINGS_EVERY) != Err(RecvTimeoutError::Timeout);
            for warning in datapath.runtime().warnings() {
                eprintln!("abey: {warning}");
            }
            if ended {
                break;
            }
        };
        let thread = std::thread::Builder::new().name("abey-warnings".to_owned()).spawn(print);
        let thread = thread.map_err(|error| Failure::lacks(format!("cannot start a thread: {error}")))?;
        Ok(Self { stop, thread })
    }

    fn end(self) {
        // The thread waits for this message or for the end of its interval.
        let _ = self.stop.send(());
        let _ = self.thread.join();
    }
}

/// A recording that begins when the NIC is open, so that the file is unchanged if the NIC cannot be opened.
#[derive(Clone)]
pub(super) struct Record {
    path: PathBuf,
    recording: Rc<OnceCell<io::Result<Recording>>>,
}

impl Record {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), recording: Rc::default() }
    }

    /// Wraps a queue pair, if the file can be written.
    pub(super) fn wrap(&self, queue: Box<dyn QueuePair>) -> Box<dyn QueuePair> {
        match self.recording.get_or_init(|| Recording::create(&self.path)) {
            Ok(recording) => Box::new(Pcap::new(queue, recording.clone())),
            Err(_) => queue,
        }
    }

    /// Returns an error if the file cannot be written.
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
