//! Properties of a network device, read and set with the requests of `netdevice(7)`.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Maximum length of a device's name in bytes, without its terminator.
const NAME: usize = libc::IFNAMSIZ - 1;

/// Returns why a text cannot be the name of a device, or `None` if it can (the rules of `dev_valid_name` in Linux).
pub(crate) fn problem_with_name(name: &str) -> Option<&'static str> {
    let forbidden = |byte: u8| byte == b'/' || byte == b':' || byte == b'%' || byte.is_ascii_whitespace() || byte == 0;
    if name.is_empty() || name.len() > NAME {
        Some("DEV is 1 to 15 bytes long")
    } else if name == "." || name == ".." || name.bytes().any(forbidden) {
        Some("DEV has no `/`, `:`, `%` and no space")
    } else {
        None
    }
}

/// A device by name, in the network namespace of the thread that created this value.
#[derive(Debug)]
pub(crate) struct Interface {
    name: String,
    /// Any socket: requests go to the namespace it was opened in.
    socket: OwnedFd,
}

impl Interface {
    pub(crate) fn new(name: &str) -> io::Result<Self> {
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(Self { name: name.to_owned(), socket })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the index of the device; `None` if no device has the name.
    pub(crate) fn index(&self) -> Option<u32> {
        let name = CString::new(self.name.as_str()).ok()?;
        // SAFETY: a terminated string that outlives the call.
        match unsafe { libc::if_nametoindex(name.as_ptr()) } {
            0 => None,
            index => Some(index),
        }
    }

    /// Returns the MTU in bytes.
    pub(crate) fn mtu(&self) -> io::Result<usize> {
        let request = self.request(libc::SIOCGIFMTU, request_for(&self.name))?;
        // SAFETY: SIOCGIFMTU fills this member.
        Ok(unsafe { request.ifr_ifru.ifru_mtu } as usize)
    }

    /// Returns the number of receive queues (`ETHTOOL_GCHANNELS`); 1 if the driver does not implement that.
    pub(crate) fn receive_queues(&self) -> io::Result<usize> {
        /// `struct ethtool_channels` of `linux/ethtool.h`.
        #[repr(C)]
        #[derive(Default)]
        struct Channels {
            command: u32,
            maxima: [u32; 4],
            receive: u32,
            transmit: u32,
            other: u32,
            combined: u32,
        }
        const ETHTOOL_GCHANNELS: u32 = 0x3c;
        const SIOCETHTOOL: libc::Ioctl = 0x8946;
        let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
        let mut request = request_for(&self.name);
        // The kernel writes the structure, which outlives the call and has the size that belongs to the command.
        request.ifr_ifru.ifru_data = (&raw mut channels).cast();
        match self.request(SIOCETHTOOL, request) {
            Ok(_) => Ok(((channels.receive + channels.combined) as usize).max(1)),
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(1),
            Err(error) => Err(error),
        }
    }

    /// Returns the Ethernet address.
    pub(crate) fn hardware_address(&self) -> io::Result<[u8; 6]> {
        let request = self.request(libc::SIOCGIFHWADDR, request_for(&self.name))?;
        // SAFETY: SIOCGIFHWADDR fills this member.
        let data = unsafe { request.ifr_ifru.ifru_hwaddr }.sa_data;
        Ok([0, 1, 2, 3, 4, 5].map(|at| data[at] as u8))
    }

    /// Returns whether the device is up and running.
    pub(crate) fn is_running(&self) -> bool {
        let wanted = libc::IFF_UP | libc::IFF_RUNNING;
        self.flags().is_ok_and(|flags| i32::from(flags) & wanted == wanted)
    }

    /// Brings the device up.
    pub(crate) fn set_up(&self) -> io::Result<()> {
        let mut request = request_for(&self.name);
        request.ifr_ifru.ifru_flags = self.flags()? | libc::IFF_UP as i16;
        self.request(libc::SIOCSIFFLAGS, request).map(drop)
    }

    fn flags(&self) -> io::Result<i16> {
        let request = self.request(libc::SIOCGIFFLAGS, request_for(&self.name))?;
        // SAFETY: SIOCGIFFLAGS fills this member.
        Ok(unsafe { request.ifr_ifru.ifru_flags })
    }

    fn request(&self, number: libc::Ioctl, request: libc::ifreq) -> io::Result<libc::ifreq> {
        ioctl(&self.socket, number, request)
    }
}

/// Returns an empty request for a device.
///
/// # Panics
/// When the name was not validated.
pub(crate) fn request_for(name: &str) -> libc::ifreq {
    assert!(problem_with_name(name).is_none(), "`{name}` was not validated");
    // SAFETY: all bytes zero is a valid request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

/// Makes a request with an `ifreq` as its argument.
pub(crate) fn ioctl(on: &OwnedFd, number: libc::Ioctl, mut request: libc::ifreq) -> io::Result<libc::ifreq> {
    // SAFETY: for the requests of this crate the kernel reads and writes at most the size of an `ifreq`, and the
    // structure that `receive_queues` points it at.
    match unsafe { libc::ioctl(on.as_raw_fd(), number, &raw mut request) } {
        0.. => Ok(request),
        _ => Err(io::Error::last_os_error()),
    }
}
