//! A look at an epoll from outside, for whoever asks how it is.

use abey_delivery::{EpollBusyPoll, NapiId};

use super::Queue;

/// What is there.
#[derive(Debug)]
pub(crate) struct QueueView {
    pub(crate) busy_poll: Option<EpollBusyPoll>,
    pub(crate) sockets: usize,
    pub(crate) napis: Vec<NapiId>,
    pub(crate) sleeping: usize,
}

impl Queue {
    pub(crate) fn view(&self) -> QueueView {
        let inner = self.inner();
        QueueView {
            busy_poll: inner.context.busy_poll(),
            sockets: inner.entries.len(),
            napis: inner.context.members().collect(),
            sleeping: inner.sleepers.len(),
        }
    }
}
