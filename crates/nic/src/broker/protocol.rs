//! Messages between a process and its broker: one JSON value in a datagram of a sequenced-packet socket.
//!
//! The broker parses a request completely and checks its ranges ([`Request::parse`]) before it acts on it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use abey_text::visible;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use serde::{Deserialize, Serialize};

use crate::accept::{self, Accepted, Acceptor};
use crate::af_xdp::Handshake;
use crate::credentials::{PeerCredentials, peer_pidfd};
use crate::message;
use crate::redirect::{Protocol, Redirected};
use crate::repair::RepairState;

/// Length of a token in bytes.
const TOKEN_BYTES: usize = 32;
/// Maximum length of a text in bytes. Escaped as JSON it is at most twice as long, so that it fits into a datagram.
const MAX_TEXT_BYTES: usize = 1024;
const _: () = assert!(2 * MAX_TEXT_BYTES < message::MAX_BYTES);

/// A request of a process to its broker.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Claims queue pairs.
    Claim {
        /// 32 ASCII characters from the environment of the program.
        token: String,
        /// Whether the process was forked from one that has run this program, so that more processes may claim.
        is_forked: bool,
    },
    /// See [`Broker::engage`](super::Broker::engage).
    Engage,
    /// See [`Broker::redirect`](super::Broker::redirect). The socket, if there is one, is sent with the message.
    Redirect {
        /// The transport protocol.
        protocol: Protocol,
        /// The port.
        port: u16,
        /// Which of its packets.
        what: Redirected,
    },
    /// See [`Broker::serve`](super::Broker::serve).
    Serve {
        /// The address.
        address: IpAddr,
        /// Whether packets to it are redirected.
        on: bool,
    },
    /// See [`Broker::use_neighbor`](super::Broker::use_neighbor).
    UseNeighbor(IpAddr),
    /// See [`Broker::begin_repair`](super::Broker::begin_repair). The socket is sent with the message.
    BeginRepair(RepairState),
    /// See [`Broker::end_repair`](super::Broker::end_repair). The socket is sent with the message.
    EndRepair {
        /// Whether the socket has SO_REUSEADDR afterwards.
        reuse_address: bool,
        /// Whether the kernel has the connection now.
        has_succeeded: bool,
    },
    /// See [`Broker::pass_flow`](super::Broker::pass_flow).
    PassFlow {
        /// Address of this end.
        local: SocketAddr,
        /// Address of the peer.
        remote: SocketAddr,
        /// Whether to pass it.
        on: bool,
    },
    /// See [`Broker::prepare_offers`](super::Broker::prepare_offers).
    PrepareOffers,
    /// See [`Broker::offer`](super::Broker::offer).
    Offer {
        /// Address of this end.
        local: SocketAddr,
        /// Address of the peer.
        remote: SocketAddr,
        /// What the handshake has agreed on.
        handshake: Handshake,
        /// The frame that ended the handshake, in hexadecimal digits, if it has arrived.
        ack: Option<String>,
    },
    /// See [`Broker::inject`](super::Broker::inject): the frame in hexadecimal digits.
    Inject(String),
    /// See [`Broker::report_failure`](super::Broker::report_failure).
    ReportFailure(String),
    /// See [`Broker::give_back`](super::Broker::give_back).
    GiveBack,
}

/// The broker's reply to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Reply {
    /// The claim is granted. The descriptors of the queues are sent with the message.
    Granted {
        /// Numbers of the queues, ascending.
        queues: Vec<u32>,
        /// Number of queues of the NIC.
        of: u32,
        /// Whether the last descriptor is [`Claim::control`](super::Claim::control).
        has_control: bool,
        /// See [`Claim::is_bound`](super::Claim::is_bound).
        is_bound: bool,
    },
    /// The claim is refused: the reason, as a part of a sentence.
    Refused(String),
    /// The request was performed.
    Done,
    /// The request failed with this error number.
    Failed(i32),
}

impl Request {
    /// Returns the datagram of the request.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::ReportFailure(reason) => to_bytes(&Self::ReportFailure(limited(reason))),
            other => to_bytes(other),
        }
    }

    /// Returns the request in a datagram, or `None` if the datagram is malformed or a text has a wrong length.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let request: Self = serde_json::from_slice(bytes).ok()?;
        let is_valid = match &request {
            Self::Claim { token, .. } => token.len() == TOKEN_BYTES && token.is_ascii(),
            Self::ReportFailure(reason) => reason.len() <= MAX_TEXT_BYTES,
            Self::Inject(digits) | Self::Offer { ack: Some(digits), .. } => {
                digits.len() % 2 == 0 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
            }
            _ => true,
        };
        is_valid.then(|| match request {
            Self::ReportFailure(reason) => Self::ReportFailure(received(&reason)),
            other => other,
        })
    }
}

