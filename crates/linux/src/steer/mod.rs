//! Queue steering: a packet filter that assigns each connection to the `SO_REUSEPORT` listener of its RX queue.
//!
//! The kernel spreads the connections of a server with one listener per worker by a hash, so each worker's epoll instance
//! gets packets of every NAPI instance and can busy poll only one of them. The filter made here
//! (`SO_ATTACH_REUSEPORT_CBPF`, `socket(7)`) picks the listener by the queue that received the SYN instead.
//!
//! A filter can load these values of a packet. The ancillary load `SKF_AD_QUEUE` is `skb->queue_mapping`: drivers of NICs
//! record the number of the RX queue plus one in it; veth leaves the sender's TX queue there, which is the number of the RX
//! queue itself. Taken modulo the number of queues, both distinguish the queues: on a NIC, queue q has worker q + 1 (and the
//! last queue worker 0), on veth worker q. `SKF_AD_HATYPE` identifies the loopback device, which has no queues; loads
//! relative to `SKF_NET_OFF` read the IP header.
//!
//! On veth a connection can move to another queue when its client retransmits a segment (`net.core.txrehash`); NICs choose
//! the queue by the addresses, which stay. The result of the filter is an index into the group, in the order in which its
//! sockets began to listen. With an index outside the group the kernel falls back to its hash. Source: Linux
//! `Documentation/networking/filter.rst` and `net/core/sock_reuseport.c`.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::sock_filter;
use nix::sys::socket::{SockType, SockaddrStorage, getsockname, getsockopt, sockopt};

/// The filter's result for a packet of the loopback device: no group is that large, so the kernel's hash decides.
pub const NO_WORKER: u32 = u32::MAX;

/// How often [`steer`] counts again after it attached a filter, while other listeners join the group.
const ATTEMPTS: u32 = 64;

