//! A decorator that records frames in a pcap file, with the caller's time stamps in nanoseconds.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, PcapError, TsResolution};

use crate::counters::Counters;
use crate::frame::Frame;
use crate::queue::{Capabilities, LinkState, QueuePair, ReceiveError, TransmitError, Warning};

/// Snapshot length of the file in bytes, longer than any frame.
const SNAP_LENGTH: u32 = 262_144;

/// A pcap file for the frames of any number of queue pairs. Clones are handles of the same file.
///
/// The format is the one of `draft-ietf-opsawg-pcap` with nanosecond stamps (magic number 0xa1b23c4d).
#[derive(Clone)]
pub struct Recording {
    name: String,
    writer: Arc<Mutex<PcapWriter<Sink>>>,
    sink: Sink,
}

/// The buffered file, shared with the writer that owns it, so that it can be flushed.
#[derive(Clone)]
struct Sink(Arc<Mutex<BufWriter<Box<dyn Write + Send>>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).flush()
    }
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
        let header = PcapHeader {
            snaplen: SNAP_LENGTH,
            datalink: DataLink::ETHERNET,
            ts_resolution: TsResolution::NanoSecond,
            ..PcapHeader::default()
        };
        let sink = Sink(Arc::new(Mutex::new(BufWriter::new(writer))));
        let writer = PcapWriter::with_header(sink.clone(), header).map_err(io_error)?;
        Ok(Self { name: name.to_owned(), writer: Arc::new(Mutex::new(writer)), sink })
    }

    /// Writes out the buffer. The last handle does so when it is dropped, but ignores errors.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn flush(&self) -> io::Result<()> {
        self.sink.clone().flush()
    }

    fn record(&self, at: Duration, frames: &[Frame]) -> io::Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        for frame in frames {
            writer.write_packet(&PcapPacket::new(at, frame.len() as u32, frame)).map_err(io_error)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Recording {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Recording").field("name", &self.name).finish_non_exhaustive()
    }
}

fn io_error(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other.to_string()),
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