impl Reply {
    /// Returns the datagram of the reply.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Refused(reason) => to_bytes(&Self::Refused(limited(reason))),
            other => to_bytes(other),
        }
    }

    /// Returns the reply in a datagram, or `None` if the datagram is malformed.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        Some(match serde_json::from_slice(bytes).ok()? {
            Self::Refused(reason) => Self::Refused(received(&reason)),
            other => other,
        })
    }
}

fn to_bytes(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).expect("a message is JSON")
}

/// Returns a text of the other end with its control characters made visible, cut to [`MAX_TEXT_BYTES`].
fn received(text: &str) -> String {
    let text = visible(text);
    text[..text.floor_char_boundary(MAX_TEXT_BYTES)].to_owned()
}

/// Returns a text without control characters, cut to [`MAX_TEXT_BYTES`].
fn limited(text: &str) -> String {
    let text = &text[..text.floor_char_boundary(MAX_TEXT_BYTES)];
    text.replace(|character: char| character.is_ascii_control(), " ")
}

pub(super) fn address(name: &str) -> rustix::io::Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(name.as_bytes())
}

/// The broker's listening socket, in the network namespace it was created in.
#[derive(Debug)]
pub struct Listener(Acceptor);

/// What [`Listener::accept`] found.
#[derive(Debug)]
pub enum Arrival {
    /// A process that has connected.
    Peer(Peer),
    /// None is waiting.
    Nothing,
    /// No descriptor is left: a process was disconnected. The caller closes what it does not need, and polls the listener
    /// again after [`Listener::PAUSE`].
    Exhausted,
}

impl Listener {
    /// Listens at an abstract name.
    ///
    /// # Errors
    /// When another socket of the namespace has the name, or the system refuses.
    pub fn bind(name: &str) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(&socket, &address(name)?)?;
        listen(&socket, 256)?;
        Ok(Self(Acceptor::new(socket)))
    }

    /// Time for which the listener is not polled after [`Arrival::Exhausted`].
    pub const PAUSE: Duration = accept::PAUSE;

    /// Returns the next process that has connected. Does not block.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn accept(&mut self) -> io::Result<Arrival> {
        Ok(match self.0.accept()? {
            Accepted::Connection(socket) => {
                // A process that has ended already has no credentials in some kernels; it is closed.
                let Ok(credentials) = PeerCredentials::of(&socket) else { return Ok(Arrival::Nothing) };
                Arrival::Peer(Peer { socket, credentials })
            }
            Accepted::Nothing => Arrival::Nothing,
            Accepted::Exhausted => Arrival::Exhausted,
        })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The broker's connection to a process. No call blocks.
#[derive(Debug)]
pub struct Peer {
    socket: OwnedFd,
    credentials: PeerCredentials,
}

impl Peer {
    /// Returns the process that connected, with its effective user at that time.
    pub fn credentials(&self) -> PeerCredentials {
        self.credentials
    }

    /// Returns a descriptor that becomes readable when the process has ended, or `None` before Linux 6.5.
    pub fn pidfd(&self) -> Option<OwnedFd> {
        peer_pidfd(&self.socket)
    }