/// Why a group could not be steered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SteerError {
    /// An option or the address of the socket could not be read.
    #[error("cannot read the {what} of listening socket {fd}: {source}")]
    Socket {
        /// What was read.
        what: &'static str,
        /// The socket.
        fd: i32,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The list of listening sockets could not be read.
    #[error("cannot count the listeners on {address} in {path}: {source}")]
    Count {
        /// The address of the group.
        address: SocketAddr,
        /// The file of the list.
        path: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The kernel refused the filter.
    #[error("cannot attach the queue filter to the {workers} listeners on {address}: {source}")]
    Attach {
        /// The address of the group.
        address: SocketAddr,
        /// How many listeners it has.
        workers: u32,
        /// The kernel's reason.
        source: io::Error,
    },
    /// Listeners joined or left during every attempt.
    #[error("the listeners on {address} change faster than they can be counted: their connections stay unsteered")]
    Unstable {
        /// The address of the group.
        address: SocketAddr,
    },
}

/// Returns the filter that picks one of `workers` listeners by the RX queue of a packet.
///
/// If `queues` is unknown or not less than the number of workers: worker = the packet's queue mapping modulo workers. With
/// more workers than queues: the workers with the same number modulo `queues` as the queue mapping share the queue, by a hash
/// of the packet's source, so that every worker is used and each gets packets of one NAPI instance. A packet of the loopback
/// device gets [`NO_WORKER`].
pub fn program(workers: NonZeroU32, queues: Option<NonZeroU32>) -> Vec<sock_filter> {
    let choice = match queues {
        Some(queues) if queues < workers => shared_queues(workers.get(), queues.get()),
        _ => vec![LOAD_QUEUE, alu(libc::BPF_MOD, workers.get()), RETURN_A],
    };
    let mut code = vec![LOAD_DEVICE_TYPE, jump(libc::BPF_JEQ, libc::ARPHRD_LOOPBACK.into(), 0, 1), return_k(NO_WORKER)];
    code.extend(choice);
    code
}

/// Attaches the filter for `workers` listeners to the group that `listener` belongs to, in place of any earlier one.
///
/// # Errors
/// The kernel's error; `EINVAL` if the socket lacks `SO_REUSEPORT`.
pub fn attach(listener: BorrowedFd<'_>, workers: NonZeroU32, queues: Option<NonZeroU32>) -> io::Result<()> {
    let mut code = program(workers, queues);
    let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_mut_ptr() };
    // SAFETY: `program` points at `code`; both are valid for the call, which copies them.
    let answer = unsafe {
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Steers the group of a TCP socket that has just begun to listen: counts the group and attaches the filter for it.
///
/// Returns the number of listeners the filter was made for; `None`, with nothing changed, when the socket is not TCP,
/// lacks `SO_REUSEPORT` or is alone. The caller calls this after every `listen`: however the calls of several processes and
/// threads interleave, the last filter is the one for all of them, because each call counts again after it attached. A group is counted by address and port; listeners of the same address in another group (bound to a device,
/// or of another user) make the count too high; then the load is less balanced, but no connection is lost.
///
/// # Errors
/// [`SteerError`]; the group is then left to the kernel's hash or to an earlier filter.
pub fn steer(listener: BorrowedFd<'_>, queues: Option<NonZeroU32>) -> Result<Option<NonZeroU32>, SteerError> {
    let fd = listener.as_raw_fd();
    let socket = |what| move |errno: nix::errno::Errno| SteerError::Socket { what, fd, source: errno.into() };
    if getsockopt(&listener, sockopt::SockType).map_err(socket("type"))? != SockType::Stream {
        return Ok(None);
    }
    let name: SockaddrStorage = getsockname(fd).map_err(socket("address"))?;
    let Some(address) = inet_address(&name) else {
        return Ok(None);
    };
    if !getsockopt(&listener, sockopt::ReusePort).map_err(socket("SO_REUSEPORT option"))? {
        return Ok(None);
    }
    let mut steered = None;
    for _ in 0..ATTEMPTS {
        let workers = NonZeroU32::new(count_listeners(address)?).filter(|n| n.get() > 1);
        if workers == steered {
            return Ok(steered);
        }
        let Some(workers) = workers else {
            return Ok(None);
        };
        attach(listener, workers, queues).map_err(|source| SteerError::Attach {
            address,
            workers: workers.get(),
            source,
        })?;
        steered = Some(workers);
    }
    Err(SteerError::Unstable { address })
}

fn inet_address(name: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = name.as_sockaddr_in().map(|v4| SocketAddr::V4(SocketAddrV4::from(*v4)));
    v4.or_else(|| name.as_sockaddr_in6().map(|v6| SocketAddr::V6(SocketAddrV6::from(*v6))))
}

/// Returns how many TCP sockets listen on exactly this address in the calling thread's network namespace.
fn count_listeners(address: SocketAddr) -> Result<u32, SteerError> {
    let path = if address.is_ipv4() { "/proc/thread-self/net/tcp" } else { "/proc/thread-self/net/tcp6" };
    File::open(path)
        .and_then(|file| count_in_table(BufReader::new(file), &table_address(address)))
        .map_err(|source| SteerError::Count { address, path, source })
}

/// Returns the address in the form of the kernel's table: its 32-bit words in the machine's byte order, then the port.
fn table_address(address: SocketAddr) -> String {
    let word = |bytes: &[u8]| {
        let bytes = bytes.iter().copied();
        let value = if cfg!(target_endian = "little") {
            bytes.rev().fold(0u32, |value, byte| value << 8 | u32::from(byte))
        } else {
            bytes.fold(0u32, |value, byte| value << 8 | u32::from(byte))
        };
        format!("{value:08X}")
    };
    let words: String = match address {
        SocketAddr::V4(v4) => word(&v4.ip().octets()),
        SocketAddr::V6(v6) => v6.ip().octets().chunks(4).map(word).collect(),
    };
    format!("{words}:{:04X}", address.port())
}

/// Counts the listening sockets of one address. Listeners come first in the table, so reading stops at the connections, of
/// which there may be many.
fn count_in_table(table: impl BufRead, address: &str) -> io::Result<u32> {
    const LISTEN: &str = "0A";
    let mut count = 0;
    for line in table.lines().skip(1) {
        let line = line?;
        let mut columns = line.split_ascii_whitespace().skip(1);
        let (local, state) = (columns.next(), columns.nth(1));
        if state != Some(LISTEN) {
            break;
        }
        count += u32::from(local == Some(address));
    }
    Ok(count)
}

const fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Returns a jump over `yes` or `no` instructions.
const fn jump(test: u32, k: u32, yes: u8, no: u8) -> sock_filter {
    sock_filter { code: (libc::BPF_JMP | test | libc::BPF_K) as u16, jt: yes, jf: no, k }
}

const fn alu(operation: u32, k: u32) -> sock_filter {
    statement(libc::BPF_ALU | operation | libc::BPF_K, k)
}

const fn return_k(k: u32) -> sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, k)
}

