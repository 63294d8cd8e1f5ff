//! A decorator that records frames in a pcap file, with the caller's time stamps in nanoseconds.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::counters::Counters;
use crate::frame::Frame;
use crate::queue::{Capabilities, LinkState, QueuePair, ReceiveError, TransmitError, Warning};

/// The magic number of a file with time stamps in nanoseconds.
const MAGIC: u32 = 0xA1B2_3C4D;
/// Major and minor version of the format.
const VERSION: [u16; 2] = [2, 4];
/// Snapshot length of the file in bytes, longer than any frame.
const SNAP_LENGTH: u32 = 262_144;
/// `LINKTYPE_ETHERNET`.
const LINK_TYPE: u32 = 1;

/// A pcap file for the frames of any number of queue pairs. Clones are handles of the same file.
///
/// The format is the one of `draft-ietf-opsawg-pcap`, in network byte order.
#[derive(Clone)]
pub struct Recording {
    name: String,
    writer: Arc<Mutex<BufWriter<Box<dyn Write + Send>>>>,
}

impl Recording {
    /// Creates the file, or empties it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::new(&path.display().to_string(), Box::new(File::create(path)?))
    }

    /// Records in `writer`, called `name` in errors.
    ///
    /// # Errors
    /// When the header cannot be written.
    pub fn new(name: &str, writer: Box<dyn Write + Send>) -> io::Result<Self> {
        let mut writer = BufWriter::new(writer);
        writer.write_all(&MAGIC.to_be_bytes())?;
        writer.write_all(VERSION.map(u16::to_be_bytes).as_flattened())?;
        // Two reserved fields.
        writer.write_all([0, 0, SNAP_LENGTH, LINK_TYPE].map(u32::to_be_bytes).as_flattened())?;
        Ok(Self { name: name.to_owned(), writer: Arc::new(Mutex::new(writer)) })
    }

    /// Writes out the buffer. The last handle does so when it is dropped, but ignores errors.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn flush(&self) -> io::Result<()> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner).flush()
    }

    fn record(&self, at: Duration, frames: &[Frame]) -> io::Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        for frame in frames {
            // The captured length and the length on the wire are the same.
            let length = frame.len() as u32;
            let header = [at.as_secs() as u32, at.subsec_nanos(), length, length];
            writer.write_all(header.map(u32::to_be_bytes).as_flattened())?;
            writer.write_all(frame)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Recording {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Recording").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A queue pair that records its frames: received ones when they are returned to the caller, transmitted ones when they
/// are accepted. The time stamp is that of the last [`set_time`](QueuePair::set_time), a span since the Unix epoch.
///
/// Frames with [`Checksum::NotNeeded`](crate::Checksum::NotNeeded) are recorded unchanged: open the NIC without checksum
/// offload for a recording with correct checksums.
#[derive(Debug)]
pub struct Pcap<Q> {
    inner: Q,
    recording: Recording,
    now: Duration,
}

impl<Q: QueuePair> Pcap<Q> {
    /// Wraps `inner`.
    pub fn new(inner: Q, recording: Recording) -> Self {
        Self { inner, recording, now: Duration::ZERO }
    }
}

impl<Q: QueuePair> QueuePair for Pcap<Q> {
    fn receive(&mut self, frames: &mut [Frame]) -> Result<usize, ReceiveError> {
        let count = self.inner.receive(frames)?;
        match self.recording.record(self.now, &frames[..count]) {
            Ok(()) => Ok(count),
            Err(source) => Err(ReceiveError::Record { file: self.recording.name.clone(), source }),
        }
    }

    fn transmit(&mut self, frames: &[Frame]) -> Result<usize, TransmitError> {
        let count = self.inner.transmit(frames)?;
        match self.recording.record(self.now, &frames[..count]) {
            Ok(()) => Ok(count),
            Err(source) => Err(TransmitError::Record { file: self.recording.name.clone(), source }),
        }
    }

    fn kick(&mut self) -> Result<(), TransmitError> {
        self.inner.kick()
    }

    fn mask(&mut self) {
        self.inner.mask();
    }

    fn unmask(&mut self) -> bool {
        self.inner.unmask()
    }

    fn acknowledge(&mut self) -> Result<bool, ReceiveError> {
        self.inner.acknowledge()
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }

    fn system_calls(&self) -> u64 {
        self.inner.system_calls()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn link(&self) -> LinkState {
        self.inner.link()
    }

    fn warning(&self) -> Option<Warning> {
        self.inner.warning()
    }

    fn set_time(&mut self, now: Duration) {
        self.now = now;
        self.inner.set_time(now);
    }

    fn deadline(&self) -> Option<Duration> {
        self.inner.deadline()
    }
}

impl<Q: QueuePair> AsFd for Pcap<Q> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}
