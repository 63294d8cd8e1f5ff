//! A shard's queue pair, with the frames on their way in and out, and the count of its system calls.

use abey_delivery::Nanos;
use abey_nic::{Frame, LinkState, QueuePair, ReceiveError, TransmitError};
use abey_tcpip::{Settings, Stack};

use super::kick_batch::KickBatch;
use super::transmit::TransmitBuffer;

/// The most frames that one call to the NIC receives.
pub(super) const RECEIVE_BURST: usize = 64;

/// The queue pair.
pub(super) struct Device {
    pub(super) nic: Box<dyn QueuePair>,
    receive: Vec<Frame>,
    pub(super) transmit: TransmitBuffer,
    /// Frames in the transmit ring for which the device was not kicked yet.
    pub(super) batch: KickBatch,
    /// The NIC was asked for an interrupt when the transmit ring has room.
    pub(super) asked_for_room: bool,
    /// The NIC was used since [`Self::take_calls`], which may have cost system calls.
    was_used: bool,
    /// The NIC's count of system calls at the last [`Self::take_calls`].
    calls_seen: u64,
    link_was_up: bool,
}

impl Device {
    pub(super) fn new(nic: Box<dyn QueuePair>, stack: &Settings) -> Self {
        let mtu = nic.capabilities().mtu.max(stack.mtu);
        Self {
            link_was_up: nic.link() == LinkState::Up,
            nic,
            receive: Frame::burst(RECEIVE_BURST, mtu),
            transmit: TransmitBuffer::new(mtu, stack.mac),
            batch: KickBatch::default(),
            asked_for_room: false,
            was_used: false,
            calls_seen: 0,
        }
    }

    pub(super) fn set_time(&mut self, now: Nanos) {
        self.was_used = true;
        self.nic.set_time(now.into());
    }

    /// Receives up to `max` frames, which is at most [`RECEIVE_BURST`].
    pub(super) fn receive(&mut self, max: usize) -> Result<&[Frame], ReceiveError> {
        let count = self.nic.receive(&mut self.receive[..max])?;
        Ok(&self.receive[..count])
    }

    pub(super) fn mask(&mut self) {
        self.was_used = true;
        self.nic.mask();
    }

    /// Unmasks the interrupt. Returns whether work is pending already.
    pub(super) fn unmask(&mut self) -> bool {
        self.was_used = true;
        self.nic.unmask()
    }

    /// Acknowledges the interrupt. Returns whether there was one.
    pub(super) fn acknowledge(&mut self) -> Result<bool, ReceiveError> {
        self.was_used = true;
        self.nic.acknowledge()
    }

    /// Moves the stack's frames into the transmit ring. Returns the number of frames.
    pub(super) fn transmit(&mut self, now: Nanos, stack: &mut Stack) -> Result<u64, TransmitError> {
        if !self.transmit.is_blocked() && !stack.has_output() {
            return Ok(0);
        }
        self.was_used = true;
        let sent = self.transmit.flush(now, stack, &mut *self.nic)?;
        self.asked_for_room &= sent == 0;
        Ok(sent)
    }

    /// Kicks the device if that is due now that `sent` more frames are in the ring.
    pub(super) fn kick_if_due(&mut self, sent: u64, now: Nanos) -> Result<(), TransmitError> {
        if !self.batch.is_due(sent, now) {
            return Ok(());
        }
        self.was_used = true;
        self.nic.kick()
    }

    /// Returns when the device must be polled although it signals nothing.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.nic.deadline().map(|at| Nanos::from_nanos(at.as_nanos() as u64))
    }

    /// Returns the number of system calls since the last call of this function.
    pub(super) fn take_calls(&mut self) -> u64 {
        if !std::mem::take(&mut self.was_used) {
            return 0;
        }
        let calls = self.nic.system_calls();
        calls - std::mem::replace(&mut self.calls_seen, calls)
    }

    /// Returns whether the link was up before and is down now. May cost a system call.
    pub(super) fn link_is_lost(&mut self) -> bool {
        let is_up = self.nic.link() == LinkState::Up;
        self.link_was_up |= is_up || self.nic.counters().received > 0;
        self.link_was_up && !is_up
    }
}
