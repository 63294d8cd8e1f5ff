//! The older interface of ethtool, the ioctl `SIOCETHTOOL`: it carries tables of any size and exists on every kernel.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::device::DeviceId;
use crate::machine::{Capability, MachineError};
use crate::netlink::NetlinkError;
use crate::netns::NetNs;

/// A socket of a network namespace through which ethtool commands reach its devices.
#[derive(Debug)]
pub struct Ethtool {
    socket: OwnedFd,
}

/// The device and action of one command, for its error.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation<'a> {
    pub(super) device: &'a DeviceId,
    /// The action in words, with the name of the device.
    pub(super) action: &'a str,
}

impl Ethtool {
    /// Opens a socket in a namespace.
    ///
    /// # Errors
    /// The namespace cannot be entered.
    pub fn open(netns: &NetNs) -> Result<Self, NetlinkError> {
        let open = || socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        let socket = netns.run(open)?.map_err(|errno| NetlinkError::Refused {
            action: "open a socket for ethtool".to_owned(),
            reason: io::Error::from(errno).to_string(),
            errno: Some(errno.raw_os_error()),
        })?;
        Ok(Self { socket })
    }

    /// Sends the kernel a command; the kernel overwrites it with the answer.
    ///
    /// `command` begins with the command's number. The caller makes it as long as the kernel may write for the counts in it.
    pub(super) fn call(&self, operation: Operation<'_>, command: &mut [u8]) -> Result<(), MachineError> {
        let Operation { device, action } = operation;
        let failed = |error: &io::Error| MachineError::from_io(&device.name, action, Capability::NetAdmin, error);
        let mut request = self.request(device).map_err(|error| failed(&error))?;
        if !self.has_index(&mut request, device) {
            let what = format!("the device {}", device.name);
            return Err(MachineError::Gone { device: device.name.clone(), action: action.to_owned(), what });
        }
        request.ifr_ifru.ifru_data = command.as_mut_ptr().cast();
        // SAFETY: `request` names a device and points at `command`, which lives across the call; the caller made it as
        // long as the kernel writes for this command.
        match unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) } {
            -1 => Err(failed(&io::Error::last_os_error())),
            _ => Ok(()),
        }
    }

    /// Returns a request with the name of the device. The caller checks the index: the device may have been deleted and its
    /// name given to another.
    fn request(&self, device: &DeviceId) -> io::Result<libc::ifreq> {
        // SAFETY: the structure is plain bytes and a union of numbers and pointers, for which zeroes are a value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        let name = device.name.as_bytes();
        // One byte is for the terminating zero.
        if name.len() >= request.ifr_name.len() {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name) {
            *to = from.cast_signed() as libc::c_char;
        }
        Ok(request)
    }

    fn has_index(&self, request: &mut libc::ifreq, device: &DeviceId) -> bool {
        // SAFETY: the kernel writes a number into the union of `request`, which lives across the call.
        let status = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCGIFINDEX as _, &raw mut *request) };
        // SAFETY: after success the union holds the number of the device.
        status == 0 && unsafe { request.ifr_ifru.ifru_ifindex }.cast_unsigned() == device.ifindex
    }
}

/// `linux/sockios.h`.
const SIOCETHTOOL: libc::Ioctl = 0x8946;

/// Reads a number in native byte order at an offset.
pub(super) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_ne_bytes(bytes[offset..offset + 4].try_into().expect("four bytes"))
}

/// Writes a number in native byte order at an offset.
pub(super) fn put_u32(bytes: &mut [u8], offset: usize, value: u32) {
    bytes[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
}

/// Reads consecutive numbers in native byte order.
pub(super) fn u32s(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|chunk| u32_at(chunk, 0)).collect()
}
