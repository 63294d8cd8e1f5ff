//! One AF_XDP socket: its buffers, its four rings, bound to a queue of the device.

use std::ffi::CString;
use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use xdpilone::{DeviceQueue, IfInfo, RingRx, RingTx, SocketConfig, Umem, UmemConfig, User};

use super::{XdpCopy, XdpShape};
use crate::frame::ETHERNET_HEADER;
use crate::open::OpenError;

/// Bytes the kernel keeps free in front of each received frame (`XDP_PACKET_HEADROOM`).
const HEADROOM: usize = 256;
/// How long to wait for the kernel to let go of a queue.
const LETTING_GO: Duration = Duration::from_secs(1);

/// A bound socket. The rings come first, so that they go before the memory.
pub(super) struct Socket {
    pub(super) receive: RingRx,
    pub(super) transmit: RingTx,
    /// The fill and the completion ring.
    pub(super) device: DeviceQueue,
    user: User,
    pub(super) buffers: Buffers,
    /// Whether the driver reads and writes our buffers itself.
    pub(super) zero_copy: bool,
}

impl Socket {
    /// Opens a socket for `queue` of the device and gives the kernel its receive buffers.
    ///
    /// The kernel lets go of a queue a moment after its last socket was closed, so a queue that is taken is asked for
    /// again for a second.
    pub(super) fn open(device: &str, name: &str, queue: u32, mtu: usize, shape: &XdpShape) -> Result<Self, OpenError> {
        let end = Instant::now() + LETTING_GO;
        loop {
            match Self::try_open(device, name, queue, mtu, shape) {
                Err(OpenError::InUse { .. }) if Instant::now() < end => std::thread::sleep(LETTING_GO / 100),
                other => return other,
            }
        }
    }

    fn try_open(device: &str, name: &str, queue: u32, mtu: usize, shape: &XdpShape) -> Result<Self, OpenError> {
        let failed = |source: io::Error| refusal(device, queue, shape.copy, source);
        let errno = |error: xdpilone::Errno| failed(io::Error::from_raw_os_error(error.get_raw()));
        let chunk = chunk_for(mtu).ok_or_else(|| OpenError::Refused {
            device: device.to_owned(),
            reason: format!("its MTU is {mtu} bytes and AF_XDP frames are shorter than a page; make it 3500 or less"),
        })?;
        let buffers = Buffers::new(chunk, 2 * shape.slots).map_err(failed)?;
        let config = UmemConfig {
            fill_size: shape.slots,
            complete_size: shape.slots,
            frame_size: chunk as u32,
            headroom: 0,
            flags: 0,
        };
        // SAFETY: the buffers are page aligned, as large as said, and dropped after everything that uses them.
        let umem = unsafe { Umem::new(config, buffers.area()) }.map_err(errno)?;
        let mut info = IfInfo::invalid();
        info.from_name(&CString::new(name).expect("a validated name")).map_err(errno)?;
        info.set_queue(queue);
        let socket = xdpilone::Socket::with_shared(&info, &umem).map_err(errno)?;
        let mut rings = umem.fq_cq(&socket).map_err(errno)?;
        let copy = match shape.copy {
            XdpCopy::Any => 0,
            XdpCopy::Copy => SocketConfig::XDP_BIND_COPY,
            XdpCopy::ZeroCopy => SocketConfig::XDP_BIND_ZEROCOPY,
        };
        let slots = NonZeroU32::new(shape.slots);
        let bind_flags = copy | SocketConfig::XDP_BIND_NEED_WAKEUP;
        let user = umem.rx_tx(&socket, &SocketConfig { rx_size: slots, tx_size: slots, bind_flags }).map_err(errno)?;
        let (receive, transmit) = (user.map_rx().map_err(errno)?, user.map_tx().map_err(errno)?);
        // The first half of the buffers is for receiving, the second for transmitting.
        let mut fill = rings.fill(shape.slots);
        fill.insert((0..shape.slots).map(|number| u64::from(number) * chunk as u64));
        fill.commit();
        drop(fill);
        umem.bind(&user).map_err(errno)?;
        let zero_copy = is_zero_copy(user.as_raw_fd()).map_err(failed)?;
        if shape.copy == XdpCopy::ZeroCopy && !zero_copy {
            return Err(failed(io::Error::from_raw_os_error(libc::EOPNOTSUPP)));
        }
        Ok(Self { receive, transmit, device: rings, user, buffers, zero_copy })
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.user.as_raw_fd()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the rings keep the descriptor open as long as we exist.
        unsafe { BorrowedFd::borrow_raw(self.user.as_raw_fd()) }
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

/// Whether a bound socket works without copies (`XDP_OPTIONS`).
fn is_zero_copy(socket: RawFd) -> io::Result<bool> {
    let mut options = 0_u32;
    let mut length = size_of::<u32>() as libc::socklen_t;
    // SAFETY: the option is a 32-bit word of flags, and that is what there is room for.
    let result = unsafe {
        libc::getsockopt(socket, libc::SOL_XDP, libc::XDP_OPTIONS, (&raw mut options).cast(), &raw mut length)
    };
    if result == 0 { Ok(options & libc::XDP_OPTIONS_ZEROCOPY != 0) } else { Err(io::Error::last_os_error()) }
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

    fn area(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.base, self.bytes)
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