const fn load(size: u32, mode: u32, k: u32) -> sock_filter {
    statement(libc::BPF_LD | size | mode, k)
}

const fn store(slot: u32) -> sock_filter {
    statement(libc::BPF_ST, slot)
}

/// Returns an offset into the IP header.
const fn ip(offset: u32) -> u32 {
    (libc::SKF_NET_OFF as u32).wrapping_add(offset)
}

/// Returns an ancillary load.
const fn ancillary(value: libc::c_int) -> sock_filter {
    load(libc::BPF_W, libc::BPF_ABS, (libc::SKF_AD_OFF as u32).wrapping_add(value as u32))
}

const LOAD_QUEUE: sock_filter = ancillary(libc::SKF_AD_QUEUE);
const LOAD_DEVICE_TYPE: sock_filter = ancillary(libc::SKF_AD_HATYPE);
/// Returns the accumulator (`BPF_A`).
const RETURN_A: sock_filter = statement(libc::BPF_RET | 0x10, 0);
const ADD_X: sock_filter = statement(libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X, 0);

const QUEUE_SLOT: u32 = 0;
const HASH_SLOT: u32 = 1;

/// Multipliers of the hash: 2^32 divided by the golden ratio, and a prime. Both are odd, with bits in all positions.
const SPREAD: [u32; 2] = [0x9e37_79b1, 0x85eb_ca77];

/// Returns the filter for more workers than queues: the workers q, q + queues, q + 2 queues ... share queue q by a hash of
/// the source.
///
/// The receive hash of the packet cannot be used, because it chose the queue: among the packets of one queue its low bits are
/// equal, and where no device computed it, it is 0.
fn shared_queues(workers: u32, queues: u32) -> Vec<sock_filter> {
    let (least, first) = (workers / queues, workers % queues);
    let mut code = vec![LOAD_QUEUE, alu(libc::BPF_MOD, queues), store(QUEUE_SLOT)];
    code.extend(source_hash());
    code.push(load(libc::BPF_W, libc::BPF_MEM, QUEUE_SLOT));
    // The first `workers % queues` queues have one additional worker.
    code.push(jump(libc::BPF_JGE, first, 3, 0));
    code.extend([load(libc::BPF_W, libc::BPF_MEM, HASH_SLOT), alu(libc::BPF_MOD, least + 1)]);
    code.push(statement(libc::BPF_JMP | libc::BPF_JA, 2));
    code.extend([load(libc::BPF_W, libc::BPF_MEM, HASH_SLOT), alu(libc::BPF_MOD, least)]);
    code.push(alu(libc::BPF_MUL, queues));
    code.push(statement(libc::BPF_LDX | libc::BPF_W | libc::BPF_MEM, QUEUE_SLOT));
    code.extend([ADD_X, RETURN_A]);
    code
}

/// Returns the instructions that store a hash of the packet's source address and port in [`HASH_SLOT`].
fn source_hash() -> Vec<sock_filter> {
    let version_4 = [
        statement(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, ip(0)),
        load(libc::BPF_H, libc::BPF_IND, ip(0)),
        alu(libc::BPF_MUL, SPREAD[0]),
        store(HASH_SLOT),
        load(libc::BPF_W, libc::BPF_ABS, ip(12)),
    ];
    // The port follows the fixed header. After extension headers, which a SYN does not have in practice, this loads another
    // word of the packet, and the hash is worse.
    let version_6 = [
        load(libc::BPF_H, libc::BPF_ABS, ip(40)),
        alu(libc::BPF_MUL, SPREAD[0]),
        store(HASH_SLOT),
        load(libc::BPF_W, libc::BPF_ABS, ip(20)),
    ];
    let mut code = vec![load(libc::BPF_B, libc::BPF_ABS, ip(0)), alu(libc::BPF_RSH, 4)];
    code.push(jump(libc::BPF_JEQ, 4, 0, version_4.len() as u8 + 1));
    code.extend(version_4);
    code.push(statement(libc::BPF_JMP | libc::BPF_JA, version_6.len() as u32));
    code.extend(version_6);
    code.push(statement(libc::BPF_LDX | libc::BPF_W | libc::BPF_MEM, HASH_SLOT));
    code.extend([ADD_X, alu(libc::BPF_MUL, SPREAD[1]), alu(libc::BPF_RSH, 16), store(HASH_SLOT)]);
    code
}

#[cfg(test)]
mod tests;
