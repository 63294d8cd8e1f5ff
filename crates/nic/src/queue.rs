//! The one face of every NIC: a queue pair that receives and transmits bursts of frames, and can be masked.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use crate::counters::{Counters, Drops};
use crate::frame::{Checksum, ETHERNET_HEADER, Frame};

/// A receive queue and a transmit queue of a NIC with one interrupt: what one NAPI instance polls.
///
/// The protocol is that of a NIC driver under NAPI (Linux `Documentation/networking/napi.rst`):
///
/// 1. Sleep until [`as_fd`](AsFd::as_fd) is readable, then [`acknowledge`](Self::acknowledge) and [`mask`](Self::mask).
/// 2. [`receive`](Self::receive) and [`transmit`](Self::transmit) as long as there is work; [`kick`](Self::kick) after
///    the last transmit of a round.
/// 3. [`unmask`](Self::unmask) arms the interrupt, then looks: `true` means that work had slipped in, and that the
///    caller must go back to 2 rather than sleep.
///
/// A queue pair starts masked. Nothing here blocks.
pub trait QueuePair: AsFd + Send + fmt::Debug {
    /// Takes frames off the receive ring into the front of `frames` and returns how many.
    ///
    /// Fewer than asked for means that the ring was empty when looked at, but for frames that had to be dropped.
    ///
    /// # Errors
    /// When the device has failed or gone; frames before the failure have been returned by an earlier call.
    fn receive(&mut self, frames: &mut [Frame]) -> Result<usize, ReceiveError>;

    /// Puts frames on the transmit ring, in order, and returns how many it took from the front.
    ///
    /// Fewer than given is back-pressure: the rest is for later, when an interrupt (also for room in the transmit
    /// ring) or `unmask` says so. A frame that can never be sent (length, no link) is taken, dropped and counted. The
    /// peer need not see the frames before [`kick`](Self::kick).
    ///
    /// # Errors
    /// When the device has failed or gone.
    fn transmit(&mut self, frames: &[Frame]) -> Result<usize, TransmitError>;

    /// Makes sure that transmitted frames are on their way: wakes the peer or the kernel, if it asked for that.
    ///
    /// # Errors
    /// When the device has failed or gone.
    fn kick(&mut self) -> Result<(), TransmitError>;

    /// Stops interrupts. One that was on its way may still arrive.
    fn mask(&mut self);

    /// Arms the interrupt, then looks at the rings and returns whether there is work already: frames to receive, or,
    /// after back-pressure, room to transmit (said once). The interrupt stays armed either way, so a caller that polls on masks.
    fn unmask(&mut self) -> bool;

    /// Whether the descriptor becomes readable when a frame arrives although the interrupt is masked: where readability
    /// follows the ring itself and nobody at the other end does more for it than puts frames there.
    fn tells_while_masked(&self) -> bool {
        false
    }

    /// Clears the descriptor after it was readable, and returns whether an interrupt had been there.
    ///
    /// Where readability follows the ring itself (TAP, AF_XDP) there is nothing to clear and the answer is whether
    /// frames wait.
    ///
    /// # Errors
    /// When the device has failed or gone.
    fn acknowledge(&mut self) -> Result<bool, ReceiveError>;

    /// What this queue pair did so far. May take a system call.
    fn counters(&self) -> Counters;

    /// [`Counters::system_calls`] alone, which is cheap: a caller that bills them asks after every use.
    fn system_calls(&self) -> u64;

    /// What the device can do.
    fn capabilities(&self) -> Capabilities;

    /// Whether anybody is at the other end.
    fn link(&self) -> LinkState;

    /// Something about the other end that the operator should put right.
    fn warning(&self) -> Option<Warning> {
        None
    }

    /// Tells decorators what time it is, as a span since any origin that stays the same. Devices have no use for it.
    fn set_time(&mut self, _now: Duration) {}

    /// When the queue pair wants to be polled although nothing arrives (frames held back by an impairment), on the
    /// clock of [`set_time`](Self::set_time). Devices never do.
    fn deadline(&self) -> Option<Duration> {
        None
    }
}

/// What a NIC can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Longest packet in bytes, without the Ethernet header.
    pub mtu: usize,
    /// Whether frames may be sent with [`Checksum::NotNeeded`].
    pub checksum_offload: bool,
    /// Queue pairs of the device.
    pub queues: usize,
    /// Whether frames reach the device without a copy by the kernel. `None` where no device is involved.
    pub zero_copy: Option<bool>,
}

impl Capabilities {
    /// Whether the device can send the frame; if not, why it is dropped.
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

/// Whether anybody is at the other end of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Frames arrive somewhere.
    Up,
    /// Frames to transmit are dropped and counted.
    Down,
}

/// Something about the other end that the operator should put right; its `Display` says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Warning {
    /// The sender leaves checksums to a NIC that is not there.
    #[error(
        "received a frame with a partial checksum on {device}: switch off tx-checksumming at the peer (ethtool -K PEER tx off)"
    )]
    PartialChecksum {
        /// The device it came through.
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

/// Why frames could not be received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The device has failed or gone.
    #[error("cannot receive from {device}: {source}; does the device still exist and is it up?")]
    Device {
        /// The device.
        device: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A decorator could not write its record.
    #[error("cannot record received frames in {file}: {source}")]
    Record {
        /// The file.
        file: String,
        /// What went wrong.
        source: io::Error,
    },
}

/// Why frames could not be transmitted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransmitError {
    /// The device has failed or gone.
    #[error("cannot transmit through {device}: {source}; does the device still exist and is it up?")]
    Device {
        /// The device.
        device: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A decorator could not write its record.
    #[error("cannot record transmitted frames in {file}: {source}")]
    Record {
        /// The file.
        file: String,
        /// What went wrong.
        source: io::Error,
    },
}

/// A boxed queue pair is one too, so that decorators wrap whatever `open` returned.
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

    fn tells_while_masked(&self) -> bool {
        (**self).tells_while_masked()
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
