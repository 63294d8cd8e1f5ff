//! Asks the kernel for a TCP socket by its addresses (`sock_diag(7)`).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with};

/// Values of `linux/sock_diag.h`, `linux/netlink.h` and `net/tcp_states.h`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const NO_COOKIE: u32 = u32::MAX;
const ALL_STATES: u32 = u32::MAX;
const TCP_LISTEN: u8 = 10;
/// Length of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Offset of the state in `struct inet_diag_msg`.
const STATE: usize = 1;

/// `struct nlmsghdr` and `struct inet_diag_req_v2`, of which the latter ends with `struct inet_diag_sockid`.
const REQUEST: usize = HEADER + 56;

/// A connection to the kernel's socket tables, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct SockDiag(OwnedFd);

impl SockDiag {
    pub(crate) fn open() -> io::Result<Self> {
        let protocol = Some(netlink::SOCK_DIAG);
        Ok(Self(socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?))
    }

    /// Returns whether there is a TCP socket from `local` to `remote`, in any state but LISTEN.
    pub(crate) fn has_connection(&mut self, local: SocketAddr, remote: SocketAddr) -> io::Result<bool> {
        send(&self.0, &request(local, remote), SendFlags::empty())?;
        let mut answer = [0; 1024];
        let (length, _) = recv(&self.0, &mut answer[..], RecvFlags::empty())?;
        let field = |at: usize| answer.get(at..at + 4).filter(|_| length >= at + 4);
        let number = |at: usize| field(at).map(|bytes| i32::from_ne_bytes(bytes.try_into().expect("4 bytes")));
        let kind = field(4).map(|bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
        match kind {
            Some(NLMSG_ERROR) => match number(HEADER).map(|error| -error) {
                Some(libc::ENOENT) => Ok(false),
                Some(error) => Err(io::Error::from_raw_os_error(error)),
                None => Err(io::ErrorKind::InvalidData.into()),
            },
            Some(SOCK_DIAG_BY_FAMILY) => Ok(answer[HEADER + STATE] != TCP_LISTEN),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn request(local: SocketAddr, remote: SocketAddr) -> [u8; REQUEST] {
    let mut bytes = [0; REQUEST];
    let mut at = 0;
    let mut put = |part: &[u8]| {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    };
    put(&(REQUEST as u32).to_ne_bytes());
    put(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(&NLM_F_REQUEST.to_ne_bytes());
    put(&[0; 8]);
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    put(&[family as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    put(&ALL_STATES.to_ne_bytes());
    put(&local.port().to_be_bytes());
    put(&remote.port().to_be_bytes());
    for address in [local, remote] {
        let mut octets = [0; 16];
        match address.ip() {
            IpAddr::V4(v4) => octets[..4].copy_from_slice(&v4.octets()),
            IpAddr::V6(v6) => octets = v6.octets(),
        }
        put(&octets);
    }
    // Any interface.
    put(&[0; 4]);
    put(&NO_COOKIE.to_ne_bytes());
    put(&NO_COOKIE.to_ne_bytes());
    debug_assert_eq!(at, REQUEST, "every field was written");
    bytes
}
