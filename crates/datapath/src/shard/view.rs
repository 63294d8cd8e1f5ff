//! A look at a shard from outside, for whoever asks how it is.

use std::sync::Arc;

use abey_delivery::NapiSettings;
use abey_nic::{LinkState, Warning};
use abey_tcpip::SocketInfo;

use super::Shard;
use crate::counters::Counters;
use crate::runtime::Census;

/// What is there.
#[derive(Debug)]
pub(crate) struct ShardView {
    /// Those that the instance obeys.
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

impl Shard {
    pub(crate) fn view(&self) -> ShardView {
        self.with(|core| {
            core.bill_nic();
            ShardView {
                settings: *core.napi.get().settings(),
                masked: core.napi.get().is_masked(),
                counters: core.counters,
                census: core.census(),
                stack: *core.stack.counters(),
                nic: core.nic.counters(),
                link: core.nic.link(),
                mtu: core.nic.capabilities().mtu,
                warning: core.nic.warning(),
                failed: core.failed.clone(),
            }
        })
    }
}

impl Shard {
    /// How many sockets there are, and the first `most` of them.
    pub(crate) fn look_at_sockets(&self, most: usize) -> (usize, Vec<SocketInfo>) {
        let mut some = Vec::with_capacity(most);
        self.with(|core| {
            let sockets = core.stack.sockets();
            let all = sockets.len();
            some.extend(sockets.take(most));
            (all, some)
        })
    }
}

impl super::Core {
    /// What it holds now.
    pub(crate) fn census(&self) -> Census {
        Census {
            sockets: self.stack.socket_count(),
            time_waits: self.stack.time_wait_count(),
            held: self.sockets().len(),
            kernel_ports: 0,
        }
    }
}
