//! One kick for the answers to one wait.
//!
//! Telling the device that there are frames costs a system call, and on a veth pair in it the peer's whole receive path;
//! for several frames it costs little more than for one. A server that was told of several sockets answers them one after
//! the other: while it is not at the last of them, frames stay in the transmit ring, and the last answer's kick, or that
//! of the thread's next wait, takes them all.
//!
//! *Nothing stays there for long.* The program may do something else first, and that may even depend on an answer that was
//! not sent. So what waits gives the shard a deadline, at which the service thread kicks; a timer that is armed for
//! something earlier serves as well, and one deadline serves all the bursts before it. A program that lets the deadline
//! come does not get bursts for a while.

use abey_delivery::Nanos;
use abey_tcpip::SocketId;

/// How long frames may wait if the program does not come back: a jiffy, as TCP's timers.
const PATIENCE: Nanos = Nanos::from_millis(4);

/// Frames that wait at most: what one system call takes in copy mode (`TX_BATCH_SIZE`).
const MOST: u64 = 32;

/// Waits without bursts after one that was not finished in time.
const DISTRUST: u32 = 1000;

/// The sockets that a wait told of, and the frames that wait for the last of them.
#[derive(Debug, Default)]
pub(super) struct Burst {
    /// Sockets that come after [`Self::at`].
    left: usize,
    /// The socket that the program is at.
    at: Option<SocketId>,
    /// Frames in the ring of which the device was not told.
    frames: u64,
    /// When the first of them was put there.
    since: Nanos,
    /// Waits to come whose sockets are answered one by one.
    distrust: u32,
}

impl Burst {
    /// A wait tells of that many sockets.
    pub(super) fn begin(&mut self, sockets: usize) {
        let trusted = self.distrust == 0;
        self.distrust = self.distrust.saturating_sub(1);
        (self.left, self.at) = (if trusted { sockets } else { 0 }, None);
    }

    /// The program does something with a socket.
    pub(super) fn touch(&mut self, socket: SocketId) {
        if self.left > 0 && self.at != Some(socket) {
            self.at = Some(socket);
            self.left -= 1;
        }
    }

    /// The program waits again, or somebody else uses the shard: what waits is to be kicked.
    pub(super) fn end(&mut self) {
        self.left = 0;
    }

    /// Frames were put in the ring, or none; whether the device is to be told now.
    pub(super) fn is_due(&mut self, sent: u64, now: Nanos) -> bool {
        if self.frames == 0 {
            self.since = now;
        }
        self.frames += sent;
        if self.frames == 0 || self.left > 0 && self.frames < MOST && now < self.since + PATIENCE {
            return false;
        }
        self.frames = 0;
        true
    }

    /// When somebody must kick at the latest.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        (self.frames > 0).then(|| self.since + PATIENCE)
    }

    /// The deadline may have come; if so, the program did not come back in time.
    pub(super) fn check(&mut self, now: Nanos) {
        if self.deadline().is_some_and(|at| at <= now) {
            self.end();
            self.distrust = DISTRUST;
        }
    }
}
