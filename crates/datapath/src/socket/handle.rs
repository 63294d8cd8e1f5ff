//! A handle of a socket: what TCP streams, listeners and UDP sockets have in common.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use abey_tcpip::{IoError, Readiness, SocketId};

use crate::error::Error;
use crate::handover::ConnectionKey;
use crate::host::Host;
use crate::kernel::ports::Lease;
use crate::shard::{Core, Observer, Shard, ShardSocket};
use crate::wait::wait_for;

/// No timeout.
const NEVER: u64 = u64::MAX;

fn nanos(timeout: Option<Duration>) -> u64 {
    timeout.map_or(NEVER, |timeout| u64::try_from(timeout.as_nanos()).unwrap_or(NEVER))
}

/// A socket. Dropping it closes the socket.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) host: Arc<Host>,
    /// The socket's part in each of its shards.
    pub(super) sockets: Vec<ShardSocket>,
    /// The socket's port, if that is shared with the kernel. Released after the sockets are closed.
    pub(super) lease: Option<Lease>,
    nonblocking: AtomicBool,
    /// In nanoseconds, for calls that read or accept.
    read_timeout: AtomicU64,
    /// In nanoseconds, for calls that write.
    write_timeout: AtomicU64,
}

impl Handle {
    /// Creates the handle of sockets that were just opened.
    pub(super) fn new(host: &Arc<Host>, sockets: Vec<ShardSocket>) -> Self {
        for socket in &sockets {
            socket.shard.with(|core| core.sockets.register(socket.id));
        }
        Self {
            host: host.clone(),
            sockets,
            lease: None,
            nonblocking: AtomicBool::new(false),
            read_timeout: AtomicU64::new(NEVER),
            write_timeout: AtomicU64::new(NEVER),
        }
    }

    pub(super) fn set_nonblocking(&self, on: bool) {
        self.nonblocking.store(on, Ordering::Relaxed);
    }

    pub(super) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    pub(super) fn set_timeout(&self, timeout: Option<Duration>) {
        self.set_read_timeout(timeout);
        self.set_write_timeout(timeout);
    }

    pub(super) fn set_read_timeout(&self, timeout: Option<Duration>) {
        self.read_timeout.store(nanos(timeout), Ordering::Relaxed);
    }

    pub(super) fn set_write_timeout(&self, timeout: Option<Duration>) {
        self.write_timeout.store(nanos(timeout), Ordering::Relaxed);
    }

    /// Returns the timeout of a call that waits for `interest`.
    fn timeout(&self, interest: Readiness) -> Option<Duration> {
        let timeout = if interest.contains(Readiness::WRITABLE) { &self.write_timeout } else { &self.read_timeout };
        let nanos = timeout.load(Ordering::Relaxed);
        (nanos != NEVER).then(|| Duration::from_nanos(nanos))
    }

    /// Returns the first socket, which is the only one of a stream.
    pub(super) fn first(&self) -> &ShardSocket {
        &self.sockets[0]
    }

    /// Runs `work` on the first socket.
    pub(super) fn now<R>(&self, work: impl FnOnce(&mut Core, SocketId) -> Result<R, IoError>) -> Result<R, Error> {
        let socket = self.first();
        on(socket, |core| work(core, socket.id))
    }

    /// Returns what the sockets are ready for, together.
    pub(super) fn readiness(&self) -> Readiness {
        let one = |socket: &ShardSocket| socket.shard.with(|core| core.readiness(socket.id, false));
        self.sockets.iter().fold(Readiness::NONE, |all, socket| all | one(socket))
    }

    /// Runs `work` on the first socket on which it would not block.
    pub(super) fn try_now<R>(
        &self,
        mut work: impl FnMut(&Arc<Shard>, &mut Core, SocketId) -> Result<R, IoError>,
    ) -> Result<R, Error> {
        for socket in &self.sockets {
            match on(socket, |core| work(&socket.shard, core, socket.id)) {
                Err(Error::Socket(IoError::WouldBlock)) => {}
                done => return done,
            }
        }
        Err(IoError::WouldBlock.into())
    }

    /// Runs `work` on the first socket on which it would not block. If it would on all, waits for `interest` and tries
    /// again, unless the socket is non-blocking.
    pub(super) fn blocking<R>(
        &self,
        interest: Readiness,
        mut work: impl FnMut(&Arc<Shard>, &mut Core, SocketId) -> Result<R, IoError>,
    ) -> Result<R, Error> {
        let until = self.timeout(interest).map(|timeout| self.host.clock().after(timeout));
        loop {
            match self.try_now(&mut work) {
                Err(Error::Socket(IoError::WouldBlock)) => {}
                done => return done,
            }
            if self.is_nonblocking() {
                return Err(IoError::WouldBlock.into());
            }
            let busy = self.host.socket_busy_poll().filter(|_| interest.contains(Readiness::READABLE));
            if !wait_for(&self.sockets, interest, until, busy)? {
                return Err(Error::TimedOut);
            }
        }
    }

    /// Returns the name of the first socket in its runtime.
    pub(super) fn key(&self) -> ConnectionKey {
        self.first().key().into()
    }

    /// Closes the sockets. Calls on the handle fail from now on.
    pub(super) fn close(&self) {
        if let [socket] = &*self.sockets {
            self.host.pumps.forget(socket.key().into());
        }
        for ShardSocket { shard, id } in &self.sockets {
            let observers = shard.with(|core| {
                let now = core.stack_now();
                // The connection may have ended already.
                let _ = core.stack.close(now, *id);
                core.sockets.unregister(*id)
            });
            for observer in observers.iter() {
                if let Observer::Epoll { epoll, key, .. } = observer {
                    epoll.remove_closed(*key);
                }
            }
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}

/// Runs `work` under the lock of a socket's shard.
///
/// # Errors
/// Those of `work`; the runtime was dropped, or the device failed.
pub(super) fn on<R>(socket: &ShardSocket, work: impl FnOnce(&mut Core) -> Result<R, IoError>) -> Result<R, Error> {
    socket.shard.with(|core| {
        core.use_socket(socket.id);
        if core.is_shut_down {
            return Err(Error::RuntimeDropped);
        }
        if let Some(failed) = &core.failed {
            return Err(Error::Nic(failed.clone()));
        }
        Ok(work(core)?)
    })
}