    /// Returns the next request and its descriptors, or `None` when there is none yet.
    ///
    /// # Errors
    /// When the process has closed the connection or sent something else than a request. The connection is to be closed.
    pub fn receive(&self) -> io::Result<Option<(Request, Vec<OwnedFd>)>> {
        match message::receive(&self.socket, RecvFlags::DONTWAIT) {
            Ok((bytes, descriptors)) => {
                let request = Request::parse(&bytes).ok_or(io::ErrorKind::InvalidData)?;
                Ok(Some((request, descriptors)))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a reply, with descriptors.
    ///
    /// # Errors
    /// When the process has closed the connection, or its receive buffer is full.
    pub fn send(&self, reply: &Reply, descriptors: &[OwnedFd]) -> io::Result<()> {
        let descriptors: Vec<_> = descriptors.iter().map(OwnedFd::as_fd).collect();
        Ok(message::send(&self.socket, &reply.to_bytes(), &descriptors)?)
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn messages_are_parsed_and_truncated_ones_are_refused() {
        let redirect = Request::Redirect { protocol: Protocol::Udp, port: 258, what: Redirected::Flows };
        for request in [
            Request::Claim { token: TOKEN.to_owned(), is_forked: true },
            Request::Engage,
            redirect,
            Request::Serve { address: Ipv6Addr::LOCALHOST.into(), on: true },
            Request::UseNeighbor([10, 0, 0, 9].into()),
            Request::UseNeighbor(Ipv6Addr::LOCALHOST.into()),
            Request::BeginRepair(RepairState {
                local: "[fd00::1]:80".parse().expect("an address"),
                remote: "[fd00::2]:4000".parse().expect("an address"),
                send_next: u32::MAX,
                read_next: 1,
                receive_next: 2,
                peer_mss: 1460,
                scales: Some((7, 8)),
                sack: true,
                timestamp: Some(9),
                send_window: (1, 2, 3),
                receive_window: 4,
                buffers: (5, 6),
                reuse_address: true,
            }),
            Request::EndRepair { reuse_address: false, has_succeeded: true },
            Request::PassFlow {
                local: "10.0.0.1:80".parse().expect("an address"),
                remote: "10.0.0.2:4000".parse().expect("an address"),
                on: true,
            },
            Request::PrepareOffers,
            Request::Offer {
                local: "10.0.0.1:80".parse().expect("an address"),
                remote: "10.0.0.2:4000".parse().expect("an address"),
                handshake: Handshake {
                    send_first: 1,
                    receive_first: u32::MAX,
                    peer_mss: 1460,
                    scales: Some((7, 8)),
                    sack: true,
                    timestamps: Some((9, 10)),
                    ecn: false,
                },
                ack: Some("00ff".to_owned()),
            },
            Request::Inject("00ff".to_owned()),
            Request::ReportFailure("no".to_owned()),
            Request::GiveBack,
        ] {
            let bytes = request.to_bytes();
            assert_eq!(Request::parse(&bytes).as_ref(), Some(&request));
            for cut in 0..bytes.len() {
                assert_eq!(Request::parse(&bytes[..cut]), None);
            }
        }
        for reply in [
            Reply::Granted { queues: vec![1, 300], of: 301, has_control: true, is_bound: true },
            Reply::Refused("no".to_owned()),
            Reply::Done,
            Reply::Failed(1),
        ] {
            assert_eq!(Reply::parse(&reply.to_bytes()), Some(reply));
        }
    }

    #[test]
    fn requests_out_of_range_are_refused() {
        let claim = |token: &str| Request::Claim { token: token.to_owned(), is_forked: false }.to_bytes();
        assert!(Request::parse(&claim(TOKEN)).is_some());
        assert_eq!(Request::parse(&claim(&TOKEN[1..])), None);
        assert_eq!(Request::parse(&claim(&"é".repeat(TOKEN_BYTES / 2))), None);
        for digits in ["0", "0g", "é"] {
            assert_eq!(Request::parse(&Request::Inject(digits.to_owned()).to_bytes()), None);
        }
        for text in [
            r#"{"redirect":{"protocol":"sctp","port":80,"what":"nothing"}}"#,
            r#"{"redirect":{"protocol":"tcp","port":65536,"what":"nothing"}}"#,
            r#"{"redirect":{"protocol":"tcp","port":80,"what":"nothing","more":1}}"#,
            r#"{"use_neighbor":"10.0.0"}"#,
            r#""engage" "engage""#,
        ] {
            assert_eq!(Request::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Reply::parse(b"{\"granted\":{}}"), None);
    }

    #[test]
    fn texts_are_cut_to_what_a_datagram_holds() {
        for text in ["\"".repeat(5000), "\u{7}".repeat(5000), "é".repeat(5000)] {
            let bytes = Request::ReportFailure(text.clone()).to_bytes();
            assert!(bytes.len() < message::MAX_BYTES, "{}", bytes.len());
            assert!(Request::parse(&bytes).is_some());
            assert!(Reply::Refused(text).to_bytes().len() < message::MAX_BYTES);
        }
        let long = format!("{{\"report_failure\":\"{}\"}}", "x".repeat(MAX_TEXT_BYTES + 1));
        assert_eq!(Request::parse(long.as_bytes()), None);
    }
}
