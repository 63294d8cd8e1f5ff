//! The queues of a device: their number, the RSS tables that spread flows over them, and the rules that steer flows to them.
//! Source: Linux `Documentation/networking/ethtool-netlink.rst` and `linux/ethtool.h`.

pub mod channels;
pub mod driver;
mod ioctl;
pub mod rss;
pub mod rules;

pub use channels::{ChannelCounts, Channels, ChannelsError, Count};
pub use driver::Driver;
pub use ioctl::Ethtool;
pub use rss::{RssContext, spread};
pub use rules::{FlowProtocol, FlowRule, FlowTarget, PortFlow};

/// Message numbers of `linux/ethtool_netlink_generated.h`. The bindings count replies and requests in one sequence, which
/// differs from the kernel's numbers for all but the first few.
pub(crate) mod abi {
    /// Requests.
    pub(crate) const FEATURES_GET: u8 = 11;
    pub(crate) const FEATURES_SET: u8 = 12;
    pub(crate) const CHANNELS_GET: u8 = 17;
    pub(crate) const CHANNELS_SET: u8 = 18;
    pub(crate) const RSS_GET: u8 = 38;
    /// Notifications, which have a numbering of their own.
    pub(crate) const FEATURES_NTF: u8 = 13;
    pub(crate) const CHANNELS_NTF: u8 = 19;
    pub(crate) const RSS_NTF: u8 = 50;
    pub(crate) const RSS_CREATE_NTF: u8 = 52;
    pub(crate) const RSS_DELETE_NTF: u8 = 53;
}
