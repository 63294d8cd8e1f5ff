//! The older face of ethtool, `SIOCETHTOOL`: it carries tables of any size and exists on every kernel.

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

/// What one command is about, for its error.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doing<'a> {
    pub(super) device: &'a DeviceId,
    /// What is tried, with the name of the device.
    pub(super) action: &'a str,
}

impl Ethtool {
    /// Opens a socket there.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn open(netns: &NetNs) -> Result<Self, NetlinkError> {
        let open = || socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        let socket = netns.run(open)?.map_err(|errno| NetlinkError::Refused {
            action: "open a socket for ethtool".to_owned(),
            reason: io::Error::from(errno).to_string(),
            errno: Some(errno.raw_os_error()),
        })?;
        Ok(Self { socket })
    }

    /// Gives the kernel a command and has it write the answer over it.
    ///
    /// `command` begins with the command's number and is as long as the kernel may write for it: that is the caller's
    /// to see to, from the counts within it.
    pub(super) fn call(&self, doing: Doing<'_>, command: &mut [u8]) -> Result<(), MachineError> {
        let Doing { device, action } = doing;
        let failed = |error: &io::Error| MachineError::from_io(&device.name, action, Capability::NetAdmin, error);
        let mut request = self.request(device).map_err(|error| failed(&error))?;
        if !self.is_still(&mut request, device) {
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

    /// A request by name; the command goes by name only, and a device that was deleted may have left its name to another.
    fn request(&self, device: &DeviceId) -> io::Result<libc::ifreq> {
        // SAFETY: the structure is plain bytes and a union of numbers and pointers, for which zeroes are a value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        let name = device.name.as_bytes();
        // One byte stays for the end of the string.
        if name.len() >= request.ifr_name.len() {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name) {
            *to = from.cast_signed() as libc::c_char;
        }
        Ok(request)
    }

    fn is_still(&self, request: &mut libc::ifreq, device: &DeviceId) -> bool {
        // SAFETY: the kernel writes a number into the union of `request`, which lives across the call.
        let status = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCGIFINDEX as _, &raw mut *request) };
        // SAFETY: after success the union holds the number of the device.
        status == 0 && unsafe { request.ifr_ifru.ifru_ifindex }.cast_unsigned() == device.ifindex
    }
}

/// `linux/sockios.h`.
const SIOCETHTOOL: libc::Ioctl = 0x8946;

/// Reads a number of the kernel's byte order at an offset.
pub(super) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_ne_bytes(bytes[offset..offset + 4].try_into().expect("four bytes"))
}

/// Writes a number in the kernel's byte order at an offset.
pub(super) fn put_u32(bytes: &mut [u8], offset: usize, value: u32) {
    bytes[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
}

/// Numbers of the kernel's byte order that follow each other.
pub(super) fn u32s(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|chunk| u32_at(chunk, 0)).collect()
}
