//! Serves a handed-over connection through a pair of Unix stream sockets: one thread for each connection.
//!
//! | the program | the connection |
//! | --- | --- |
//! | shuts down writing | FIN |
//! | has closed its last descriptor | is closed; with a reset if there is unread data |
//! | does not read | the window closes |
//! | sends urgent data | sent in the stream, without the mark |
//!
//! | the peer | the program |
//! | --- | --- |
//! | FIN | reads the end of the stream |
//! | reset | ECONNRESET if the pump has bytes of the program that were not sent, otherwise the end of the stream; writing is EPIPE |
//! | does not read | the program's writes block |

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use abey_tcpip::{IoError, Readiness, Shutdown};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, shutdown, socketpair, sockopt,
};

use super::{ConnectionKey, HandOverError};
use crate::error::Error;
use crate::host::Host;
use crate::kernel_wait::KernelWait;
use crate::shard::ShardSocket;
use crate::socket::TcpStream;
use crate::wait::wait_any;

/// How often a pump checks whether a closed connection is still inherited.
const INHERITED_CHECK: Duration = Duration::from_millis(200);

/// Returns whether another process may ask for a connection that this process has closed.
pub(crate) type IsInherited = Box<dyn Fn() -> bool + Send>;

/// Most bytes that wait in a pump in each direction.
const BUFFER: usize = 64 << 10;

/// The pumps of a runtime: the descriptors that stand for connections, until the streams that were handed over are closed.
#[derive(Debug, Default)]
pub(crate) struct Pumps {
    ends: Mutex<HashMap<ConnectionKey, End>>,
    /// Why the kernel did not take the latest connection that a pump serves instead.
    refusal: Mutex<Option<io::Error>>,
}

/// The descriptor that stands for a connection.
struct End {
    descriptor: OwnedFd,
    /// Set while other processes have inherited the connection and have not asked for it.
    is_inherited: Option<IsInherited>,
    /// This process has closed the stream.
    is_closed: bool,
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("End")
            .field("descriptor", &self.descriptor)
            .field("is_closed", &self.is_closed)
            .finish_non_exhaustive()
    }
}

impl Pumps {
    fn ends(&self) -> MutexGuard<'_, HashMap<ConnectionKey, End>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a copy of the descriptor that stands for a connection, if a pump serves it; `Some(None)` if the process has no
    /// descriptor left. A connection that this process has closed is given to the first process that asks.
    #[expect(clippy::option_option, reason = "no pump, or no descriptor")]
    pub(super) fn end(&self, key: ConnectionKey) -> Option<Option<OwnedFd>> {
        let mut ends = self.ends();
        let end = ends.get(&key)?;
        if !end.is_closed {
            return Some(end.descriptor.try_clone().ok());
        }
        ends.remove(&key).map(|end| Some(end.descriptor))
    }

    /// Records why the kernel did not take a connection.
    pub(super) fn record_refusal(&self, reason: io::Error) {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
    }

    /// Returns and clears the latest recorded reason.
    pub(crate) fn take_refusal(&self) -> Option<io::Error> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Forgets the descriptor of a connection whose stream is closed, so that the pump notices when the program closes its
    /// copies. That of an inherited connection is kept until a process asks for it.
    pub(crate) fn forget(&self, key: ConnectionKey) {
        let mut ends = self.ends();
        match ends.get_mut(&key) {
            Some(end) if end.is_inherited.is_some() => end.is_closed = true,
            _ => drop(ends.remove(&key)),
        }
    }

    /// Returns whether the pump must check again whether a process may ask for a connection. Forgets one that is closed and that
    /// no process has any more.
    fn check_inherited(&self, key: ConnectionKey) -> bool {
        let mut ends = self.ends();
        let Some(End { is_inherited: Some(is_inherited), is_closed, .. }) = ends.get(&key) else { return false };
        let is_over = *is_closed && !is_inherited();
        if is_over {
            ends.remove(&key);
        }
        !is_over
    }
}

/// Starts to serve a connection. Returns the descriptor that stands for it.
pub(super) fn start(
    host: &Arc<Host>,
    key: ConnectionKey,
    is_inherited: Option<IsInherited>,
) -> Result<OwnedFd, HandOverError> {
    // Held until the end is in the table, so that a thread that finds the connection moved finds its end.
    let mut ends = host.pumps.ends();
    if let Some(end) = ends.get(&key) {
        return Ok(end.descriptor.try_clone()?);
    }
    let (shard, socket) = key.find(host)?;
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let (ours, programs) = pair.map_err(io::Error::from)?;
    // Urgent data stays in the stream (RFC 6093, section 4).
    sockopt::set_socket_oobinline(&ours, true).map_err(io::Error::from)?;
    let copy = programs.try_clone()?;
    let id = shard.with(|core| {
        let now = core.stack_now();
        core.stack.reissue(now, socket)
    })?;
    let stream = TcpStream::adopt(host, ShardSocket { shard: shard.clone(), id });
    let pump = Pump {
        host: host.clone(),
        key,
        stream,
        end: ours,
        to_program: Vec::new(),
        to_peer: Vec::new(),
        read_ended: false,
        write_ended: false,
    };
    ends.insert(key, End { descriptor: copy, is_inherited, is_closed: false });
    drop(ends);
    // If the thread cannot start, the stream is dropped, which closes the connection: nothing else could serve it.
    let started = std::thread::Builder::new().name("abey-pump".to_owned()).spawn(move || pump.run());
    started.inspect_err(|_| host.pumps.forget(key))?;
    Ok(programs)
}

