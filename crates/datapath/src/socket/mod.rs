//! Sockets: what TCP streams, listeners and UDP sockets have in common.
//!
//! A socket lives in the shard its packets arrive on. One that does not belong to a flow (a listener, a UDP socket) may
//! have a part in every shard.

mod connect;
mod listener;
mod stream;
mod udp;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use abey_tcpip::{IoError, Readiness, SocketId};

pub use listener::TcpListener;
pub use stream::TcpStream;
pub use udp::UdpSocket;

use crate::error::{Error, OpenError};
use crate::kernel::Lease;
use crate::runtime::Shared;
use crate::shard::{Core, Shard, Watch};
use crate::wait::{Part, wait_for};

/// What can be added to an [`Epoll`](crate::Epoll).
pub trait Source: sealed::Sealed {
    /// Where it lives.
    #[doc(hidden)]
    fn parts(&self) -> Parts<'_>;
}

mod sealed {
    pub trait Sealed {}
}

/// Where a socket lives.
#[derive(Debug)]
pub struct Parts<'a> {
    pub(crate) runtime: &'a Arc<Shared>,
    pub(crate) parts: &'a [Part],
    /// It takes connections and no data: packets that are worth polling for are its connections'. As in the kernel, where
    /// a listener carries no NAPI ID, an epoll that has nothing else polls no queue and drives none.
    pub(crate) listens: bool,
}

impl Shared {
    /// The shard of that number.
    fn shard(&self, index: usize) -> Result<&Arc<Shard>, OpenError> {
        self.shards.get(index).ok_or(OpenError::NoSuchShard { index, count: self.shards.len() })
    }
}

/// "No timeout" in a [`Handle`]'s.
const NEVER: u64 = u64::MAX;

fn word(timeout: Option<Duration>) -> u64 {
    timeout.map_or(NEVER, |timeout| u64::try_from(timeout.as_nanos()).unwrap_or(NEVER))
}

/// A socket; dropping it closes it.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) runtime: Arc<Shared>,
    pub(crate) parts: Vec<Part>,
    /// Its port, where that is shared with the kernel. Given back after the parts are closed.
    pub(crate) lease: Option<Lease>,
    nonblocking: AtomicBool,
    /// For calls that read or accept, and for those that write.
    read_timeout: AtomicU64,
    write_timeout: AtomicU64,
}

impl Handle {
    /// A socket that was just opened in these places. From here on its events are looked after.
    pub(crate) fn new(runtime: &Arc<Shared>, parts: Vec<Part>) -> Self {
        for part in &parts {
            part.shard.with(|core| {
                core.watches(part.socket);
            });
        }
        Self {
            runtime: runtime.clone(),
            parts,
            lease: None,
            nonblocking: AtomicBool::new(false),
            read_timeout: AtomicU64::new(NEVER),
            write_timeout: AtomicU64::new(NEVER),
        }
    }

    pub(crate) fn set_nonblocking(&self, on: bool) {
        self.nonblocking.store(on, Ordering::Relaxed);
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    pub(crate) fn set_timeout(&self, timeout: Option<Duration>) {
        self.set_read_timeout(timeout);
        self.set_write_timeout(timeout);
    }

    pub(crate) fn set_read_timeout(&self, timeout: Option<Duration>) {
        self.read_timeout.store(word(timeout), Ordering::Relaxed);
    }

    pub(crate) fn set_write_timeout(&self, timeout: Option<Duration>) {
        self.write_timeout.store(word(timeout), Ordering::Relaxed);
    }

    /// How long a call may wait that waits for `interest`.
    fn timeout(&self, interest: Readiness) -> Option<Duration> {
        let of_direction =
            if interest.contains(Readiness::WRITABLE) { &self.write_timeout } else { &self.read_timeout };
        let nanos = of_direction.load(Ordering::Relaxed);
        (nanos != NEVER).then(|| Duration::from_nanos(nanos))
    }

    /// The part of a socket that has one.
    pub(crate) fn part(&self) -> &Part {
        &self.parts[0]
    }

    /// Does something at once, in the first part.
    pub(crate) fn now<R>(&self, work: impl FnOnce(&mut Core, SocketId) -> Result<R, IoError>) -> Result<R, Error> {
        let part = self.part();
        on(part, |core| work(core, part.socket))
    }

    /// What it is ready for, in any part.
    pub(crate) fn readiness(&self) -> Readiness {
        let one = |part: &Part| part.shard.with(|core| core.readiness(part.socket, false));
        self.parts.iter().fold(Readiness::NONE, |all, part| all | one(part))
    }

    /// Does something in the first part where it need not wait.
    pub(crate) fn at_once<R>(
        &self,
        mut work: impl FnMut(&Arc<Shard>, &mut Core, SocketId) -> Result<R, IoError>,
    ) -> Result<R, Error> {
        for part in &self.parts {
            match on(part, |core| work(&part.shard, core, part.socket)) {
                Err(Error::Socket(IoError::WouldBlock)) => {}
                done => return done,
            }
        }
        Err(IoError::WouldBlock.into())
    }

    /// Does something that may have to wait until a part is ready for `interest`, in the first part where it need not.
    pub(crate) fn when<R>(
        &self,
        interest: Readiness,
        mut work: impl FnMut(&Arc<Shard>, &mut Core, SocketId) -> Result<R, IoError>,
    ) -> Result<R, Error> {
        let until = self.timeout(interest).map(|timeout| self.runtime.clock.after(timeout));
        loop {
            match self.at_once(&mut work) {
                Err(Error::Socket(IoError::WouldBlock)) => {}
                done => return done,
            }
            if self.is_nonblocking() {
                return Err(IoError::WouldBlock.into());
            }
            let busy = self.runtime.socket_busy_poll().filter(|_| interest.contains(Readiness::READABLE));
            if !wait_for(&self.parts, interest, until, busy)? {
                return Err(Error::TimedOut);
            }
        }
    }
}

/// Does something with a socket's part, if that is possible at all.
pub(crate) fn on<R>(part: &Part, work: impl FnOnce(&mut Core) -> Result<R, IoError>) -> Result<R, Error> {
    part.shard.with(|core| {
        core.touch(part.socket);
        if core.over {
            return Err(Error::RuntimeGone);
        }
        if let Some(failed) = &core.failed {
            return Err(Error::Nic(failed.clone()));
        }
        Ok(work(core)?)
    })
}

impl Handle {
    /// Closes every part; the handle says from now on that there is no such socket.
    fn close(&self) {
        for Part { shard, socket } in &self.parts {
            let watches = shard.with(|core| {
                let now = core.stack_now();
                // A socket that is gone already is closed.
                let _ = core.stack.close(now, *socket);
                core.remove_watches(*socket)
            });
            for watch in watches.iter() {
                if let Watch::Epoll { queue, key, .. } = watch {
                    let resume = queue.remove(*key);
                    queue.resume(resume);
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
