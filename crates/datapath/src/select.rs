//! Waiting for several sockets without an epoll, as `poll(2)` does.

use std::time::Duration;

use abey_tcpip::Readiness;

use crate::error::{EpollError, SystemError};
use crate::outside::{Ended, Outside};
use crate::runtime::Runtime;
use crate::socket::Source;
use crate::wait::wait_any;

impl Runtime {
    /// Waits until one of the sockets is ready for some of what it is `wanted` for or has failed, until `outside` has
    /// something, or `timeout` is over (`None`: without end). Which socket it is, is for the caller to ask.
    ///
    /// As in the kernel it busy polls where a blocking read would (`sockbusyX`), and suspends nothing. With no sockets the
    /// time is over at once.
    ///
    /// # Errors
    /// The runtime is gone, a socket is another one's, or there is no descriptor left to sleep on.
    pub fn wait_any(
        &self,
        wanted: &[(&dyn Source, Readiness)],
        timeout: Option<Duration>,
        outside: &dyn Outside,
    ) -> Result<Ended, EpollError> {
        let shared = self.shared();
        if shared.is_over() {
            return Err(EpollError::RuntimeGone);
        }
        if wanted.iter().any(|(source, _)| !std::sync::Arc::ptr_eq(source.parts().runtime, shared)) {
            return Err(EpollError::OtherRuntime);
        }
        let until = timeout.map(|timeout| shared.clock.after(timeout));
        let reads = wanted.iter().any(|(_, interest)| interest.contains(Readiness::READABLE));
        let busy = shared.socket_busy_poll().filter(|_| reads);
        let parts =
            wanted.iter().flat_map(|(source, interest)| source.parts().parts.iter().map(move |part| (part, *interest)));
        wait_any(parts, until, busy, Some(outside)).map_err(SystemError::into)
    }
}
