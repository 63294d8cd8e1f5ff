//! How a server's thread waits: in an epoll context, or in a blocking receive on its only socket.

use abey_delivery::{
    EpollBusyPoll, EpollConfig, EpollContext, EpollWait, Nanos, NapiId, Poller, SocketBusyPoll, SocketWait, WaitStep,
};

#[derive(Debug)]
pub(super) enum Waiter {
    Epoll { context: EpollContext, wait: EpollWait },
    Socket { wait: SocketWait, busy: Option<SocketBusyPoll>, napi: Option<NapiId> },
}

impl Waiter {
    pub(super) fn epoll(config: EpollConfig, busy: Option<EpollBusyPoll>, poller: Poller) -> Self {
        Self::Epoll { context: EpollContext::new(config, busy), wait: EpollWait::new(poller) }
    }

    pub(super) fn socket(busy: Option<Nanos>, poller: Poller) -> Self {
        Self::Socket { wait: SocketWait::new(poller), busy: busy.map(SocketBusyPoll::new), napi: None }
    }

    pub(super) fn add_socket(&mut self, id: NapiId) {
        if let Self::Epoll { context, .. } = self {
            context.handle_add(id);
        }
    }

    /// Handles that a socket of this instance became ready.
    pub(super) fn handle_ready(&mut self, id: NapiId) {
        match self {
            Self::Epoll { context, .. } => context.handle_ready(id),
            Self::Socket { napi, .. } => *napi = Some(id),
        }
    }

    pub(super) fn begin(&mut self, now: Nanos, deadline: Option<Nanos>) {
        match self {
            Self::Epoll { wait, .. } => wait.begin(now, deadline),
            Self::Socket { wait, busy, napi } => wait.begin(deadline, *napi, *busy),
        }
    }

    pub(super) fn next(&mut self, now: Nanos, ready: bool) -> WaitStep {
        match self {
            Self::Epoll { context, wait } => wait.next(context, now, ready),
            Self::Socket { wait, .. } => wait.next(now, ready),
        }
    }

    pub(super) fn handle_polled(&mut self, work: u16) {
        if let Self::Epoll { wait, .. } = self {
            wait.handle_polled(work);
        }
    }

    pub(super) fn poller(&self) -> Poller {
        match self {
            Self::Epoll { wait, .. } => wait.poller(),
            Self::Socket { wait, .. } => wait.poller(),
        }
    }

    pub(super) fn busy_polls(&self) -> bool {
        match self {
            Self::Epoll { context, .. } => context.busy_poll().is_some(),
            Self::Socket { busy, .. } => busy.is_some(),
        }
    }
}
