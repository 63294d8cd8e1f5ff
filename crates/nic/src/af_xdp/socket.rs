//! One AF_XDP socket: its buffers, its four rings, bound to a queue of the device.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING,
    XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpOptionsFlags, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

use super::rings::{Consumer, Producer};
use super::{XdpCopy, XdpShape};
use crate::frame::ETHERNET_HEADER;
use crate::open::OpenError;

/// Bytes the kernel keeps free in front of each received frame (`XDP_PACKET_HEADROOM`).
const HEADROOM: usize = 256;
/// How long to wait for the kernel to let go of a queue.
const LETTING_GO: Duration = Duration::from_secs(1);

/// A bound socket. What refers to the memory and the descriptor comes before them, so that it goes before them.
pub(super) struct Socket {
    pub(super) receive: Consumer<XdpDesc>,
    pub(super) transmit: Producer<XdpDesc>,
    pub(super) fill: Producer<u64>,
    pub(super) completion: Consumer<u64>,
    descriptor: OwnedFd,
    pub(super) buffers: Buffers,
    /// Whether the driver reads and writes our buffers itself.
    pub(super) zero_copy: bool,
}

impl Socket {
    /// Opens a socket for `queue` of the device with this index and gives the kernel its receive buffers.
    ///
    /// The kernel lets go of a queue a moment after its last socket was closed, so a queue that is taken is asked for
    /// again for a second.
    pub(super) fn open(device: &str, index: u32, queue: u32, mtu: usize, shape: &XdpShape) -> Result<Self, OpenError> {
        let chunk = chunk_for(mtu).ok_or_else(|| OpenError::Refused {
            device: device.to_owned(),
            reason: format!("its MTU is {mtu} bytes and AF_XDP frames are shorter than a page; make it 3500 or less"),
        })?;
        let end = Instant::now() + LETTING_GO;
        loop {
            match Self::try_open(index, queue, chunk, shape).map_err(|error| refusal(device, queue, shape.copy, error))
            {
                Err(OpenError::InUse { .. }) if Instant::now() < end => std::thread::sleep(LETTING_GO / 100),
                other => return other,
            }
        }
    }

    fn try_open(index: u32, queue: u32, chunk: usize, shape: &XdpShape) -> io::Result<Self> {
        let slots = shape.slots;
        let buffers = Buffers::new(chunk, 2 * slots)?;
        let descriptor = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        let memory = XdpUmemReg {
            addr: buffers.base.as_ptr().addr() as u64,
            len: buffers.bytes as u64,
            chunk_size: chunk as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(&descriptor, memory)?;
        sockopt::set_xdp_umem_fill_ring_size(&descriptor, slots)?;
        sockopt::set_xdp_umem_completion_ring_size(&descriptor, slots)?;
        sockopt::set_xdp_rx_ring_size(&descriptor, slots)?;
        sockopt::set_xdp_tx_ring_size(&descriptor, slots)?;
        let offsets = sockopt::xdp_mmap_offsets(&descriptor)?;
        let fd = descriptor.as_fd();
        let mut fill = Producer::map(fd, XDP_UMEM_PGOFF_FILL_RING, offsets.fr, slots)?;
        let completion = Consumer::map(fd, XDP_UMEM_PGOFF_COMPLETION_RING, offsets.cr, slots)?;
        let receive = Consumer::map(fd, XDP_PGOFF_RX_RING, offsets.rx, slots)?;
        let transmit = Producer::map(fd, XDP_PGOFF_TX_RING, offsets.tx, slots)?;
        // The first half of the buffers is for receiving, the second for transmitting.
        for number in 0..u64::from(slots) {
            assert!(fill.push(number * chunk as u64), "the fill ring has room for half of the buffers");
        }
        fill.publish();
        let copy = match shape.copy {
            XdpCopy::Any => SocketAddrXdpFlags::empty(),
            XdpCopy::Copy => SocketAddrXdpFlags::XDP_COPY,
            XdpCopy::ZeroCopy => SocketAddrXdpFlags::XDP_ZEROCOPY,
        };
        let flags = copy | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        bind(&descriptor, &SocketAddrXdp::new(flags, index, queue))?;
        let zero_copy = sockopt::xdp_options(&descriptor)?.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY);
        if shape.copy == XdpCopy::ZeroCopy && !zero_copy {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        Ok(Self { receive, transmit, fill, completion, descriptor, buffers, zero_copy })
    }

    /// Frames the kernel dropped for want of buffers or of room in the receive ring.
    pub(super) fn dropped(&self) -> u64 {
        sockopt::xdp_statistics(&self.descriptor).map_or(0, |kernel| {
            let more = [kernel.rx_ring_full, kernel.rx_fill_ring_empty_descs];
            kernel.rx_dropped + more.into_iter().flatten().sum::<u64>()
        })
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Socket").field("zero_copy", &self.zero_copy).finish_non_exhaustive()
    }
}

/// Says what went wrong in words of this crate.
fn refusal(device: &str, queue: u32, copy: XdpCopy, source: io::Error) -> OpenError {
    let device = device.to_owned();
    let reason = match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            return OpenError::Permission { device, needs: "CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF" };
        }
        Some(libc::EOPNOTSUPP | libc::EINVAL) if copy == XdpCopy::ZeroCopy => {
            format!("zero copy was asked for, and the driver does not offer it on queue {queue}; ask for copy")
        }
        Some(libc::EINVAL) => format!("it has no queue {queue}; ask for fewer queues (`ethtool -l` shows them)"),
        Some(libc::EBUSY) => return OpenError::InUse { device: format!("queue {queue} of {device}") },
        Some(libc::ENETDOWN) => "it is down; bring it up first".to_owned(),
        _ => return OpenError::System { action: "open an AF_XDP socket on", device, source },
    };
    OpenError::Refused { device, reason }
}

