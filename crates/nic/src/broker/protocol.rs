//! What a process and its broker say to each other. Nothing that the process says is believed before it was checked.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
    sockopt,
};

use crate::af_xdp::{Protocol, Redirected};
use crate::message;

/// Bytes of the token in a claim.
pub(super) const TOKEN: usize = 32;

/// What a process asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Queue pairs, for who knows the token.
    Claim {
        /// 32 characters of ASCII.
        token: String,
        /// The process was forked from one that has run this program, so that others like it may follow.
        is_forked: bool,
    },
    /// See [`Broker::engage`](super::Broker::engage).
    Engage,
    /// See [`Broker::redirect`](super::Broker::redirect).
    Redirect {
        /// The transport protocol.
        protocol: Protocol,
        /// The port.
        port: u16,
        /// What of its traffic.
        what: Redirected,
    },
    /// See [`Broker::use_neighbor`](super::Broker::use_neighbor).
    UseNeighbor(IpAddr),
    /// See [`Broker::complain`](super::Broker::complain).
    Complain(String),
    /// See [`Broker::give_back`](super::Broker::give_back).
    GiveBack,
}

/// What the broker answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The claim's queues, of so many; their descriptors travel beside it.
    Granted {
        /// Their numbers, ascending.
        queues: Vec<u32>,
        /// How many queues the NIC has.
        of: u32,
        /// One descriptor more, the last one, is [`Claim::control`](super::Claim::control).
        has_control: bool,
    },
    /// There are no queues for the process: why, in words that follow a colon.
    Refused(String),
    /// What was asked for was done.
    Done,
    /// What was asked for could not be done: the number of the error.
    Failed(i32),
}

const CLAIM: u8 = 1;
const ENGAGE: u8 = 2;
const REDIRECT: u8 = 3;
const USE_NEIGHBOR: u8 = 4;
const GIVE_BACK: u8 = 5;
const COMPLAIN: u8 = 6;
/// Longest complaint in bytes.
const COMPLAINT: usize = 1024;
const GRANTED: u8 = 11;
const REFUSED: u8 = 12;
const DONE: u8 = 13;
const FAILED: u8 = 14;

impl Request {
    fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Claim { token, is_forked } => [&[CLAIM, u8::from(*is_forked)], token.as_bytes()].concat(),
            Self::Engage => vec![ENGAGE],
            Self::Redirect { protocol, port, what } => {
                let [high, low] = port.to_be_bytes();
                vec![REDIRECT, *protocol as u8, *what as u8, high, low]
            }
            Self::UseNeighbor(IpAddr::V4(v4)) => [&[USE_NEIGHBOR], &v4.octets()[..]].concat(),
            Self::UseNeighbor(IpAddr::V6(v6)) => [&[USE_NEIGHBOR], &v6.octets()[..]].concat(),
            Self::Complain(why) => {
                let why = &why.as_bytes()[..why.len().min(COMPLAINT)];
                [&[COMPLAIN], why].concat()
            }
            Self::GiveBack => vec![GIVE_BACK],
        }
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        const PROTOCOLS: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];
        const PARTS: [Redirected; 3] = [Redirected::Nothing, Redirected::Flows, Redirected::Everything];
        match bytes {
            [CLAIM, is_forked @ (0 | 1), token @ ..] if token.len() == TOKEN => {
                Some(Self::Claim { token: str::from_utf8(token).ok()?.to_owned(), is_forked: *is_forked == 1 })
            }
            [ENGAGE] => Some(Self::Engage),
            [REDIRECT, protocol, what, high, low] => Some(Self::Redirect {
                protocol: PROTOCOLS.into_iter().find(|one| *one as u8 == *protocol)?,
                port: u16::from_be_bytes([*high, *low]),
                what: PARTS.into_iter().find(|one| *one as u8 == *what)?,
            }),
            [USE_NEIGHBOR, address @ ..] => match address.len() {
                4 => Some(Self::UseNeighbor(Ipv4Addr::from(<[u8; 4]>::try_from(address).ok()?).into())),
                16 => Some(Self::UseNeighbor(Ipv6Addr::from(<[u8; 16]>::try_from(address).ok()?).into())),
                _ => None,
            },
            [COMPLAIN, why @ ..] if why.len() <= COMPLAINT => {
                Some(Self::Complain(String::from_utf8_lossy(why).into_owned()))
            }
            [GIVE_BACK] => Some(Self::GiveBack),
            _ => None,
        }
    }
}

