//! Changes to the devices of a namespace, from the kernel's notifications: rtnetlink's link group, ethtool's monitor group
//! and netdev's management group.
//!
//! NAPI instances have no notifications of their own. Their IDs change when a device goes down or up, when its number of
//! queues changes, or when its GRO is turned on or off; all of these are notified. A driver that resets itself sends no
//! notification, so a caller that enforces a state also has to read it periodically.

mod decode;

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use rustix::net::RecvFlags;

use crate::netlink::raw::{Family, Message, RawSocket};
use crate::netlink::{Netlink, NetlinkError};
use crate::netns::NetNs;

/// A notification.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A device has changed.
    Changed {
        /// The device.
        ifindex: u32,
        /// The change.
        what: What,
    },
    /// Notifications were lost because the buffer was full: everything may have changed.
    Overrun,
}

/// A change of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum What {
    /// It is new, or its name, flags or address changed. One notification may stand for several changes.
    Link {
        /// Its name.
        name: String,
        /// Whether it is administratively up.
        up: bool,
        /// Whether it can carry packets.
        running: bool,
    },
    /// It was deleted, or moved to another namespace.
    LinkGone {
        /// The name it had.
        name: String,
    },
    /// Its number of queues.
    Channels,
    /// Its offload features, GRO among them.
    Features,
    /// The RSS table of a context.
    Rss {
        /// The context; 0 is the default one.
        context: u32,
    },
    /// It has a new RSS context.
    RssContext {
        /// The ID of the context.
        context: u32,
    },
    /// One of its RSS contexts was deleted.
    RssContextGone {
        /// The ID of the context.
        context: u32,
    },
    /// Another ethtool setting: rings, coalescing, link modes.
    Ethtool,
    /// The XDP features of its driver; also notified for new and deleted devices.
    Netdev,
}

/// Receives the notifications about the devices of a namespace.
///
/// It has one descriptor ([`AsFd`]), which is readable when there are notifications, and never blocks.
#[derive(Debug)]
pub struct Monitor {
    /// Readable when one of the sockets is.
    ready: Epoll,
    links: RawSocket,
    generic: RawSocket,
    ethtool: Option<Family>,
    netdev: Option<Family>,
}

impl Monitor {
    /// Subscribes to the notifications.
    ///
    /// Changes from this call on are reported. Read the state after opening, not before, so that no change is missed.
    ///
    /// # Errors
    /// The namespace cannot be entered or the kernel refuses. A kernel without ethtool's or netdev's notifications is no
    /// error: then only the others are reported.
    pub fn open(netns: &NetNs) -> Result<Self, NetlinkError> {
        let mut netlink = Netlink::open(netns)?;
        let links = RawSocket::open(netns, None)?;
        links.join(libc::RTNLGRP_LINK)?;
        let generic = RawSocket::open(netns, Some(rustix::net::netlink::GENERIC))?;
        let mut join = |name: &'static str, group: &str| -> Result<Option<Family>, NetlinkError> {
            let family = match Family::find(&mut netlink, name) {
                Ok(family) => family,
                Err(NetlinkError::Missing { .. }) => return Ok(None),
                Err(error) => return Err(error),
            };
            let Some((_, number)) = family.groups.iter().find(|(known, _)| known == group) else { return Ok(None) };
            generic.join(*number)?;
            Ok(Some(family))
        };
        let (ethtool, netdev) = (join("ethtool", "monitor")?, join("netdev", "mgmt")?);
        let ready = epoll_of(&[&links, &generic]).map_err(|error| NetlinkError::Refused {
            action: "wait for the kernel's notifications".to_owned(),
            errno: Some(error as i32),
            reason: error.to_string(),
        })?;
        Ok(Self { ready, links, generic, ethtool, netdev })
    }

    /// Returns the notifications since the last call, without duplicates: first those of links, then the others, each in order.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn events(&mut self) -> Result<Vec<Event>, NetlinkError> {
        let mut found = Vec::new();
        drain(&mut self.links, &mut found, decode::link)?;
        let (ethtool, netdev) = (self.ethtool.as_ref(), self.netdev.as_ref());
        drain(&mut self.generic, &mut found, |message| match message.kind {
            kind if ethtool.is_some_and(|family| family.id == kind) => decode::ethtool(message),
            kind if netdev.is_some_and(|family| family.id == kind) => decode::netdev(message),
            _ => None,
        })?;
        Ok(found)
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.0.as_fd()
    }
}

/// Returns an epoll instance that is readable when one of the sockets is.
fn epoll_of(sockets: &[&RawSocket]) -> nix::Result<Epoll> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    for (number, socket) in (0..).zip(sockets) {
        epoll.add(socket, EpollEvent::new(EpollFlags::EPOLLIN, number))?;
    }
    Ok(epoll)
}

fn drain(
    socket: &mut RawSocket,
    found: &mut Vec<Event>,
    decode: impl Fn(Message<'_>) -> Option<Event>,
) -> Result<(), NetlinkError> {
    let mut add = |event: Event| {
        if !found.contains(&event) {
            found.push(event);
        }
    };
    loop {
        match socket.receive(RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
            Ok(None) => return Ok(()),
            Ok(Some(messages)) => messages.filter_map(&decode).for_each(&mut add),
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => add(Event::Overrun),
            Err(error) => {
                let action = "read the kernel's notifications".to_owned();
                return Err(NetlinkError::Refused { action, errno: error.raw_os_error(), reason: error.to_string() });
            }
        }
    }
}
