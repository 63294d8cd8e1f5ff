//! A queue pair over an AF_XDP socket.
//!
//! The rings (`xdpilone`) hand out what they know of and only look at the kernel's index when they know of nothing, so
//! each is asked until it has nothing more.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use xdpilone::xdp::XdpDesc;

use super::ports::Ports;
use super::socket::Socket;
use crate::checksum::is_partial;
use crate::counters::Counters;
use crate::frame::{Checksum, ETHERNET_HEADER, Frame};
use crate::interface::Interface;
use crate::queue::{Capabilities, LinkState, QueuePair, ReceiveError, TransmitError, Warning};

/// A queue pair of a device opened with AF_XDP. See [`open`](crate::open).
#[derive(Debug)]
pub struct XdpQueue {
    socket: Socket,
    interface: Arc<Interface>,
    /// Keeps the program attached.
    _ports: Ports,
    mtu: usize,
    queues: usize,
    /// Addresses of buffers to transmit from.
    free: Vec<u64>,
    /// Addresses of buffers to give back to the kernel.
    returned: Vec<u64>,
    /// What came out of the receive ring last.
    arrived: Vec<XdpDesc>,
    /// What goes into the transmit ring next.
    sending: Vec<XdpDesc>,
    /// Frames were put in the ring and the kernel was not told.
    dirty: bool,
    stalled: bool,
    counters: Counters,
}

impl XdpQueue {
    pub(super) fn new(socket: Socket, interface: Arc<Interface>, ports: &Ports, mtu: usize, queues: usize) -> Self {
        Self {
            free: socket.buffers.for_transmit().collect(),
            socket,
            interface,
            _ports: ports.clone(),
            mtu,
            queues,
            returned: Vec::new(),
            arrived: Vec::new(),
            sending: Vec::new(),
            dirty: false,
            stalled: false,
            counters: Counters::default(),
        }
    }

    fn device(&self) -> String {
        format!("af_xdp:{}", self.interface.name())
    }

    /// Copies a received frame; `false` when it had to be dropped.
    fn take(&mut self, descriptor: XdpDesc, frame: &mut Frame) -> bool {
        let length = descriptor.len as usize;
        if length > frame.capacity() {
            self.counters.drops.buffer += 1;
            return false;
        }
        if length < ETHERNET_HEADER || !self.socket.buffers.read(descriptor.addr, &mut frame.buffer_mut()[..length]) {
            self.counters.drops.receive_length += 1;
            return false;
        }
        frame.set_len(length);
        let partial = is_partial(frame);
        frame.checksum = if partial { Checksum::Partial } else { Checksum::Complete };
        self.counters.partial_checksums += u64::from(partial);
        self.counters.received += 1;
        self.counters.received_bytes += length as u64;
        true
    }

    /// Gives received buffers back to the kernel.
    fn refill(&mut self) {
        while !self.returned.is_empty() {
            let mut fill = self.socket.device.fill(self.returned.len() as u32);
            let count = fill.insert(self.returned.iter().copied()) as usize;
            fill.commit();
            drop(fill);
            self.returned.drain(..count);
            if count == 0 {
                break;
            }
        }
        if self.socket.device.needs_wakeup() {
            self.counters.system_calls += 1;
            self.socket.device.wake();
        }
    }

    /// Takes back the buffers that were transmitted.
    fn reclaim(&mut self) {
        loop {
            let mut done = self.socket.device.complete(u32::MAX >> 1);
            if done.capacity() == 0 {
                return;
            }
            while let Some(address) = done.read() {
                self.free.push(self.socket.buffers.start_of(address));
            }
            done.release();
        }
    }

    /// Puts what is to be sent into the transmit ring.
    fn put(&mut self) {
        let mut at = 0;
        while at < self.sending.len() {
            let mut writer = self.socket.transmit.transmit((self.sending.len() - at) as u32);
            let count = writer.insert(self.sending[at..].iter().copied()) as usize;
            writer.commit();
            // There are as many slots as buffers, so whoever has a buffer has a slot.
            assert!(count > 0, "the transmit ring is shorter than its buffers are many");
            at += count;
        }
        self.sending.clear();
    }
}

