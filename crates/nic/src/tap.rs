//! TAP: Ethernet frames to and from the kernel through `/dev/net/tun`.
//!
//! See Linux `Documentation/networking/tuntap.rst`. Without a virtio header the kernel completes checksums and splits
//! large segments itself. Each frame takes one system call. The interrupt is the readable descriptor (level-triggered), and
//! masked means that the caller does not poll it, so that there is nothing to arm.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};

use crate::counters::Counters;
use crate::error::OpenError;
use crate::frame::{Checksum, ETHERNET_HEADER, Frame};
use crate::interface::{Interface, ioctl, request_for};
use crate::queue::{Capabilities, LinkState, QueuePair, ReceiveError, TransmitError};

/// Maximum number of queues of a TAP device (`MAX_TAP_QUEUES` of Linux).
pub(crate) const MAX_QUEUES: usize = 256;

/// A queue of a TAP device.
#[derive(Debug)]
pub struct TapQueue {
    file: OwnedFd,
    interface: Arc<Interface>,
    mtu: usize,
    queues: usize,
    /// Buffer for callers with buffers shorter than the device's frames.
    scratch: Frame,
    stalled: bool,
    counters: Counters,
}

/// Attaches to the TAP device `name`, or creates it and brings it up. A created device is removed with its last queue.
pub(crate) fn open(name: &str, queues: usize) -> Result<(Vec<TapQueue>, [u8; 6]), OpenError> {
    open_claimed(name, attach_queues(name, queues)?)
}

/// Returns the descriptors of the queues: the privileged half of [`open`].
pub(crate) fn attach_queues(name: &str, queues: usize) -> Result<Vec<OwnedFd>, OpenError> {
    if !(1..=MAX_QUEUES).contains(&queues) {
        return Err(OpenError::Options { reason: format!("{queues} queues, but a TAP device has 1 to {MAX_QUEUES}") });
    }
    let failed = |source: io::Error| match source.raw_os_error() {
        Some(libc::EINVAL) => OpenError::Options {
            reason: format!("{queues} queues of {name}, but it is not a TAP device or was created for another number"),
        },
        _ => refusal(name, source),
    };
    let interface = Interface::new(name).map_err(failed)?;
    let is_new = interface.index().is_none();
    let files = (0..queues).map(|_| attach(name, queues > 1)).collect::<io::Result<Vec<_>>>().map_err(failed)?;
    if is_new {
        interface.set_up().map_err(failed)?;
    }
    Ok(files)
}

/// Opens queues from their descriptors: the unprivileged half of [`open`].
pub(crate) fn open_claimed(name: &str, files: Vec<OwnedFd>) -> Result<(Vec<TapQueue>, [u8; 6]), OpenError> {
    let failed = |source| refusal(name, source);
    let interface = Arc::new(Interface::new(name).map_err(failed)?);
    let mtu = interface.mtu().map_err(failed)?;
    // The device's address is that of the kernel's end of the wire. This end needs another one.
    let mut address = interface.hardware_address().map_err(failed)?;
    address[0] = (address[0] | 2) & !1;
    address[5] ^= 1;
    let queues = files.len();
    let queue = |file| TapQueue {
        file,
        interface: interface.clone(),
        mtu,
        queues,
        scratch: Frame::with_capacity(ETHERNET_HEADER + mtu + 4),
        stalled: false,
        counters: Counters::default(),
    };
    Ok((files.into_iter().map(queue).collect(), address))
}

fn refusal(name: &str, source: io::Error) -> OpenError {
    let device = format!("tap:{name}");
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => OpenError::Permission { device, needs: "CAP_NET_ADMIN" },
        Some(libc::EBUSY) => OpenError::InUse { device },
        _ => OpenError::System { action: "open", device, source },
    }
}

fn attach(name: &str, several: bool) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
    let mut request = request_for(name);
    let several = if several { libc::IFF_MULTI_QUEUE } else { 0 };
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | several) as i16;
    ioctl(&file, libc::TUNSETIFF, request)?;
    Ok(file)
}

