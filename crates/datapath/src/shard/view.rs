//! Snapshots of a shard, for status reports.

use std::sync::Arc;

use abey_delivery::NapiSettings;
use abey_nic::{LinkState, Warning};

use crate::counters::Counters;

/// The numbers of sockets and ports at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Census {
    /// Sockets, including those that their application has closed and that have not finished.
    pub sockets: usize,
    /// Connections in TIME-WAIT.
    pub time_waits: usize,
    /// Sockets that an application holds.
    pub held: usize,
    /// Ports that are reserved in the kernel, including those whose last connections have not finished.
    pub kernel_ports: usize,
}

/// The state of a shard at one moment.
#[derive(Debug)]
pub(crate) struct ShardView {
    /// The settings that are in effect.
    pub(crate) settings: NapiSettings,
    pub(crate) masked: bool,
    pub(crate) counters: Counters,
    pub(crate) census: Census,
    pub(crate) stack: abey_tcpip::Counters,
    pub(crate) nic: abey_nic::Counters,
    pub(crate) link: LinkState,
    pub(crate) mtu: usize,
    pub(crate) warning: Option<Warning>,
    pub(crate) failed: Option<Arc<str>>,
}
