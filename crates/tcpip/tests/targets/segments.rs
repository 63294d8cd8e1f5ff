//! Segments of one connection against an oracle: two byte streams.
//!
//! The bytes say what a peer does (data again, early, beyond the window; old and impossible acknowledgements; windows that
//! close and shrink; SACK blocks that lie; resets and SYNs that are near), what the application does, what is lost and how
//! time passes. What the application reads must be what the peer sent, in order, and never more; what the peer gets must be
//! what the application wrote, and inside a window it offered. Afterwards the peer becomes honest, and everything must
//! arrive: a connection may be slowed by what came before, but not stopped.

use abey_tcpip::{Counters, Instant, IoError, Shutdown, SocketId};

use super::Choices;
use crate::common::{
    MILLISECOND, SECOND, byte,
    script::{Script, Seg, seg},
};

const BUFFER: usize = 8192;
/// Streams are at most so long.
const LONGEST: u32 = 60_000;
/// Rounds the honest end takes at most.
const PATIENCE: usize = 5000;

struct Bench {
    script: Script,
    id: SocketId,
    /// The peer's stream: its length, and which of its bytes were ever sent; the last is the FIN.
    theirs: Vec<bool>,
    /// The application's stream as the peer has it; its length once the FIN came.
    ours: Vec<bool>,
    ours_end: Option<usize>,
    written: usize,
    wants_to_write: usize,
    shut: bool,
    read: usize,
    ended: bool,
    /// The right edges: of the peer's window at its furthest, and of the stack's as told last.
    offered: u32,
    edge: u32,
    /// The stack's latest acknowledgement.
    acked: u32,
    /// After the last number the peer ever used.
    next: u32,
    scale: u8,
    timestamps: bool,
    echo: u32,
}

/// Runs one case; what the stack counted in it.
pub fn run(data: &[u8]) -> Counters {
    let mut choices = Choices::new(data);
    let mut bench = Bench::new(&mut choices);
    // When both ends are acknowledged it is over, and a SYN may begin another connection.
    while !choices.is_empty() && bench.script.stack.is_connected(bench.id) {
        if !bench.step(&mut choices) {
            return *bench.script.stack.counters();
        }
        bench.check();
    }
    bench.finish()
}

impl Bench {
    fn new(choices: &mut Choices<'_>) -> Self {
        let features = choices.byte();
        let mut script = Script::new(|settings| {
            settings.receive_buffer = BUFFER;
            settings.receive_buffer_limit = BUFFER;
            settings.send_buffer = BUFFER;
            settings.retries = 30;
        });
        let scale = (features & 1 != 0).then_some(features >> 5);
        let mut syn =
            seg("S", 0, 0).options([100, 536, 1460][usize::from(features >> 1 & 3) % 3], scale, features & 8 != 0);
        let timestamps = features & 16 != 0;
        if timestamps {
            syn = syn.timestamp(Self::clock(script.now), 0);
        }
        let id = script.accepted(&syn);
        let (theirs, wants_to_write) = (choices.below(LONGEST) as usize + 1, choices.below(LONGEST) as usize);
        let scale = scale.unwrap_or(0);
        Self {
            script,
            id,
            theirs: vec![false; theirs],
            ours: vec![false; wants_to_write],
            ours_end: None,
            written: 0,
            wants_to_write,
            shut: false,
            read: 0,
            ended: false,
            // The window of the SYN, and of the last ACK of the handshake.
            offered: 1 + (60_000 << scale),
            edge: 1 + BUFFER as u32,
            acked: 1,
            next: 1,
            scale,
            timestamps,
            echo: 0,
        }
    }

    fn clock(now: u64) -> u32 {
        (now / MILLISECOND) as u32
    }

    /// What the peer has of the application's stream, from the beginning on; as an acknowledgement.
    fn in_order(&self) -> u32 {
        let bytes = self.ours.iter().position(|got| !got).unwrap_or(self.ours.len());
        1 + bytes as u32 + u32::from(self.ours_end == Some(bytes))
    }

