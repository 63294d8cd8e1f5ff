//! Ancillary data (`cmsg(3)`): of datagrams IP_PKTINFO (`ip(7)`) and IPV6_PKTINFO (`ipv6(7)`, RFC 3542), and descriptors that are
//! passed (SCM_RIGHTS, `unix(7)`).

use std::net::IpAddr;
use std::sync::OnceLock;

use libc::{c_int, c_void, cmsghdr, in_addr, in_pktinfo, in6_addr, in6_pktinfo, msghdr};

use super::context::datapath_config;
use super::handover::{Reason, hand_over};
use super::process;
use super::route::interface_index;

/// Writes the local address that a datagram was sent to, if `local` is given and there is room. Sets `msg_controllen` to
/// the number of bytes written, and MSG_CTRUNC if there was no room.
///
/// # Safety
/// The same as for `recvmsg`.
pub(super) unsafe fn write_destination(message: &mut msghdr, local: Option<IpAddr>, is_v6: bool) {
    let written = match local {
        None => 0,
        Some(IpAddr::V4(local)) if !is_v6 => {
            let address = in_addr { s_addr: local.to_bits().to_be() };
            let info = in_pktinfo { ipi_ifindex: device_index(), ipi_spec_dst: address, ipi_addr: address };
            // SAFETY: guaranteed by the caller.
            unsafe { write(message, libc::IPPROTO_IP, libc::IP_PKTINFO, &info) }
        }
        Some(local) => {
            let address = match local {
                IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                IpAddr::V6(v6) => v6,
            };
            let info =
                in6_pktinfo { ipi6_addr: in6_addr { s6_addr: address.octets() }, ipi6_ifindex: device_index() as u32 };
            // SAFETY: guaranteed by the caller.
            unsafe { write(message, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info) }
        }
    };
    message.msg_controllen = written as _;
}

/// Writes one control message and returns its length in bytes.
///
/// # Safety
/// The same as for `recvmsg`.
unsafe fn write<T>(message: &mut msghdr, level: c_int, kind: c_int, value: &T) -> usize {
    // SAFETY: both functions only compute.
    let (whole, space) = unsafe { (libc::CMSG_LEN(size_of::<T>() as u32), libc::CMSG_SPACE(size_of::<T>() as u32)) };
    let room: usize = message.msg_controllen as _;
    if message.msg_control.is_null() || room < whole as usize {
        message.msg_flags |= libc::MSG_CTRUNC;
        return 0;
    }
    // SAFETY: there is room for header and value, and the caller guarantees the alignment that C requires.
    unsafe {
        let header: *mut cmsghdr = message.msg_control.cast();
        (*header).cmsg_len = whole as _;
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        libc::CMSG_DATA(header).cast::<T>().copy_from_nonoverlapping(value, 1);
    }
    room.min(space as usize)
}

/// Returns the local address that a datagram shall be sent from, if the program gave one.
///
/// # Safety
/// The same as for `sendmsg`.
pub(super) unsafe fn read_source(message: &msghdr) -> Option<IpAddr> {
    if message.msg_control.is_null() || message.msg_controllen == 0 {
        return None;
    }
    // SAFETY: the caller guarantees `msg_controllen` readable bytes, and the macros stay within them.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(message);
        while let Some(header) = next.as_ref() {
            let value: *const c_void = libc::CMSG_DATA(next).cast();
            let whole: usize = header.cmsg_len as _;
            let length = whole.saturating_sub(libc::CMSG_LEN(0) as usize);
            match (header.cmsg_level, header.cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) if length >= size_of::<in_pktinfo>() => {
                    let info = value.cast::<in_pktinfo>().read_unaligned();
                    return Some(IpAddr::V4(u32::from_be(info.ipi_spec_dst.s_addr).into()));
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) if length >= size_of::<in6_pktinfo>() => {
                    let info = value.cast::<in6_pktinfo>().read_unaligned();
                    return Some(IpAddr::from(info.ipi6_addr.s6_addr).to_canonical());
                }
                _ => next = libc::CMSG_NXTHDR(message, next),
            }
        }
    }
    None
}

/// Returns the kernel's index of the NIC's device; 0 if the kernel has no such device.
fn device_index() -> c_int {
    static INDEX: OnceLock<c_int> = OnceLock::new();
    *INDEX.get_or_init(|| {
        let device = datapath_config().and_then(|config| match &*config.nic {
            // Its addresses are those of the kernel's loopback device.
            "memory:self" => Some("lo"),
            nic => nic.split_once(':').map(|(_, device)| device),
        });
        device.and_then(interface_index).map_or(0, |index| index as c_int)
    })
}

/// Hands over the connections whose descriptors a message passes on.
///
/// # Safety
/// The same as for `sendmsg`.
pub(super) unsafe fn hand_over_rights(message: &msghdr) {
    if message.msg_controllen == 0 || message.msg_control.is_null() || !process::may_have_entries() {
        return;
    }
    // SAFETY: guaranteed by the caller: the headers are within `msg_controllen`, and the descriptors may be unaligned.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(one) = header.as_ref() {
            if (one.cmsg_level, one.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                // The type of the length differs between C libraries.
                let length: usize = one.cmsg_len as _;
                let bytes = length.saturating_sub(libc::CMSG_LEN(0) as usize);
                let descriptors = libc::CMSG_DATA(header).cast::<c_int>();
                for at in 0..bytes / size_of::<c_int>() {
                    hand_over(descriptors.add(at).read_unaligned(), Reason::Passed);
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}
