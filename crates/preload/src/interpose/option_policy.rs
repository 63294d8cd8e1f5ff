//! What becomes of an option that a program sets: the closed list of options, with what each does to a socket of the datapath.
//!
//! | class | what happens |
//! | --- | --- |
//! | same | The datapath does the same, or the option is about what it does in another way |
//! | without effect | It stays in the kernel socket, and one line says so. The bytes that the program sends and receives are the same without it |
//! | the kernel's | It changes what is sent, received or reported. A connection that is established, or a UDP socket, is handed over; a socket on which it is set before stays the kernel's |
//!
//! An option that is in no list is the kernel's. One that is set to 0 is a socket's default, and is the same.
//!
//! Where the kernel cannot take a socket over (a NIC that the kernel does not share), the options of the third class are
//! without effect, too.

use libc::c_int;

use super::socket_options::{congestion_control, int, is_mirrored};

/// What an option does to a socket of the datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Same,
    None,
    Kernel,
}

/// Options that are the same for a datapath socket, or whose effect is another way to do what the datapath does.
const SAME: [(c_int, c_int); 23] = [
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::SOL_SOCKET, libc::SO_BROADCAST),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::SOL_SOCKET, libc::SO_BUSY_POLL),
    (libc::SOL_SOCKET, SO_PREFER_BUSY_POLL),
    (libc::SOL_SOCKET, SO_BUSY_POLL_BUDGET),
    (libc::SOL_SOCKET, libc::SO_INCOMING_CPU),
    (libc::SOL_SOCKET, SO_BUF_LOCK),
    // Allows MSG_ZEROCOPY, with which a connection is handed over.
    (libc::SOL_SOCKET, SO_ZEROCOPY),
    (libc::SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF),
    (libc::SOL_SOCKET, SO_ATTACH_REUSEPORT_EBPF),
    (libc::IPPROTO_IP, libc::IP_PKTINFO),
    (libc::IPPROTO_IP, libc::IP_FREEBIND),
    (libc::IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT),
    (libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE),
    // Packets are sent with "don't fragment" in any case.
    (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
    (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
    (libc::IPPROTO_IPV6, IPV6_FREEBIND),
    // Datagrams are never merged, which the option only allows.
    (libc::IPPROTO_UDP, UDP_GRO),
    (libc::IPPROTO_UDP, UDP_NO_CHECK6_RX),
];

/// Options without effect: priorities, hints and statistics, and those of a handshake, which is the same without them.
const HARMLESS: [(c_int, c_int); 20] = [
    (libc::SOL_SOCKET, libc::SO_DEBUG),
    (libc::SOL_SOCKET, libc::SO_DONTROUTE),
    (libc::SOL_SOCKET, libc::SO_PRIORITY),
    (libc::SOL_SOCKET, SO_CNX_ADVICE),
    (libc::SOL_SOCKET, SO_RESERVE_MEM),
    (libc::SOL_SOCKET, SO_TXREHASH),
    (libc::IPPROTO_TCP, libc::TCP_LINGER2),
    (libc::IPPROTO_TCP, libc::TCP_THIN_LINEAR_TIMEOUTS),
    (libc::IPPROTO_TCP, libc::TCP_THIN_DUPACK),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN),
    (libc::IPPROTO_TCP, TCP_SAVE_SYN),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT),
    (libc::IPPROTO_TCP, TCP_FASTOPEN_KEY),
    (libc::IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE),
    // A message that reports how much is left; programs have to do without it before Linux 4.18.
    (libc::IPPROTO_TCP, TCP_INQ),
    (libc::IPPROTO_IP, libc::IP_MULTICAST_TTL),
    (libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP),
    (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS),
    (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP),
    (libc::IPPROTO_IPV6, IPV6_AUTOFLOWLABEL),
];

/// Options about what arrives with a datagram or is sent with it, which a connection does not have.
const OF_DATAGRAMS: [(c_int, c_int); 14] = [
    (libc::SOL_SOCKET, libc::SO_NO_CHECK),
    (libc::SOL_SOCKET, libc::SO_RXQ_OVFL),
    (libc::SOL_SOCKET, SO_SELECT_ERR_QUEUE),
    (libc::IPPROTO_IP, libc::IP_RECVOPTS),
    (libc::IPPROTO_IP, libc::IP_RETOPTS),
    (libc::IPPROTO_IP, libc::IP_RECVERR),
    (libc::IPPROTO_IP, libc::IP_RECVTTL),
    (libc::IPPROTO_IP, libc::IP_RECVTOS),
    (libc::IPPROTO_IP, libc::IP_RECVORIGDSTADDR),
    (libc::IPPROTO_IP, IP_RECVFRAGSIZE),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
    (libc::IPPROTO_IPV6, IPV6_RECVPATHMTU),
];