impl Reply {
    fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Granted { queues, of, has_control } => {
                let mut bytes = vec![GRANTED, u8::from(*has_control)];
                bytes.extend(of.to_be_bytes());
                bytes.extend(queues.iter().flat_map(|queue| queue.to_be_bytes()));
                bytes
            }
            Self::Refused(why) => [&[REFUSED], why.as_bytes()].concat(),
            Self::Done => vec![DONE],
            Self::Failed(number) => [&[FAILED], &number.to_be_bytes()[..]].concat(),
        }
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [GRANTED, has_control @ (0 | 1), numbers @ ..] if numbers.len() % 4 == 0 => {
                let number = |four: &[u8]| u32::from_be_bytes(four.try_into().expect("four bytes"));
                let mut numbers = numbers.chunks_exact(4).map(number);
                let of = numbers.next()?;
                Some(Self::Granted { of, queues: numbers.collect(), has_control: *has_control == 1 })
            }
            [REFUSED, why @ ..] => Some(Self::Refused(String::from_utf8_lossy(why).into_owned())),
            [DONE] => Some(Self::Done),
            [FAILED, number @ ..] => Some(Self::Failed(i32::from_be_bytes(number.try_into().ok()?))),
            _ => None,
        }
    }
}

fn address(name: &str) -> rustix::io::Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(name.as_bytes())
}

/// Where processes connect to, in the network namespace of who made it.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl Listener {
    /// Listens under this name; the namespace has no other listener of that name.
    ///
    /// # Errors
    /// When the name is taken, or the system refuses.
    pub fn bind(name: &str) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(&socket, &address(name)?)?;
        listen(&socket, 1024)?;
        Ok(Self(socket))
    }

    /// The next process that has connected, if there is one.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn accept(&self) -> io::Result<Option<Peer>> {
        match accept_with(&self.0, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Ok(Some(Peer(socket))),
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A process that has connected, as its broker sees it. No call waits.
#[derive(Debug)]
pub struct Peer(OwnedFd);

impl Peer {
    /// The process that connected.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn pid(&self) -> io::Result<u32> {
        Ok(sockopt::socket_peercred(&self.0)?.pid.as_raw_nonzero().get().cast_unsigned())
    }

    /// The user that it was when it connected.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn user(&self) -> io::Result<u32> {
        Ok(sockopt::socket_peercred(&self.0)?.uid.as_raw())
    }

    /// The next request; `None` when there is none yet.
    ///
    /// # Errors
    /// When the process is gone, or talks nonsense: it is to be let go.
    pub fn receive(&self) -> io::Result<Option<Request>> {
        match message::receive(&self.0, RecvFlags::DONTWAIT) {
            Ok((bytes, _)) => Request::parse(&bytes).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into()),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Answers.
    ///
    /// # Errors
    /// When the process is gone, or does not listen.
    pub fn send(&self, reply: &Reply, descriptors: &[OwnedFd]) -> io::Result<()> {
        let descriptors: Vec<_> = descriptors.iter().map(OwnedFd::as_fd).collect();
        Ok(message::send(&self.0, &reply.to_bytes(), &descriptors)?)
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The other end of a [`Peer`].
#[derive(Debug)]
pub(super) struct Connection(OwnedFd);

impl Connection {
    pub(super) fn open(name: &str) -> io::Result<Self> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &address(name)?)?;
        Ok(Self(socket))
    }

    /// Asks, and waits for the answer.
    pub(super) fn ask(&self, request: &Request) -> io::Result<(Reply, Vec<OwnedFd>)> {
        message::send(&self.0, &request.to_bytes(), &[])?;
        let (bytes, descriptors) = loop {
            match message::receive(&self.0, RecvFlags::empty()) {
                Err(Errno::INTR) => {}
                other => break other?,
            }
        };
        let reply = Reply::parse(&bytes).ok_or(io::ErrorKind::InvalidData)?;
        Ok((reply, descriptors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood_and_nothing_else() {
        let token = "0123456789abcdef0123456789abcdef".to_owned();
        let redirect = Request::Redirect { protocol: Protocol::Udp, port: 258, what: Redirected::Flows };
        for request in [
            Request::Claim { token, is_forked: true },
            Request::Engage,
            redirect,
            Request::UseNeighbor([10, 0, 0, 9].into()),
            Request::UseNeighbor(Ipv6Addr::LOCALHOST.into()),
            Request::Complain("no".to_owned()),
            Request::GiveBack,
        ] {
            let bytes = request.to_bytes();
            assert_eq!(Request::parse(&bytes).as_ref(), Some(&request));
            for cut in 0..bytes.len() {
                assert_ne!(Request::parse(&bytes[..cut]).as_ref(), Some(&request));
            }
        }
        for reply in [
            Reply::Granted { queues: vec![1, 300], of: 301, has_control: true },
            Reply::Refused("no".to_owned()),
            Reply::Done,
            Reply::Failed(1),
        ] {
            assert_eq!(Reply::parse(&reply.to_bytes()), Some(reply));
        }
        assert_eq!((Request::parse(&[REDIRECT, 9, 0, 0, 80]), Reply::parse(&[GRANTED, 0])), (None, None));
    }
}
