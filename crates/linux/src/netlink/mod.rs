//! Netlink requests to one network namespace.

pub(crate) mod raw;

use std::io;

use netlink_bindings::rt_link::Ifinfomsg;
use netlink_bindings::traits::NetlinkRequest;
use netlink_bindings::{nlctrl, rt_link};
use netlink_socket2::{NetlinkSocket, ReplyError};

use crate::netns::{NetNs, NetNsError};

/// Netlink sockets (route and generic) of one network namespace, whichever namespace the calling thread is in.
pub struct Netlink {
    socket: NetlinkSocket,
}

/// Why a netlink request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetlinkError {
    /// The namespace could not be entered.
    #[error(transparent)]
    Namespace(#[from] NetNsError),
    /// The kernel does not have the interface.
    #[error("this kernel cannot {action}: it has no `{family}` netlink interface; use a newer kernel")]
    Missing {
        /// What was requested.
        action: String,
        /// The generic netlink family.
        family: &'static str,
    },
    /// The caller lacks the privilege.
    #[error("not allowed to {action}: run as root (it needs CAP_NET_ADMIN)")]
    Denied {
        /// What was requested.
        action: String,
    },
    /// Any other failure, with the kernel's own explanation.
    #[error("cannot {action}: {reason}")]
    Refused {
        /// What was requested.
        action: String,
        /// The kernel's explanation.
        reason: String,
        /// The error number, if the kernel returned one.
        errno: Option<i32>,
    },
}

impl NetlinkError {
    /// Returns whether the requested object does not exist (any more).
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { errno: Some(libc::ENOENT | libc::ENODEV), .. })
    }

    pub(crate) fn from_reply(action: impl Into<String>, error: &ReplyError) -> Self {
        let action = action.into();
        let errno = error.as_io_error().raw_os_error();
        match errno {
            Some(libc::EPERM | libc::EACCES) => Self::Denied { action },
            _ => Self::Refused { action, reason: error.to_string().replace(" (no extended ack)", ""), errno },
        }
    }
}

impl Netlink {
    /// Opens the sockets.
    ///
    /// # Errors
    /// The namespace cannot be entered, or the kernel has no netlink.
    pub fn open(netns: &NetNs) -> Result<Self, NetlinkError> {
        // The socket type opens lazily, so the first request of each protocol has to be sent inside the namespace.
        let opened = netns.run(|| -> io::Result<NetlinkSocket> {
            let mut socket = NetlinkSocket::new();
            let mut link = rt_link::Request::new().op_getlink_do(&Ifinfomsg::default());
            link.encode().push_ifname_bytes(b"lo");
            let _ = socket.request(&link)?.recv_one();
            let mut family = nlctrl::Request::new().op_getfamily_do();
            family.encode().push_family_name_bytes(b"nlctrl");
            let _ = socket.request(&family)?.recv_one();
            Ok(socket)
        })?;
        let refused = |error: io::Error| NetlinkError::Refused {
            action: "open a netlink socket".to_owned(),
            errno: error.raw_os_error(),
            reason: error.to_string(),
        };
        Ok(Self { socket: opened.map_err(refused)? })
    }

    /// Sends a request and passes every reply to `read`.
    pub(crate) fn dump<R, T>(
        &mut self,
        action: &str,
        request: &R,
        mut read: impl FnMut(R::ReplyType<'_>) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError>
    where
        R: NetlinkRequest,
    {
        let mut replies = self.socket.request(request).map_err(|error| refused_early(action, request, &error))?;
        let mut found = Vec::new();
        while let Some(reply) = replies.recv() {
            found.extend(read(reply.map_err(|error| NetlinkError::from_reply(action, &error))?));
        }
        Ok(found)
    }

    /// Sends a request and waits until the kernel has acknowledged it.
    pub(crate) fn change<R: NetlinkRequest>(&mut self, action: &str, request: &R) -> Result<(), NetlinkError> {
        let mut reply = self.socket.request(request).map_err(|error| refused_early(action, request, &error))?;
        reply.recv_ack().map_err(|error| NetlinkError::from_reply(action, &error))
    }
}

/// Converts the error of a request that was not sent: most often its generic netlink family does not exist.
fn refused_early<R: NetlinkRequest>(action: &str, request: &R, error: &io::Error) -> NetlinkError {
    use netlink_bindings::traits::Protocol;
    match (request.protocol(), error.raw_os_error()) {
        (Protocol::Generic(family), Some(libc::ENOENT)) => {
            let family = std::str::from_utf8(family).unwrap_or("generic");
            NetlinkError::Missing { action: action.to_owned(), family }
        }
        (_, errno) => NetlinkError::Refused { action: action.to_owned(), reason: error.to_string(), errno },
    }
}
