//! Decoding of notifications.

use netlink_bindings::{ethtool, netdev, rt_link};

use super::{Event, What};
use crate::ethtool::abi;
use crate::netlink::raw::Message;

/// Decodes a message of rtnetlink's link group.
pub(super) fn link(message: Message<'_>) -> Option<Event> {
    let (header, attrs) = rt_link::OpGetlinkDo::decode_request(message.payload);
    let ifindex = u32::try_from(header.ifi_index).ok()?;
    let name = attrs.get_ifname().ok()?.to_string_lossy().into_owned();
    let has = |flag: i32| header.ifi_flags & flag.cast_unsigned() != 0;
    let what = match message.kind {
        libc::RTM_NEWLINK => What::Link { name, up: has(libc::IFF_UP), running: has(libc::IFF_RUNNING) },
        libc::RTM_DELLINK => What::LinkGone { name },
        _ => return None,
    };
    Some(Event::Changed { ifindex, what })
}

/// The size of `struct genlmsghdr`; its first byte is the command.
const GENERIC_HEADER: usize = 4;

/// Decodes a message of ethtool's monitor group. All of them begin with the same header, which names the device.
pub(super) fn ethtool(message: Message<'_>) -> Option<Event> {
    let (command, body) = (*message.payload.first()?, message.payload.get(GENERIC_HEADER..)?);
    let ifindex = ethtool::Rss::new(body).get_header().ok()?.get_dev_index().ok()?;
    let context = ethtool::Rss::new(body).get_context().unwrap_or(0);
    let what = match command {
        abi::CHANNELS_NTF => What::Channels,
        abi::FEATURES_NTF => What::Features,
        abi::RSS_NTF => What::Rss { context },
        abi::RSS_CREATE_NTF => What::RssContext { context },
        abi::RSS_DELETE_NTF => What::RssContextGone { context },
        _ => What::Ethtool,
    };
    Some(Event::Changed { ifindex, what })
}

/// Decodes a message of netdev's management group.
pub(super) fn netdev(message: Message<'_>) -> Option<Event> {
    let ifindex = netdev::Dev::new(message.payload.get(GENERIC_HEADER..)?).get_ifindex().ok()?;
    Some(Event::Changed { ifindex, what: What::Netdev })
}