/// A pump.
struct Pump {
    host: Arc<Host>,
    /// The connection's name before the pump had it.
    key: ConnectionKey,
    stream: TcpStream,
    /// This end of the pair.
    end: OwnedFd,
    to_program: Vec<u8>,
    to_peer: Vec<u8>,
    /// The peer has sent its FIN, and the program can read the end of the stream.
    read_ended: bool,
    /// The program has shut down writing, and the FIN is on its way.
    write_ended: bool,
}

/// One direction of a pump has failed, and with it the connection.
struct Failed;

impl Pump {
    /// Runs until both directions have ended, or one has failed. Dropping the pump then closes both ends.
    fn run(mut self) {
        let mut buffer = vec![0; BUFFER];
        while !(self.read_ended && self.write_ended) {
            match self.copy(&mut buffer) {
                Ok(true) => {}
                Ok(false) if self.wait() => {}
                _ => return,
            }
        }
    }

    /// Copies what can be copied without waiting. Returns whether there was something.
    fn copy(&mut self, buffer: &mut [u8]) -> Result<bool, Failed> {
        Ok(self.copy_to_program(buffer)? | self.copy_to_peer(buffer)?)
    }

    fn copy_to_program(&mut self, buffer: &mut [u8]) -> Result<bool, Failed> {
        let mut progress = false;
        if self.to_program.is_empty() && !self.read_ended {
            match would_block(self.stream.try_read(buffer))? {
                Some(0) => {
                    self.read_ended = true;
                    shutdown(&self.end, rustix::net::Shutdown::Write).map_err(|_| Failed)?;
                    return Ok(true);
                }
                Some(count) => self.to_program.extend_from_slice(&buffer[..count]),
                None => {}
            }
        }
        if !self.to_program.is_empty() {
            match send(&self.end, &self.to_program, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => {
                    self.to_program.drain(..count);
                    progress = count > 0;
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return Err(Failed),
            }
        }
        Ok(progress)
    }

    fn copy_to_peer(&mut self, buffer: &mut [u8]) -> Result<bool, Failed> {
        let mut progress = false;
        if self.to_peer.is_empty() && !self.write_ended {
            match recv(&self.end, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    self.write_ended = true;
                    self.stream.shutdown(Shutdown::Write).map_err(|_| Failed)?;
                    return Ok(true);
                }
                Ok((count, _)) => self.to_peer.extend_from_slice(&buffer[..count]),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return Err(Failed),
            }
        }
        if !self.to_peer.is_empty()
            && let Some(count) = would_block(self.stream.try_write(&self.to_peer))?
        {
            self.to_peer.drain(..count);
            progress = count > 0;
        }
        Ok(progress)
    }

    /// Waits until something can be copied. Returns false if the connection has failed, or the program has closed its last
    /// descriptor and everything it wrote was passed on.
    fn wait(&self) -> bool {
        if self.stream.readiness().intersects(Readiness::ERROR | Readiness::HANG_UP) {
            // Nothing more comes from the peer, and nothing more can be sent.
            let mut polled = [PollFd::new(&self.end, PollFlags::OUT)];
            return !self.to_program.is_empty() && poll(&mut polled, None).is_ok();
        }
        let mut interest = Readiness::NONE;
        if self.to_program.is_empty() && !self.read_ended {
            interest |= Readiness::READABLE;
        }
        if !self.to_peer.is_empty() {
            interest |= Readiness::WRITABLE;
        }
        let mut events = PollFlags::empty();
        events.set(PollFlags::OUT, !self.to_program.is_empty());
        events.set(PollFlags::IN, self.to_peer.is_empty() && !self.write_ended);
        // A program that has closed its end is always reported, and is of no interest while it has unsent bytes.
        let is_polled = self.to_peer.is_empty() || !self.to_program.is_empty();
        let kernel = PumpWait { end: is_polled.then(|| self.end.as_fd()), events };
        let sockets = self.stream.sockets();
        let must_check = self.host.pumps.check_inherited(self.key);
        let until = must_check.then(|| self.host.clock().after(INHERITED_CHECK));
        let waited = wait_any(sockets.iter().map(|socket| (socket, interest)), until, None, Some(&kernel));
        waited.is_ok() && !self.is_abandoned()
    }

    /// Returns whether the program has closed its last descriptor, and everything it wrote was passed on.
    fn is_abandoned(&self) -> bool {
        let mut polled = [PollFd::new(&self.end, PollFlags::IN)];
        let _ = poll(&mut polled, Some(&Timespec::default()));
        let events = polled[0].revents();
        events.contains(PollFlags::HUP) && self.write_ended && self.to_peer.is_empty() && !self.read_ended
    }
}

/// Returns a count, or `None` if the call would have waited.
fn would_block(result: Result<usize, Error>) -> Result<Option<usize>, Failed> {
    match result {
        Ok(count) => Ok(Some(count)),
        Err(Error::Socket(IoError::WouldBlock)) => Ok(None),
        Err(_) => Err(Failed),
    }
}

/// The program's side of a wait.
struct PumpWait<'a> {
    end: Option<BorrowedFd<'a>>,
    events: PollFlags,
}

impl KernelWait for PumpWait<'_> {
    fn poll(&self, own: &mut [PollFd<'_>], timeout: Option<&Timespec>) -> rustix::io::Result<bool> {
        let Some(end) = self.end else { return poll(own, timeout).map(|_| false) };
        let mut all: Vec<_> = own.iter().map(|one| PollFd::from_borrowed_fd(one.as_fd(), PollFlags::IN)).collect();
        all.push(PollFd::from_borrowed_fd(end, self.events));
        poll(&mut all, timeout)?;
        let is_ready = all.last().is_some_and(|last| !last.revents().is_empty());
        drop(all);
        poll(own, Some(&Timespec::default()))?;
        Ok(is_ready)
    }

    fn block_signals(&self) {}
}
