//! Conversions between `SocketAddr` and C's `sockaddr` (`sockaddr(3type)`).

use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{c_int, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

use crate::real;

/// Reads an IPv4 or IPv6 address. Returns `None` for another family, or if the length is too short.
///
/// # Safety
/// `address` is null, or `length` bytes can be read there.
pub(crate) unsafe fn read(address: *const sockaddr, length: socklen_t) -> Option<SocketAddr> {
    // SAFETY: guaranteed by the caller; the reads are unaligned, and the length is checked for each type.
    unsafe {
        let family = family(address, length)?;
        let length = length as usize;
        match family {
            libc::AF_INET if length >= size_of::<sockaddr_in>() => {
                let v4 = address.cast::<sockaddr_in>().read_unaligned();
                let ip = u32::from_be(v4.sin_addr.s_addr).into();
                Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 if length >= size_of::<sockaddr_in6>() => {
                let v6 = address.cast::<sockaddr_in6>().read_unaligned();
                let port = u16::from_be(v6.sin6_port);
                Some(SocketAddrV6::new(v6.sin6_addr.s6_addr.into(), port, 0, v6.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

/// Reads the family of an address.
///
/// # Safety
/// The same as for [`read`].
pub(crate) unsafe fn family(address: *const sockaddr, length: socklen_t) -> Option<c_int> {
    if address.is_null() || (length as usize) < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: guaranteed by the caller; the read is unaligned.
    Some(c_int::from(unsafe { address.cast::<libc::sa_family_t>().read_unaligned() }))
}

/// Writes an address to `to`, truncated to `length` bytes, and sets `length` to its full size. An IPv6 socket gets an IPv4
/// address in mapped form. Does nothing if `to` is null.
///
/// # Safety
/// `to` is null, or `length` points to the number of bytes that can be written there.
pub(crate) unsafe fn write(from: SocketAddr, is_v6: bool, to: *mut sockaddr, length: *mut socklen_t) {
    if to.is_null() || length.is_null() {
        return;
    }
    let put = |bytes: *const u8, size: usize| {
        // SAFETY: guaranteed by the caller; `bytes` points to a structure of this size.
        unsafe {
            let room = (length.read() as usize).min(size);
            std::ptr::copy_nonoverlapping(bytes, to.cast(), room);
            length.write(size as socklen_t);
        }
    };
    match (from.ip(), is_v6) {
        (IpAddr::V4(v4), false) => {
            let address = sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: from.port().to_be(),
                sin_addr: libc::in_addr { s_addr: v4.to_bits().to_be() },
                sin_zero: [0; 8],
            };
            put((&raw const address).cast(), size_of::<sockaddr_in>());
        }
        (ip, _) => {
            let ip = match ip {
                IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                IpAddr::V6(v6) => v6,
            };
            let address = sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: from.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: ip.octets() },
                sin6_scope_id: 0,
            };
            put((&raw const address).cast(), size_of::<sockaddr_in6>());
        }
    }
}

/// Returns the address that the kernel socket is bound to.
pub(crate) fn bound_addr(fd: c_int) -> Option<SocketAddr> {
    let mut storage = std::mem::MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut length = size_of::<libc::sockaddr_storage>() as socklen_t;
    let to: *mut sockaddr = storage.as_mut_ptr().cast();
    // SAFETY: the buffer has room for `length` bytes and was zeroed, so all of it may be read.
    unsafe { (real::GETSOCKNAME.get()(fd, to, &raw mut length) == 0).then(|| read(to, length)).flatten() }
}