/// The size of a buffer that holds a frame of this MTU; `None` when only more than a page would.
fn chunk_for(mtu: usize) -> Option<usize> {
    [2048, 4096].into_iter().find(|chunk| HEADROOM + ETHERNET_HEADER + 4 + mtu <= *chunk)
}

/// Memory that the kernel shares: buffers of one size. Addresses are offsets into it.
pub(super) struct Buffers {
    base: NonNull<u8>,
    bytes: usize,
    chunk: usize,
}

// SAFETY: owned memory, reached through raw copies only.
unsafe impl Send for Buffers {}

impl Buffers {
    fn new(chunk: usize, count: u32) -> io::Result<Self> {
        let bytes = chunk * count as usize;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::POPULATE);
        // SAFETY: a new mapping where the kernel likes it.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags)? };
        Ok(Self { base: NonNull::new(base.cast()).expect("a mapping is not at address 0"), bytes, chunk })
    }

    /// The addresses of the buffers to transmit from.
    pub(super) fn for_transmit(&self) -> impl Iterator<Item = u64> + use<> {
        let (first, chunk) = (self.bytes / 2, self.chunk);
        (first..self.bytes).step_by(chunk).map(|address| address as u64)
    }

    /// The address of the buffer that `address` lies in.
    pub(super) fn start_of(&self, address: u64) -> u64 {
        address & !(self.chunk as u64 - 1)
    }

    /// Copies bytes out; `false` when they do not lie in one buffer.
    pub(super) fn read(&self, address: u64, into: &mut [u8]) -> bool {
        if !self.contains(address, into.len()) {
            return false;
        }
        // SAFETY: checked just now; the kernel has given the buffer to us.
        unsafe { self.base.add(address as usize).as_ptr().copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
        true
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// When they do not fit the buffer at `address`.
    pub(super) fn write(&self, address: u64, bytes: &[u8]) {
        assert!(self.contains(address, bytes.len()), "{} bytes at {address} are outside the buffers", bytes.len());
        // SAFETY: checked just now; the buffer is ours until it is transmitted.
        unsafe { bytes.as_ptr().copy_to_nonoverlapping(self.base.add(address as usize).as_ptr(), bytes.len()) }
    }

    fn contains(&self, address: u64, length: usize) -> bool {
        let start = self.start_of(address);
        address < self.bytes as u64 && (address - start) as usize + length <= self.chunk
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: our mapping; the socket that knew it is gone.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping failed");
    }
}