    /// The peer sends `len` bytes of its stream from `offset` on, and the FIN if that is where it ends.
    fn send(&mut self, offset: u32, len: u32, ack: u32, window: u16, sack: &[(u32, u32)]) {
        let bytes = self.theirs.len() as u32 - 1;
        let (offset, end) = (offset.min(bytes + 1), offset.saturating_add(len).min(bytes));
        let fin = offset <= bytes && len > 0 && end == bytes;
        let mut segment = seg(if fin { "FA" } else { "A" }, 1 + offset, ack).window(window).sack(sack);
        segment.payload = (offset..end.max(offset)).map(|at| byte(2, at.into())).collect();
        for at in offset..end + u32::from(fin) {
            self.theirs[at as usize] = true;
        }
        self.next = self.next.max(1 + end.max(offset) + u32::from(fin));
        self.offered = self.offered.max(ack.wrapping_add(u32::from(window) << self.scale));
        self.inject(segment);
    }

    fn inject(&mut self, mut segment: Seg) {
        if self.timestamps {
            segment.timestamp = Some((Self::clock(self.script.now), self.echo));
        }
        self.script.inject(&segment);
    }

    /// One step; false when the connection was ended, as a reset may.
    fn step(&mut self, choices: &mut Choices<'_>) -> bool {
        match choices.byte() % 12 {
            0..=3 => self.peer_sends(choices),
            4 | 5 => self.transmit(|| !choices.byte().is_multiple_of(4)),
            6 => self.read(choices.below(20_000) as usize),
            7 => self.write(choices.below(20_000) as usize),
            8 => {
                let span = [MILLISECOND, 40 * MILLISECOND, SECOND, 7 * SECOND][usize::from(choices.byte() % 4)];
                self.script.now += span;
                self.script.stack.handle_timeout(Instant(self.script.now));
            }
            9 if choices.byte().is_multiple_of(8) && !self.shut => self.shut(),
            10 if choices.byte().is_multiple_of(4) => return self.spoof(choices),
            _ => {}
        }
        true
    }

    fn peer_sends(&mut self, choices: &mut Choices<'_>) {
        let shape = choices.byte();
        let base = [self.acked - 1, self.next - 1, self.edge - 1, 0][usize::from(shape & 3)];
        let offset =
            base.saturating_add_signed(i32::from(choices.byte() as i8) * [0, 1, 50, 1460][usize::from(shape >> 2 & 3)]);
        let in_order = self.in_order();
        let ack = match shape >> 4 & 7 {
            0 => in_order.saturating_sub(choices.below(3000)).max(1),
            1 => in_order.wrapping_add(1 << 30),
            _ => in_order,
        };
        let len = if shape & 128 != 0 { 0 } else { choices.below(1461) };
        let window = [0, 1, choices.word(), 60_000][usize::from(choices.byte() & 3)];
        let lie = 1 + choices.below(LONGEST);
        let sack = [(lie, lie + choices.below(4000))];
        self.send(offset, len, ack, window, if choices.byte().is_multiple_of(3) { &sack } else { &[] });
    }

    /// Somebody else's segment, or a confused one. A reset with the very number that is expected is believed.
    fn spoof(&mut self, choices: &mut Choices<'_>) -> bool {
        let flags = ["R", "RA", "S", "SA", "", "A", "SF"][usize::from(choices.byte() % 7)];
        let seq = self.acked.wrapping_add_signed(
            i32::from(choices.byte() as i8) * [0, 1, 100, 1 << 23][usize::from(choices.byte() & 3)],
        );
        let ack = self.in_order().wrapping_add([0, 1 << 20, 1 << 31][usize::from(choices.byte() % 3)]);
        self.script.inject(&seg(flags, seq, ack));
        let alive = self.script.stack.is_connected(self.id);
        assert!(alive || flags.contains('R') || self.is_complete(), "{flags:?} ended the connection");
        alive || !flags.contains('R')
    }

