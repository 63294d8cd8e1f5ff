//! The trait of every NIC: a queue pair that receives and transmits bursts of frames, and can be masked.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use crate::counters::{Counters, Drops};
use crate::frame::{Checksum, ETHERNET_HEADER, Frame};

/// A receive queue and a transmit queue of a NIC with one interrupt, polled by one NAPI instance.
///
/// The protocol is that of a NIC driver under NAPI (Linux `Documentation/networking/napi.rst`):
///
/// 1. Sleep until [`as_fd`](AsFd::as_fd) is readable, then [`acknowledge`](Self::acknowledge) and [`mask`](Self::mask).
/// 2. [`receive`](Self::receive) and [`transmit`](Self::transmit) as long as there is work; [`kick`](Self::kick) after
///    the last transmit of a round.
/// 3. [`unmask`](Self::unmask) arms the interrupt, then checks the rings: `true` means that frames have arrived before it
///    was armed, and that the caller must go back to 2 instead of sleeping.
///
/// A queue pair starts masked. No method blocks.
pub trait QueuePair: AsFd + Send + fmt::Debug {
    /// Moves frames from the receive ring to the front of `frames` and returns their number.
    ///
    /// A number below `frames.len()` means that the ring was found empty, or that frames were dropped.
    ///
    /// # Errors
    /// When the device has failed or was removed. Frames received before that were returned by an earlier call.
    fn receive(&mut self, frames: &mut [Frame]) -> Result<usize, ReceiveError>;

    /// Copies frames to the transmit ring, in order, and returns how many it accepted from the front.
    ///
    /// A number below `frames.len()` is back-pressure: the caller retries after an interrupt (which also signals room in
    /// the transmit ring), or after `unmask` has returned `true`. A frame that can never be sent (length, no link) is
    /// accepted, dropped and counted. The peer may not see the frames before [`kick`](Self::kick).
    ///
    /// # Errors
    /// When the device has failed or was removed.
    fn transmit(&mut self, frames: &[Frame]) -> Result<usize, TransmitError>;

    /// Submits transmitted frames: wakes the peer or the kernel, if it has asked for that.
    ///
    /// # Errors
    /// When the device has failed or was removed.
    fn kick(&mut self) -> Result<(), TransmitError>;

    /// Masks the interrupt. One that was raised before may still arrive.
    fn mask(&mut self);

    /// Arms the interrupt, then checks the rings and returns whether they have work: frames to receive, or, after
    /// back-pressure, room to transmit (reported once). The interrupt is armed in both cases: a caller that goes on polling
    /// masks it.
    fn unmask(&mut self) -> bool;

    /// Returns whether the descriptor is level-triggered on ring occupancy, and so becomes readable when a frame arrives
    /// while the interrupt is masked.
    fn readable_while_masked(&self) -> bool {
        false
    }

    /// Acknowledges the interrupt: clears the descriptor, and returns whether it was signalled.
    ///
    /// A descriptor that is level-triggered on ring occupancy (TAP, AF_XDP) is not cleared; the result is whether frames
    /// wait.
    ///
    /// # Errors
    /// When the device has failed or was removed.
    fn acknowledge(&mut self) -> Result<bool, ReceiveError>;

    /// Returns the counters. May make a system call.
    fn counters(&self) -> Counters;

    /// Returns [`Counters::system_calls`] alone, which is cheap enough to be read after every use.
    fn system_calls(&self) -> u64;

    /// Returns the capabilities of the device.
    fn capabilities(&self) -> Capabilities;

    /// Returns whether the other end is connected.
    fn link(&self) -> LinkState;

    /// Returns a problem of the other end that its operator should fix.
    fn warning(&self) -> Option<Warning> {
        None
    }

    /// Sets the time for decorators, as a span since any fixed origin. Devices ignore it.
    fn set_time(&mut self, _now: Duration) {}

    /// Returns when the queue pair must be polled even if no frame arrives (a decorator delays frames), on the clock of
    /// [`set_time`](Self::set_time). Devices return `None`.
    fn deadline(&self) -> Option<Duration> {
        None
    }
}

