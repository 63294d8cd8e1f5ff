//! One kick of the device for the answers to all events of one wait.
//!
//! A kick tells the device that the transmit ring has frames. It costs a system call, and on a veth pair the peer's whole
//! receive path runs in that call; several frames cost little more than one. A server whose wait reported several sockets
//! answers them one after the other. Until it answers the last of them, frames stay in the transmit ring. The kick for the
//! last answer, or that of the thread's next wait, transmits all of them.
//!
//! *The delay is bounded.* The program may do something else first, which may even depend on an answer that is still in
//! the ring. So frames in the ring give the shard a deadline, at which the service thread kicks. A timer that is armed for
//! an earlier time serves as well, and one deadline serves all batches before it. After a program missed the deadline,
//! its frames are kicked at once for a while.

use abey_delivery::Nanos;
use abey_tcpip::SocketId;

/// How long frames may stay in the ring: a jiffy, as for TCP's timers.
const MAX_DELAY: Nanos = Nanos::from_millis(4);

/// The most frames in the ring without a kick: what one system call transmits in copy mode (`TX_BATCH_SIZE`).
const MAX_FRAMES: u64 = 32;

/// The number of waits without a batch after a missed deadline.
const PENALTY: u32 = 1000;

/// The sockets that a wait reported, and the frames that wait for the answer of the last of them.
#[derive(Debug, Default)]
pub(super) struct KickBatch {
    /// The number of reported sockets that the program has not used yet.
    remaining: usize,
    /// The socket that the program used last.
    current: Option<SocketId>,
    /// The number of frames in the ring since the last kick.
    frames: u64,
    /// When the first of these frames was put into the ring.
    since: Nanos,
    /// The number of waits that will not begin a batch.
    penalty: u32,
}

impl KickBatch {
    /// Begins a batch: a wait reports this number of sockets.
    pub(super) fn begin(&mut self, sockets: usize) {
        let allowed = self.penalty == 0;
        self.penalty = self.penalty.saturating_sub(1);
        (self.remaining, self.current) = (if allowed { sockets } else { 0 }, None);
    }

    /// Records that the program uses a socket.
    pub(super) fn use_socket(&mut self, socket: SocketId) {
        if self.remaining > 0 && self.current != Some(socket) {
            self.current = Some(socket);
            self.remaining -= 1;
        }
    }

    /// Ends the batch: the program waits again, or another thread uses the shard.
    pub(super) fn end(&mut self) {
        self.remaining = 0;
    }

    /// Records that `sent` frames were put into the ring. Returns whether the device must be kicked now.
    pub(super) fn is_due(&mut self, sent: u64, now: Nanos) -> bool {
        if self.frames == 0 {
            self.since = now;
        }
        self.frames += sent;
        if self.frames == 0 || self.remaining > 0 && self.frames < MAX_FRAMES && now < self.since + MAX_DELAY {
            return false;
        }
        self.frames = 0;
        true
    }

    /// Returns when the device must be kicked at the latest.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        (self.frames > 0).then(|| self.since + MAX_DELAY)
    }

    /// Ends the batch if its deadline has passed, and suspends batches for a while.
    pub(super) fn check(&mut self, now: Nanos) {
        if self.deadline().is_some_and(|at| at <= now) {
            self.end();
            self.penalty = PENALTY;
        }
    }
}
