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

/// Receive buffers for each slot of the receive ring. With zero copy the driver receives every frame of the queue into one of
/// these, also those that the kernel gets. The ring holds at most half of them, so that frames for the kernel find one although
/// this process has stopped.
const RECEIVE_BUFFERS: u32 = 2;
/// Buffers for each slot: those, and one to transmit from.
const BUFFERS: u32 = RECEIVE_BUFFERS + 1;

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
    pub(super) fn open(facts: &Facts, queue: u32, descriptor: OwnedFd, shape: &XdpShape) -> Result<Self, OpenError> {
        let chunk = facts.chunk()?;
        let refused = |error| refusal(&facts.device, Some(queue), shape.copy, error);
        let buffers = Buffers::new(chunk, BUFFERS * shape.slots).map_err(refused)?;
        buffers.register(&descriptor).map_err(refused)?;
        Self::open_with(facts, queue, descriptor, buffers, shape)
    }

    /// Opens a socket and memory from [`socket_to_hand_out`], which are those of `queue`. `is_bound` is what that returned.
    pub(super) fn open_claimed(
        facts: &Facts,
        queue: u32,
        (descriptor, is_bound): (OwnedFd, bool),
        memory: &OwnedFd,
        shape: &XdpShape,
    ) -> Result<Self, OpenError> {
        let refused = |error| refusal(&facts.device, Some(queue), shape.copy, error);
        let buffers = Buffers::shared(memory, facts.chunk()?, BUFFERS * shape.slots).map_err(refused)?;
        if !is_bound {
            return Self::open_with(facts, queue, descriptor, buffers, shape);
        }
        let mut socket = Self::map(descriptor, buffers, shape.slots).map_err(refused)?;
        socket.zero_copy = uses_zero_copy(&socket.descriptor).map_err(refused)?;
        if socket.fill.needs_wakeup() {
            // The driver has found no buffer when the socket was bound.
            let _ = rustix::net::recv(&socket.descriptor, &mut [0_u8; 0][..], rustix::net::RecvFlags::DONTWAIT);
        }
        Ok(socket)
    }

    fn open_with(
        facts: &Facts,
        queue: u32,
        descriptor: OwnedFd,
        buffers: Buffers,
        shape: &XdpShape,
    ) -> Result<Self, OpenError> {
        let refused = |error| refusal(&facts.device, Some(queue), shape.copy, error);
        create_rings(&descriptor, shape.slots).map_err(refused)?;
        let mut socket = Self::map(descriptor, buffers, shape.slots).map_err(refused)?;
        socket.zero_copy = bind_to(&socket.descriptor, facts, queue, shape.copy)?;
        Ok(socket)
    }

    /// Maps the rings of a socket that has them, and gives the kernel its receive buffers.
    fn map(descriptor: OwnedFd, buffers: Buffers, slots: u32) -> io::Result<Self> {
        let chunk = buffers.chunk;
        let offsets = sockopt::xdp_mmap_offsets(&descriptor)?;
        let fd = descriptor.as_fd();
        let mut fill = Producer::map(fd, XDP_UMEM_PGOFF_FILL_RING, offsets.fr, RECEIVE_BUFFERS * slots)?;
        let completion = Consumer::map(fd, XDP_UMEM_PGOFF_COMPLETION_RING, offsets.cr, slots)?;
        let receive = Consumer::map(fd, XDP_PGOFF_RX_RING, offsets.rx, slots)?;
        let transmit = Producer::map(fd, XDP_PGOFF_TX_RING, offsets.tx, slots)?;
        // The first buffers are for receiving, the others for transmitting.
        for number in 0..u64::from(RECEIVE_BUFFERS * slots) {
            assert!(fill.push(number * chunk as u64), "the fill ring has room for all buffers to receive into");
        }
        fill.publish();
        Ok(Self { receive, transmit, fill, completion, descriptor, buffers, zero_copy: false })
    }

    /// Returns the number of frames that found no room in the receive ring, and of those that found no buffer.
    #[cfg(test)]
    pub(super) fn shortages(&self) -> (u64, u64) {
        let kernel = sockopt::xdp_statistics(&self.descriptor).expect("statistics");
        (kernel.rx_ring_full.unwrap_or(0), kernel.rx_fill_ring_empty_descs.unwrap_or(0))
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

/// A socket for another process.
#[derive(Debug)]
pub(crate) struct HandedOut {
    pub(crate) socket: OwnedFd,
    pub(crate) memory: OwnedFd,
    /// Whether it is bound to its queue. A process that has dropped its privileges could bind one that is not to any device,
    /// and send what it likes there.
    pub(crate) is_bound: bool,
}

/// Creates a socket and its memory for another process, and binds it to `queue`: the privileged half of
/// [`Socket::open_claimed`].
///
/// The kernel pins the pages in this call, on the account of this process, which is privileged and has no limit of locked
/// memory; a process that has dropped its privileges has one. Before Linux 6.4 the rings of a bound socket cannot be mapped,
/// so that the other process has to bind it; `allows_unbound` says whether that process may.
pub(super) fn socket_to_hand_out(
    facts: &Facts,
    queue: u32,
    shape: &XdpShape,
    allows_unbound: bool,
) -> Result<HandedOut, OpenError> {
    let chunk = facts.chunk()?;
    let make = || -> Result<(OwnedFd, OwnedFd), OpenError> {
        let socket = create(facts)?;
        let prepared = || -> io::Result<OwnedFd> {
            let memory = memfd_create("abey-xdp", MemfdFlags::CLOEXEC)?;
            ftruncate(&memory, chunk as u64 * u64::from(BUFFERS * shape.slots))?;
            Buffers::shared(&memory, chunk, BUFFERS * shape.slots)?.register(&socket)?;
            Ok(memory)
        };
        let memory = prepared().map_err(|error| refusal(&facts.device, None, shape.copy, error))?;
        Ok((socket, memory))
    };
    let refused = |error| refusal(&facts.device, Some(queue), shape.copy, error);
    let (socket, memory) = make()?;
    create_rings(&socket, shape.slots).map_err(refused)?;
    bind_to(&socket, facts, queue, shape.copy)?;
    let offsets = sockopt::xdp_mmap_offsets(&socket).map_err(|error| refused(error.into()))?;
    match Consumer::<XdpDesc>::map(socket.as_fd(), XDP_PGOFF_RX_RING, offsets.rx, shape.slots) {
        Ok(_) => Ok(HandedOut { socket, memory, is_bound: true }),
        Err(error) if error.raw_os_error() != Some(libc::EBUSY) => Err(refused(error)),
        Err(_) if !allows_unbound => Err(OpenError::Refused {
            device: facts.device.clone(),
            reason: "before Linux 6.4 a process of another user would get a socket that it could bind to any device"
                .to_owned(),
        }),
        Err(_) => {
            drop(socket);
            let (socket, memory) = make()?;
            Ok(HandedOut { socket, memory, is_bound: false })
        }
    }
}

/// Gives a new socket its four rings.
fn create_rings(descriptor: &OwnedFd, slots: u32) -> io::Result<()> {
    sockopt::set_xdp_umem_fill_ring_size(descriptor, RECEIVE_BUFFERS * slots)?;
    sockopt::set_xdp_umem_completion_ring_size(descriptor, slots)?;
    sockopt::set_xdp_rx_ring_size(descriptor, slots)?;
    Ok(sockopt::set_xdp_tx_ring_size(descriptor, slots)?)
}

/// Binds a socket with memory and rings to `queue`. Returns whether the driver does not copy.
///
/// The kernel releases a queue a moment after its last socket was closed, so the bind is retried for a second while the
/// queue is in use.
fn bind_to(descriptor: &OwnedFd, facts: &Facts, queue: u32, copy: XdpCopy) -> Result<bool, OpenError> {
    let end = Instant::now() + RELEASE_LIMIT;
    loop {
        let bound = try_bind(descriptor, facts.index, queue, copy);
        match bound.map_err(|error| refusal(&facts.device, Some(queue), copy, error)) {
            Err(OpenError::InUse { .. }) if Instant::now() < end => std::thread::sleep(RELEASE_LIMIT / 100),
            other => return other,
        }
    }
}

fn try_bind(descriptor: &OwnedFd, index: u32, queue: u32, copy: XdpCopy) -> io::Result<bool> {
    let how = match copy {
        XdpCopy::Any => SocketAddrXdpFlags::empty(),
        XdpCopy::Copy => SocketAddrXdpFlags::XDP_COPY,
        XdpCopy::ZeroCopy => SocketAddrXdpFlags::XDP_ZEROCOPY,
    };
    let flags = how | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
    bind(descriptor, &SocketAddrXdp::new(flags, index, queue))?;
    let zero_copy = uses_zero_copy(descriptor)?;
    if copy == XdpCopy::ZeroCopy && !zero_copy {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    Ok(zero_copy)
}

fn uses_zero_copy(descriptor: &OwnedFd) -> io::Result<bool> {
    Ok(sockopt::xdp_options(descriptor)?.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
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
        let (first, chunk) = (self.bytes / BUFFERS as usize * RECEIVE_BUFFERS as usize, self.chunk);
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