    /// The stack sends; `arrives` says what of it does.
    fn transmit(&mut self, mut arrives: impl FnMut() -> bool) {
        let sent = self.script.sent();
        assert!(sent.len() < 1000, "{} segments at once", sent.len());
        for segment in sent {
            if segment.has('R') && !self.script.stack.is_connected(self.id) && self.is_complete() {
                // Both ends were acknowledged, and the peer goes on.
                continue;
            }
            assert!(!segment.has('R') && !segment.has('S'), "{segment:?}");
            if let Some((value, _)) = segment.timestamp {
                self.echo = value;
            }
            let (len, fin) = (segment.payload.len() as u32, segment.has('F'));
            if len > 0 || fin {
                let start = segment.seq - 1;
                assert!((start + len) as usize <= self.written, "more than was written");
                assert!(segment.seq + len + u32::from(fin) <= self.offered, "beyond every window that was offered");
                assert!(!fin || (start + len) as usize == self.written && self.shut, "a FIN too early");
                for (at, &got) in (start..).zip(&segment.payload) {
                    assert_eq!(got, byte(1, at.into()), "byte {at} of the application's stream");
                }
                if arrives() {
                    self.ours[start as usize..(start + len) as usize].fill(true);
                    if fin {
                        self.ours_end = Some((start + len) as usize);
                    }
                }
            }
            let acked = segment.ack.saturating_sub(1) as usize;
            assert!(acked <= self.theirs.len() && self.theirs[..acked].iter().all(|sent| *sent), "ack {acked}");
            self.acked = self.acked.max(segment.ack);
            self.edge = self.edge.max(segment.ack + (u32::from(segment.window)));
        }
    }

    /// Whether the peer has all of the application's stream.
    fn is_complete(&self) -> bool {
        self.ours_end.is_some_and(|end| self.in_order() == end as u32 + 2)
    }

    fn read(&mut self, len: usize) {
        let mut buffer = vec![0; len.max(1)];
        match self.script.stack.read(self.id, &mut buffer) {
            Ok(0) => {
                assert_eq!(self.read, self.theirs.len() - 1, "the end came early");
                self.ended = true;
            }
            Ok(got) => {
                for &read in &buffer[..got] {
                    assert!(self.theirs[self.read], "byte {} was never sent", self.read);
                    assert_eq!(read, byte(2, self.read as u64), "byte {} of the peer's stream", self.read);
                    self.read += 1;
                }
            }
            Err(IoError::WouldBlock) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn write(&mut self, len: usize) {
        let end = self.wants_to_write.min(self.written + len);
        if self.shut || end == self.written {
            return;
        }
        let bytes: Vec<u8> = (self.written..end).map(|at| byte(1, at as u64)).collect();
        match self.script.stack.write(self.id, &bytes) {
            Ok(taken) => self.written += taken,
            Err(IoError::WouldBlock) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn shut(&mut self) {
        self.script.stack.shutdown(Instant(self.script.now), self.id, Shutdown::Write).unwrap();
        self.shut = true;
    }

    fn check(&mut self) {
        self.script.stack.audit(Instant(self.script.now)).unwrap();
        while self.script.stack.poll_event().is_some() {}
        if let Some(memory) = self.script.stack.memory(self.id) {
            assert!(memory <= 6 * BUFFER + 32 * BUFFER, "{memory} bytes");
        }
    }

    /// Both sides want to come to an end, and nothing is lost any more.
    fn finish(mut self) -> Counters {
        for _ in 0..PATIENCE {
            if self.ended && self.is_complete() {
                assert_eq!(self.ours_end, Some(self.written));
                return *self.script.stack.counters();
            }
            self.write(BUFFER);
            if !self.shut && self.written == self.wants_to_write {
                self.shut();
            }
            self.transmit(|| true);
            self.check();
            self.read(2 * BUFFER);
            let before = (self.read, self.in_order(), self.acked);
            let ack = self.in_order();
            let room = self.edge.saturating_sub(self.acked).clamp(1, 1000);
            if (self.acked as usize) <= self.theirs.len() {
                self.send(self.acked - 1, room, ack, 60_000, &[]);
            }
            // Its acknowledgements come from after the last number it used, or the window's edge.
            let seq = self.next.min(self.edge.max(self.acked));
            self.offered = self.offered.max(ack + (60_000 << self.scale));
            self.inject(seg("A", seq, ack));
            self.transmit(|| true);
            self.read(2 * BUFFER);
            self.script.now += MILLISECOND;
            if before == (self.read, self.in_order(), self.acked) {
                let wake = self.script.stack.poll_timeout().map_or(0, |at| at.0);
                self.script.now = self.script.now.max(wake);
            }
            self.script.stack.handle_timeout(Instant(self.script.now));
        }
        panic!(
            "stuck: read {} of {}, arrived {} of {} ({:?}), shut {}: {:?}",
            self.read,
            self.theirs.len() - 1,
            self.in_order(),
            self.wants_to_write,
            self.ours_end,
            self.shut,
            self.script.stack.counters()
        );
    }
}
