//! A queue pair over an AF_XDP socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::xdp::{XdpDesc, XdpDescOptions};

use super::ports::Ports;
use super::socket::Socket;
use crate::checksum::is_partial;
use crate::counters::Counters;
use crate::frame::{Checksum, ETHERNET_HEADER, Frame};
use crate::interface::Interface;
use crate::queue::{Capabilities, LinkState, QueuePair, ReceiveError, TransmitError, Warning};

/// A queue pair of a device opened with AF_XDP. See [`open`](crate::open()).
#[derive(Debug)]
pub struct XdpQueue {
    socket: Socket,
    interface: Arc<Interface>,
    /// A handle that keeps the program attached.
    _ports: Ports,
    mtu: usize,
    queues: usize,
    /// Addresses of buffers to transmit from.
    free: Vec<u64>,
    /// Addresses of buffers to return to the kernel.
    returned: Vec<u64>,
    /// Whether frames were put in the ring since the last kick.
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
            dirty: false,
            stalled: false,
            counters: Counters::default(),
        }
    }

    /// Returns the numbers of frames that found no room in the receive ring, and that found no buffer.
    #[cfg(test)]
    pub(super) fn shortages(&self) -> (u64, u64) {
        self.socket.shortages()
    }

    fn device(&self) -> String {
        format!("af_xdp:{}", self.interface.name())
    }

    /// Copies a received frame; `false` if it was dropped.
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

    /// Returns received buffers to the kernel.
    fn refill(&mut self) {
        while let Some(&address) = self.returned.last() {
            if !self.socket.fill.push(address) {
                break;
            }
            self.returned.pop();
        }
        self.socket.fill.publish();
        if self.socket.fill.needs_wakeup() {
            self.counters.system_calls += 1;
            // A driver that ran out of buffers goes on when the socket is polled (af_xdp.rst, XDP_USE_NEED_WAKEUP).
            let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&Timespec::default()));
        }
    }

    /// Takes back transmitted buffers.
    fn reclaim(&mut self) {
        while let Some(address) = self.socket.completion.pop() {
            self.free.push(self.socket.buffers.start_of(address));
        }
        self.socket.completion.release();
    }
}

impl QueuePair for XdpQueue {
    fn receive(&mut self, frames: &mut [Frame]) -> Result<usize, ReceiveError> {
        let mut count = 0;
        for _ in 0..frames.len() {
            let Some(descriptor) = self.socket.receive.pop() else { break };
            count += usize::from(self.take(descriptor, &mut frames[count]));
            self.returned.push(self.socket.buffers.start_of(descriptor.addr));
        }
        self.socket.receive.release();
        if !self.returned.is_empty() {
            self.refill();
        }
        Ok(count)
    }

    fn transmit(&mut self, frames: &[Frame]) -> Result<usize, TransmitError> {
        self.reclaim();
        self.stalled = false;
        let capabilities = self.capabilities();
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
            let length = frame.len() as u32;
            let put =
                self.socket.transmit.push(XdpDesc { addr: address, len: length, options: XdpDescOptions::empty() });
            // The ring has a slot for each buffer.
            assert!(put, "the transmit ring has a slot for each buffer");
            self.dirty = true;
            self.counters.transmitted += 1;
            self.counters.transmitted_bytes += frame.len() as u64;
            taken += 1;
        }
        self.socket.transmit.publish();
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
                libc::sendto(self.as_fd().as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
            };
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                _ if sent >= 0 => {}
                Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) => {}
                // The device is down: frames wait in the ring.
                Some(libc::ENETDOWN) => break,
                _ => return Err(TransmitError::Device { device: self.device(), source: error }),
            }
            // In copy mode a call takes 32 frames: call again as long as a call takes any.
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
        // Frames that the kernel was too busy to send are submitted again; the next kick meets an error again.
        let _ = self.kick();
        // Completions raise no interrupt: a caller with frames to send must poll until there is room, which is reported
        // once.
        let waits = self.stalled || self.dirty;
        if self.stalled {
            self.reclaim();
            self.stalled = self.free.is_empty();
        }
        waits || self.socket.receive.is_ready()
    }

    fn readable_while_masked(&self) -> bool {
        true
    }

    fn acknowledge(&mut self) -> Result<bool, ReceiveError> {
        Ok(self.socket.receive.is_ready())
    }

    fn counters(&self) -> Counters {
        let mut counters = self.counters;
        counters.drops.kernel = self.socket.dropped();
        counters
    }

    fn system_calls(&self) -> u64 {
        self.counters.system_calls
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