impl QueuePair for XdpQueue {
    fn receive(&mut self, frames: &mut [Frame]) -> Result<usize, ReceiveError> {
        while self.arrived.len() < frames.len() {
            let mut reader = self.socket.receive.receive((frames.len() - self.arrived.len()) as u32);
            if reader.capacity() == 0 {
                break;
            }
            while let Some(descriptor) = reader.read() {
                self.arrived.push(descriptor);
            }
            reader.release();
        }
        let mut count = 0;
        for at in 0..self.arrived.len() {
            let descriptor = self.arrived[at];
            count += usize::from(self.take(descriptor, &mut frames[count]));
            self.returned.push(self.socket.buffers.start_of(descriptor.addr));
        }
        self.arrived.clear();
        if !self.returned.is_empty() {
            self.refill();
        }
        Ok(count)
    }

    fn transmit(&mut self, frames: &[Frame]) -> Result<usize, TransmitError> {
        self.reclaim();
        self.stalled = false;
        let capabilities = self.capabilities();
        self.sending.clear();
        let mut taken = 0;
        for frame in frames {
            if !capabilities.accepts(frame, &mut self.counters.drops) {
                taken += 1;
                continue;
            }
            let Some(address) = self.free.pop() else {
                self.counters.back_pressure += 1;
                self.stalled = true;
                break;
            };
            self.socket.buffers.write(address, frame);
            self.sending.push(XdpDesc { addr: address, len: frame.len() as u32, options: 0 });
            self.counters.transmitted += 1;
            self.counters.transmitted_bytes += frame.len() as u64;
            taken += 1;
        }
        if !self.sending.is_empty() {
            self.put();
            self.dirty = true;
        }
        Ok(taken)
    }

    fn kick(&mut self) -> Result<(), TransmitError> {
        if !std::mem::take(&mut self.dirty) {
            return Ok(());
        }
        let mut pending = self.socket.transmit.pending();
        while pending > 0 && self.socket.transmit.needs_wakeup() {
            self.counters.system_calls += 1;
            // SAFETY: no buffer and no address: the call only wakes the kernel (af_xdp.rst, XDP_USE_NEED_WAKEUP).
            let sent = unsafe {
                libc::sendto(self.socket.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
            };
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                _ if sent >= 0 => {}
                Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) => {}
                // The device is down: frames wait in the ring.
                Some(libc::ENETDOWN) => break,
                _ => return Err(TransmitError::Device { device: self.device(), source: error }),
            }
            // In copy mode a call takes 32 frames; as long as calls help, call on.
            let left = self.socket.transmit.pending();
            if left >= pending {
                self.dirty = true;
                break;
            }
            pending = left;
        }
        Ok(())
    }

    fn mask(&mut self) {}

    fn unmask(&mut self) -> bool {
        if self.stalled {
            // Completions do not wake anybody: a caller with frames to send has to come back.
            self.reclaim();
            return true;
        }
        self.socket.receive.available() > 0
    }

    fn acknowledge(&mut self) -> Result<bool, ReceiveError> {
        Ok(self.socket.receive.available() > 0)
    }

    fn counters(&self) -> Counters {
        let mut counters = self.counters;
        if let Ok(kernel) = self.socket.device.statistics_v2() {
            counters.drops.kernel = kernel.rx_dropped + kernel.rx_ring_full + kernel.rx_fill_ring_empty_descs;
        }
        counters
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            mtu: self.mtu,
            checksum_offload: false,
            queues: self.queues,
            zero_copy: Some(self.socket.zero_copy),
        }
    }

    fn link(&self) -> LinkState {
        if self.interface.is_running() { LinkState::Up } else { LinkState::Down }
    }

    fn warning(&self) -> Option<Warning> {
        (self.counters.partial_checksums > 0).then(|| Warning::PartialChecksum { device: self.device() })
    }
}

impl AsFd for XdpQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
