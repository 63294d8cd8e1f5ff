//! Attacks on the broker: by other local users, who can connect and have no token, and by a process of the program, which has
//! one and whose code may be the attacker's.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};

use abey_nic::broker::{Claim, ClaimError, claim, open_claimed};
use abey_nic::{Options, Protocol, Redirected};
use abey_testbed::namespace::{HANG_LIMIT, another_namespace, as_user, in_namespace, inside, until};
use abey_testbed::network::checked_veth;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags};
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, send, socket_with,
};

use super::{broker, drop_privileges};

const OTHER: u32 = 65_533;

/// Runs a test in a namespace with a veth pair, if this machine has the programs for it.
fn on_a_veth(test: impl FnOnce() + Send) {
    if Command::new("ethtool").arg("--version").output().is_err() {
        eprintln!("skipped: needs the program `ethtool`");
        return;
    }
    in_namespace(|| {
        let _far = checked_veth(1);
        test();
    });
}

/// Connects to the broker without the token.
fn stranger(name: &str) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket");
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a name");
    connect(&socket, &address).expect("connected");
    socket
}

/// Returns whether the broker has closed a connection.
fn is_closed(connection: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(connection, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())).expect("poll") > 0
}

fn claimed(broker: &abey_supervise::broker::BrokerThread) -> Claim {
    let address = broker.address();
    claim(&address.socket, &address.token, false).expect("a queue")
}

/// Before: all stayed open for ever, up to the limit of descriptors, where the broker's thread was never asleep.
#[test]
fn connections_without_a_token_are_few_and_short() {
    on_a_veth(|| {
        let broker = broker();
        let name = &broker.address().socket;
        let strangers: Vec<OwnedFd> = as_user(OTHER, || (0..500).map(|_| stranger(name)).collect());
        let open = || strangers.iter().filter(|one| !is_closed(one)).count();
        until("the oldest are closed", || open() <= 64);
        let mine = claimed(&broker);
        until("their time is over", || open() == 0);
        assert_eq!(mine.queues, [0], "and the program has its queue meanwhile");
        mine.broker.engage().expect("still served");
    });
}

#[test]
fn a_wrong_token_and_requests_without_one_close_the_connection() {
    on_a_veth(|| {
        let broker = broker();
        let address = broker.address();
        let wrong = as_user(OTHER, || claim(&address.socket, &"0".repeat(32), false));
        assert!(matches!(wrong, Err(ClaimError::Unreachable(_))), "{wrong:?}");
        for request in [&br#""engage""#[..], br#"{"claim":{"token":"","is_forked":false}}"#, b"\0", &[0xff; 5000]] {
            let connection = as_user(OTHER, || stranger(&address.socket));
            send(&connection, request, SendFlags::NOSIGNAL).expect("sent");
            until("it is closed", || is_closed(&connection));
        }
        claimed(&broker);
    });
}

/// Before: `bind` succeeded for a process without privileges, on any device, and it could send what it liked there.
#[test]
fn the_sockets_of_a_claim_are_bound() {
    on_a_veth(|| {
        let broker = broker();
        let mine = claimed(&broker);
        assert!(mine.is_bound || !is_at_least_linux_6_4());
        if !mine.is_bound {
            return;
        }
        drop_privileges();
        // Loopback, and the device itself.
        for index in [1, 2] {
            let anywhere = SocketAddrXdp::new(SocketAddrXdpFlags::empty(), index, 0);
            bind(&mine.descriptors[0], &anywhere).expect_err("bound already");
        }
        open_claimed("af_xdp:near0", mine, &Options::default()).expect("and usable");
    });
}

fn is_at_least_linux_6_4() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(4))
}

/// Before: a process could have any port redirected, that of ssh included.
#[test]
fn a_port_is_redirected_for_a_process_that_has_bound_it() {
    on_a_veth(|| {
        let ssh = TcpListener::bind("0.0.0.0:22").expect("a port");
        let elsewhere = inside(&another_namespace(), || TcpListener::bind("0.0.0.0:7000").expect("a port"));
        let other_address = TcpListener::bind("127.0.0.1:7000").expect("a port");
        let broker = broker();
        let mine = claimed(&broker);
        drop_privileges();
        let ask = |protocol, port, holder| mine.broker.redirect(protocol, port, Redirected::Everything, holder);
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, 22)).expect_err("it may not bind that port");
        let any = TcpListener::bind("0.0.0.0:0").expect("a port");
        let udp = UdpSocket::bind("0.0.0.0:7001").expect("a port");
        let file = std::fs::File::open("/dev/null").expect("a file");
        for (protocol, port, holder) in [
            (Protocol::Tcp, 22, None),
            (Protocol::Tcp, 22, Some(any.as_fd())),
            (Protocol::Tcp, 0, Some(any.as_fd())),
            (Protocol::Tcp, 7000, Some(elsewhere.as_fd())),
            (Protocol::Tcp, 7000, Some(other_address.as_fd())),
            (Protocol::Tcp, 7001, Some(udp.as_fd())),
            (Protocol::Udp, 22, Some(ssh.as_fd())),
            (Protocol::Tcp, 22, Some(file.as_fd())),
        ] {
            ask(protocol, port, holder).expect_err(&format!("{protocol:?} {port}"));
        }
        let own = any.local_addr().expect("bound").port();
        ask(Protocol::Tcp, own, Some(any.as_fd())).expect("its own port");
        mine.broker.redirect(Protocol::Tcp, own, Redirected::Flows, None).expect("less of it");
        ask(Protocol::Tcp, own, None).expect("and all of it again");
        ask(Protocol::Udp, 7001, Some(udp.as_fd())).expect("its own port");
        mine.broker.redirect(Protocol::Udp, 7001, Redirected::Nothing, None).expect("given back");
        ask(Protocol::Udp, 7001, None).expect_err("the proof has gone with it");
        let at_device = TcpListener::bind(SocketAddr::from(([10, 8, 0, 1], 0))).expect("a port");
        let port = at_device.local_addr().expect("bound").port();
        ask(Protocol::Tcp, port, Some(at_device.as_fd())).expect("an address of the device");
    });
}

const BROKER: &str = "ABEY_BROKER_IN_ANOTHER_PID_NAMESPACE";

/// Not a test by itself: a broker, until its standard input ends.
#[test]
fn broker_in_another_pid_namespace() {
    if std::env::var_os(BROKER).is_none() {
        return;
    }
    let broker = broker();
    let address = broker.address();
    eprintln!("{} {}", address.socket, address.token);
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// The process that claims has the number 0 for such a broker. Before: that was undefined behaviour.
#[test]
fn a_process_outside_of_the_brokers_pid_namespace_has_queues() {
    on_a_veth(|| {
        let program = std::env::current_exe().expect("this program");
        let child = Command::new("unshare")
            .args(["--pid", "--fork", "--kill-child"])
            .arg(program)
            .args(["--exact", "attacks::broker_in_another_pid_namespace", "--nocapture"])
            .env(BROKER, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut child) = child else {
            eprintln!("skipped: needs the program `unshare`");
            return;
        };
        let mut said = String::new();
        BufReader::new(child.stderr.take().expect("piped")).read_line(&mut said).expect("a line");
        let (socket, token) = said.trim().split_once(' ').expect("an address");
        let mine = claim(socket, token, false).expect("a queue");
        mine.broker.engage().expect("served");
        drop(mine);
        child.stdin.take().expect("piped").write_all(b"\n").expect("written");
        let end = std::time::Instant::now() + HANG_LIMIT;
        while child.try_wait().expect("a child").is_none() {
            assert!(std::time::Instant::now() < end, "it does not end");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    });
}