impl TapQueue {
    fn device(&self) -> String {
        format!("tap:{}", self.interface.name())
    }

    /// Reads a frame; `None` when there is none, `false` when it was dropped.
    fn read(&mut self, frame: &mut Frame) -> Result<Option<bool>, rustix::io::Errno> {
        self.counters.system_calls += 1;
        let direct = frame.capacity() >= ETHERNET_HEADER + self.mtu;
        let into = if direct { frame.buffer_mut() } else { self.scratch.buffer_mut() };
        let length = match rustix::io::read(&self.file, into) {
            Ok(length) => length,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
            Err(error) => return Err(error),
        };
        if length < ETHERNET_HEADER {
            self.counters.drops.receive_length += 1;
            return Ok(Some(false));
        }
        if direct {
            frame.set_len(length);
            frame.checksum = Checksum::Complete;
        } else if length <= frame.capacity() {
            self.scratch.set_len(length);
            frame.set(&self.scratch);
        } else {
            self.counters.drops.buffer += 1;
            return Ok(Some(false));
        }
        self.counters.received += 1;
        self.counters.received_bytes += length as u64;
        Ok(Some(true))
    }

    fn poll(&mut self, flags: PollFlags) -> bool {
        self.counters.system_calls += 1;
        let mut polled = [PollFd::new(&self.file, flags)];
        poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}

impl QueuePair for TapQueue {
    fn receive(&mut self, frames: &mut [Frame]) -> Result<usize, ReceiveError> {
        let mut count = 0;
        for _ in 0..frames.len() {
            match self.read(&mut frames[count]) {
                Ok(Some(fits)) => count += usize::from(fits),
                Ok(None) => break,
                // Frames that were read are returned first; the next call meets the error again.
                Err(_) if count > 0 => break,
                Err(error) => return Err(ReceiveError::Device { device: self.device(), source: error.into() }),
            }
        }
        Ok(count)
    }

    fn transmit(&mut self, frames: &[Frame]) -> Result<usize, TransmitError> {
        self.stalled = false;
        let capabilities = self.capabilities();
        for (index, frame) in frames.iter().enumerate() {
            if !capabilities.accepts(frame, &mut self.counters.drops) {
                continue;
            }
            self.counters.system_calls += 1;
            match rustix::io::write(&self.file, frame) {
                Ok(_) => {
                    self.counters.transmitted += 1;
                    self.counters.transmitted_bytes += frame.len() as u64;
                }
                Err(rustix::io::Errno::AGAIN) => {
                    self.counters.back_pressure += 1;
                    self.stalled = true;
                    return Ok(index);
                }
                // The device is down.
                Err(rustix::io::Errno::IO) => self.counters.drops.link_down += 1,
                Err(rustix::io::Errno::NOMEM | rustix::io::Errno::NOBUFS) => self.counters.drops.kernel += 1,
                Err(error) => return Err(TransmitError::Device { device: self.device(), source: error.into() }),
            }
        }
        Ok(frames.len())
    }

    fn kick(&mut self) -> Result<(), TransmitError> {
        Ok(())
    }

    fn mask(&mut self) {}

    fn unmask(&mut self) -> bool {
        let wanted = if self.stalled { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let ready = self.poll(wanted);
        // Reported once: the caller may have nothing left to send.
        self.stalled &= !ready;
        ready
    }

    fn acknowledge(&mut self) -> Result<bool, ReceiveError> {
        Ok(self.poll(PollFlags::IN))
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn system_calls(&self) -> u64 {
        self.counters.system_calls
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { mtu: self.mtu, checksum_offload: false, queues: self.queues, zero_copy: None }
    }

    fn link(&self) -> LinkState {
        if self.interface.is_running() { LinkState::Up } else { LinkState::Down }
    }
}

impl AsFd for TapQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