/// Names of options that are the kernel's, for the line that says so. Those without a name are the kernel's, too.
const NAMES: [(c_int, c_int, &str); 22] = [
    (libc::SOL_SOCKET, libc::SO_MARK, "SO_MARK"),
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT, "SO_RCVLOWAT"),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP, "SO_TIMESTAMP"),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, "SO_TIMESTAMPNS"),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING, "SO_TIMESTAMPING"),
    (libc::SOL_SOCKET, libc::SO_BINDTODEVICE, "SO_BINDTODEVICE"),
    (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, "SO_ATTACH_FILTER"),
    (libc::SOL_SOCKET, SO_ATTACH_BPF, "SO_ATTACH_BPF"),
    (libc::SOL_SOCKET, SO_MAX_PACING_RATE, "SO_MAX_PACING_RATE"),
    (libc::SOL_SOCKET, SO_PEEK_OFF, "SO_PEEK_OFF"),
    (libc::IPPROTO_TCP, libc::TCP_CONGESTION, "TCP_CONGESTION"),
    (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, "TCP_WINDOW_CLAMP"),
    (libc::IPPROTO_TCP, libc::TCP_MD5SIG, "TCP_MD5SIG"),
    (libc::IPPROTO_TCP, libc::TCP_REPAIR, "TCP_REPAIR"),
    (libc::IPPROTO_TCP, libc::TCP_ULP, "TCP_ULP"),
    (libc::IPPROTO_IP, libc::IP_TTL, "IP_TTL"),
    (libc::IPPROTO_IP, libc::IP_OPTIONS, "IP_OPTIONS"),
    (libc::IPPROTO_IP, libc::IP_TRANSPARENT, "IP_TRANSPARENT"),
    (libc::IPPROTO_IP, libc::IP_MINTTL, "IP_MINTTL"),
    (libc::IPPROTO_IP, libc::IP_RECVERR, "IP_RECVERR"),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, "IPV6_UNICAST_HOPS"),
    (libc::IPPROTO_UDP, UDP_SEGMENT, "UDP_SEGMENT"),
];

// Constants of `linux/in.h`, `linux/in6.h`, `linux/tcp.h`, `linux/udp.h` and `asm/socket.h` that libc does not define for every
// target.
const SO_PEEK_OFF: c_int = 42;
const SO_SELECT_ERR_QUEUE: c_int = 45;
const SO_MAX_PACING_RATE: c_int = 47;
const SO_ATTACH_BPF: c_int = 50;
const SO_ATTACH_REUSEPORT_CBPF: c_int = 51;
const SO_ATTACH_REUSEPORT_EBPF: c_int = 52;
const SO_CNX_ADVICE: c_int = 53;
const SO_ZEROCOPY: c_int = 60;
const SO_PREFER_BUSY_POLL: c_int = 69;
const SO_BUSY_POLL_BUDGET: c_int = 70;
const SO_BUF_LOCK: c_int = 72;
const SO_RESERVE_MEM: c_int = 73;
const SO_TXREHASH: c_int = 74;
const TCP_SAVE_SYN: c_int = 27;
const TCP_FASTOPEN_KEY: c_int = 33;
const TCP_FASTOPEN_NO_COOKIE: c_int = 34;
const TCP_INQ: c_int = 36;
const IP_BIND_ADDRESS_NO_PORT: c_int = 24;
const IP_RECVFRAGSIZE: c_int = 25;
const IP_LOCAL_PORT_RANGE: c_int = 51;
const IPV6_RECVPATHMTU: c_int = 60;
const IPV6_AUTOFLOWLABEL: c_int = 70;
const IPV6_FREEBIND: c_int = 78;
const UDP_SEGMENT: c_int = 103;
const UDP_GRO: c_int = 104;
const UDP_NO_CHECK6_RX: c_int = 102;

/// The hop limit of packets unless the machine is configured otherwise, which the datapath uses.
const DEFAULT_HOPS: c_int = 64;

/// Returns what an option does that is now set on the kernel socket `fd`.
pub(super) fn effect(fd: c_int, level: c_int, option: c_int) -> Effect {
    let value = || int(fd, level, option);
    let is_default = match (level, option) {
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => congestion_control(fd).is_some(),
        _ if is_mirrored(level, option) || SAME.contains(&(level, option)) => true,
        // A socket that is not connected is checked when it is used.
        (libc::SOL_SOCKET, libc::SO_BINDTODEVICE) => may_use_device(fd),
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => value() <= Some(1),
        (libc::SOL_SOCKET, SO_MAX_PACING_RATE | SO_PEEK_OFF) => value() == Some(-1),
        (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => {
            value() == Some(DEFAULT_HOPS)
        }
        _ => value() == Some(0),
    };
    let is_harmless =
        || HARMLESS.contains(&(level, option)) || OF_DATAGRAMS.contains(&(level, option)) && !is_datagram(fd);
    match is_default {
        true => Effect::Same,
        false if is_harmless() => Effect::None,
        false => Effect::Kernel,
    }
}

fn may_use_device(fd: c_int) -> bool {
    super::context::datapath_config().is_none_or(|config| super::route::is_of_device(config, fd))
}

/// Returns whether a connection is handed over before the option is set, because the kernel would set it on a socket without a
/// connection.
pub(super) fn comes_before(level: c_int, option: c_int) -> bool {
    (level, option) == (libc::IPPROTO_TCP, libc::TCP_REPAIR)
}

/// Returns an option's name, for the line that says that it is the kernel's.
pub(super) fn name(level: c_int, option: c_int) -> &'static str {
    let known = NAMES.iter().find(|(of, number, _)| (*of, *number) == (level, option));
    known.map_or("a socket option of the kernel's", |(_, _, name)| name)
}

fn is_datagram(fd: c_int) -> bool {
    int(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_UDP)
}
