//! An AF_XDP socket, bound to a queue of the device, with its buffers and its four rings.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING,
    XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpOptionsFlags, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

use super::facts::Facts;
use super::rings::{Consumer, Producer};
use super::shape::{XdpCopy, XdpShape};
use crate::error::OpenError;

/// Time to wait for the kernel to release a queue.
const RELEASE_LIMIT: Duration = Duration::from_secs(1);

/// A bound socket. Fields that refer to the memory and the descriptor come first, so that they are dropped first.
pub(super) struct Socket {
    pub(super) receive: Consumer<XdpDesc>,
    pub(super) transmit: Producer<XdpDesc>,
    pub(super) fill: Producer<u64>,
    pub(super) completion: Consumer<u64>,
    descriptor: OwnedFd,
    pub(super) buffers: Buffers,
    /// Whether the driver reads and writes the buffers without a copy.
    pub(super) zero_copy: bool,
}

impl Socket {
    /// Binds `descriptor`, a new AF_XDP socket, to `queue` and gives the kernel its receive buffers.
    ///
    /// The kernel releases a queue a moment after its last socket was closed, so the bind is retried for a second while the
    /// queue is in use.
    pub(super) fn open(facts: &Facts, queue: u32, descriptor: OwnedFd, shape: &XdpShape) -> Result<Self, OpenError> {
        let chunk = facts.chunk()?;
        let refused = |error| refusal(&facts.device, Some(queue), shape.copy, error);
        let buffers = Buffers::new(chunk, 2 * shape.slots).map_err(refused)?;
        buffers.register(&descriptor).map_err(refused)?;
        Self::open_with(facts, queue, descriptor, buffers, shape)
    }

    /// As [`Self::open`], with a socket and memory from [`socket_to_hand_out`].
    pub(super) fn open_claimed(
        facts: &Facts,
        queue: u32,
        descriptor: OwnedFd,
        memory: &OwnedFd,
        shape: &XdpShape,
    ) -> Result<Self, OpenError> {
        let refused = |error| refusal(&facts.device, Some(queue), shape.copy, error);
        let buffers = Buffers::shared(memory, facts.chunk()?, 2 * shape.slots).map_err(refused)?;
        Self::open_with(facts, queue, descriptor, buffers, shape)
    }

    fn open_with(
        facts: &Facts,
        queue: u32,
        descriptor: OwnedFd,
        buffers: Buffers,
        shape: &XdpShape,
    ) -> Result<Self, OpenError> {
        let refused = |error| refusal(&facts.device, Some(queue), shape.copy, error);
        let mut socket = Self::prepare(descriptor, buffers, shape.slots).map_err(refused)?;
        let end = Instant::now() + RELEASE_LIMIT;
        loop {
            match socket.bind(facts.index, queue, shape.copy).map_err(refused) {
                Err(OpenError::InUse { .. }) if Instant::now() < end => std::thread::sleep(RELEASE_LIMIT / 100),
                other => return other.map(|()| socket),
            }
        }
    }

    /// Sets up the rings of a socket that has its memory and is not bound yet.
    fn prepare(descriptor: OwnedFd, buffers: Buffers, slots: u32) -> io::Result<Self> {
        let chunk = buffers.chunk;
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
        Ok(Self { receive, transmit, fill, completion, descriptor, buffers, zero_copy: false })
    }

    fn bind(&mut self, index: u32, queue: u32, copy: XdpCopy) -> io::Result<()> {
        let how = match copy {
            XdpCopy::Any => SocketAddrXdpFlags::empty(),
            XdpCopy::Copy => SocketAddrXdpFlags::XDP_COPY,
            XdpCopy::ZeroCopy => SocketAddrXdpFlags::XDP_ZEROCOPY,
        };
        let flags = how | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        bind(&self.descriptor, &SocketAddrXdp::new(flags, index, queue))?;
        self.zero_copy = sockopt::xdp_options(&self.descriptor)?.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY);
        if copy == XdpCopy::ZeroCopy && !self.zero_copy {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        Ok(())
    }

    /// Returns the number of frames that the kernel dropped for lack of buffers or of room in the receive ring.
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

/// Creates an AF_XDP socket in this network namespace, not bound yet. This takes CAP_NET_RAW; its use does not.
pub(super) fn create(facts: &Facts) -> Result<OwnedFd, OpenError> {
    let socket = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None);
    socket.map_err(|error| refusal(&facts.device, None, XdpCopy::Any, error.into()))
}

/// Creates a socket and its memory for another process: the privileged half of [`Socket::open_claimed`].
///
/// The kernel pins the pages in this call, on the account of this process, which is privileged and has no limit of locked
/// memory; a process that has dropped its privileges has one.
pub(super) fn socket_to_hand_out(facts: &Facts, shape: &XdpShape) -> Result<(OwnedFd, OwnedFd), OpenError> {
    let (descriptor, chunk) = (create(facts)?, facts.chunk()?);
    let make = || -> io::Result<OwnedFd> {
        let memory = memfd_create("abey-xdp", MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, chunk as u64 * 2 * u64::from(shape.slots))?;
        Buffers::shared(&memory, chunk, 2 * shape.slots)?.register(&descriptor)?;
        Ok(memory)
    };
    let memory = make().map_err(|error| refusal(&facts.device, None, shape.copy, error))?;
    Ok((descriptor, memory))
}

/// Returns the error of this crate for an error of the system.
fn refusal(device: &str, queue: Option<u32>, copy: XdpCopy, source: io::Error) -> OpenError {
    let device = device.to_owned();
    let Some(queue) = queue else {
        return match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                OpenError::Permission { device, needs: "CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF" }
            }
            _ => OpenError::System { action: "make an AF_XDP socket for", device, source },
        };
    };
    let reason = match source.raw_os_error() {
        Some(libc::ENOBUFS) => {
            return OpenError::Permission { device, needs: "a higher limit of locked memory (ulimit -l)" };
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

    /// In memory that other processes have as well.
    fn shared(memory: &OwnedFd, chunk: usize, count: u32) -> io::Result<Self> {
        let bytes = chunk * count as usize;
        if fstat(memory)?.st_size as usize != bytes {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the memory has the wrong size"));
        }
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping where the kernel likes it.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, protection, flags, memory, 0)? };
        Ok(Self { base: NonNull::new(base.cast()).expect("a mapping is not at address 0"), bytes, chunk })
    }

    /// Makes the memory the socket's.
    fn register(&self, socket: &OwnedFd) -> io::Result<()> {
        let memory = XdpUmemReg {
            addr: self.base.as_ptr().addr() as u64,
            len: self.bytes as u64,
            chunk_size: self.chunk as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        Ok(sockopt::set_xdp_umem_reg(socket, memory)?)
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
        // SAFETY: checked above; the kernel does not access the buffer until it is transmitted.
        unsafe { bytes.as_ptr().copy_to_nonoverlapping(self.base.add(address as usize).as_ptr(), bytes.len()) }
    }

    fn contains(&self, address: u64, length: usize) -> bool {
        let start = self.start_of(address);
        address < self.bytes as u64 && (address - start) as usize + length <= self.chunk
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: an own mapping; the socket that used it is closed.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping failed");
    }
}