/// Capabilities of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Maximum length of a packet in bytes, without the Ethernet header.
    pub mtu: usize,
    /// Whether frames may be sent with [`Checksum::NotNeeded`].
    pub checksum_offload: bool,
    /// Number of queue pairs of the device.
    pub queues: usize,
    /// Whether frames reach the device without a copy by the kernel; `None` for a NIC without a device.
    pub zero_copy: Option<bool>,
}

impl Capabilities {
    /// Returns whether the device can send the frame; if not, counts the drop.
    pub(crate) fn accepts(&self, frame: &Frame, drops: &mut Drops) -> bool {
        let complete = match frame.checksum {
            Checksum::Complete => true,
            Checksum::NotNeeded => self.checksum_offload,
            Checksum::Partial => false,
        };
        let fits = (ETHERNET_HEADER..=ETHERNET_HEADER + self.mtu).contains(&frame.len());
        drops.transmit_checksum += u64::from(!complete);
        drops.transmit_length += u64::from(complete && !fits);
        complete && fits
    }
}

/// State of the wire to the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Frames arrive somewhere.
    Up,
    /// Frames to transmit are dropped and counted.
    Down,
}

/// A problem of the other end that its operator should fix. The message contains the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Warning {
    /// The sender leaves checksums to the hardware, and no hardware has computed them.
    #[error(
        "received a frame with a partial checksum on {device}: switch off tx-checksumming at the peer (ethtool -K PEER tx off)"
    )]
    PartialChecksum {
        /// The device that received it.
        device: String,
    },
    /// The other process writes impossible values into the shared ring.
    #[error(
        "the peer of {device} corrupts the shared ring: its frames are dropped; stop it and start one of the same version"
    )]
    CorruptRing {
        /// The device.
        device: String,
    },
}

/// Reason why frames could not be received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The device has failed or was removed.
    #[error("cannot receive from {device}: {source}; does the device still exist and is it up?")]
    Device {
        /// The device.
        device: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A decorator could not write its record.
    #[error("cannot record received frames in {file}: {source}")]
    Record {
        /// The file.
        file: String,
        /// The error of the write.
        source: io::Error,
    },
}

/// Reason why frames could not be transmitted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransmitError {
    /// The device has failed or was removed.
    #[error("cannot transmit through {device}: {source}; does the device still exist and is it up?")]
    Device {
        /// The device.
        device: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A decorator could not write its record.
    #[error("cannot record transmitted frames in {file}: {source}")]
    Record {
        /// The file.
        file: String,
        /// The error of the write.
        source: io::Error,
    },
}

/// Lets decorators wrap the boxed queue pairs of a [`Nic`](crate::Nic).
impl QueuePair for Box<dyn QueuePair> {
    fn receive(&mut self, frames: &mut [Frame]) -> Result<usize, ReceiveError> {
        (**self).receive(frames)
    }

    fn transmit(&mut self, frames: &[Frame]) -> Result<usize, TransmitError> {
        (**self).transmit(frames)
    }

    fn kick(&mut self) -> Result<(), TransmitError> {
        (**self).kick()
    }

    fn mask(&mut self) {
        (**self).mask();
    }

    fn unmask(&mut self) -> bool {
        (**self).unmask()
    }

    fn readable_while_masked(&self) -> bool {
        (**self).readable_while_masked()
    }

    fn acknowledge(&mut self) -> Result<bool, ReceiveError> {
        (**self).acknowledge()
    }

    fn counters(&self) -> Counters {
        (**self).counters()
    }

    fn system_calls(&self) -> u64 {
        (**self).system_calls()
    }

    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    fn link(&self) -> LinkState {
        (**self).link()
    }

    fn warning(&self) -> Option<Warning> {
        (**self).warning()
    }

    fn set_time(&mut self, now: Duration) {
        (**self).set_time(now);
    }

    fn deadline(&self) -> Option<Duration> {
        (**self).deadline()
    }
}
