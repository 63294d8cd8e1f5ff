//! Fuzz target: segments of one connection, checked against two byte streams.
//!
//! The input determines what the peer sends (repeated and early data, data beyond the window, old and impossible
//! acknowledgements, closing and shrinking windows, false SACK blocks, resets and SYNs with nearby numbers, ECN flags
//! and marks), what the application does, what is lost and how time advances. The application must read what the peer sent, in order. The
//! peer must receive what the application wrote, within a window that it offered. Afterwards the peer behaves
//! correctly and everything must arrive: invalid segments may slow a connection down, but must not stop it.

use abey_tcpip::{Counters, Instant, IoError, Shutdown, SocketId};

use super::Choices;
use crate::common::{
    MILLISECOND, SECOND, byte,
    script::{Script, Seg, seg},
};

const BUFFER: usize = 8192;
/// Maximum length of a stream.
const MAX_STREAM_LEN: u32 = 60_000;
/// Maximum number of rounds at the end; only a hang reaches it.
const HANG_LIMIT: usize = 5000;

struct Harness {
    script: Script,
    id: SocketId,
    /// Which bytes of the peer's stream were ever sent; the last entry is the FIN.
    peer_sent: Vec<bool>,
    /// Which bytes of the application's stream the peer has received, and their number once the FIN arrived.
    peer_received: Vec<bool>,
    peer_fin_at: Option<usize>,
    written: usize,
    to_write: usize,
    shut: bool,
    read: usize,
    ended: bool,
    /// Furthest right edges of the peer's window and of the stack's.
    peer_window_edge: u32,
    window_edge: u32,
    /// Latest acknowledgement of the stack.
    acked: u32,
    /// Sequence number after the last one that the peer has used.
    next: u32,
    scale: u8,
    timestamps: bool,
    ecn: bool,
    echo: u32,
}

/// Runs one case. Returns the stack's counters.
pub fn run(data: &[u8]) -> Counters {
    let mut choices = Choices::new(data);
    let mut harness = Harness::new(&mut choices);
    // A connection is over when both FINs are acknowledged; a SYN may then start another one.
    while !choices.is_empty() && harness.script.stack.is_connected(harness.id) {
        if !harness.step(&mut choices) {
            return *harness.script.stack.counters();
        }
        harness.check();
    }
    harness.finish()
}

impl Harness {
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
        let (peer_sent, to_write) =
            (choices.below(MAX_STREAM_LEN) as usize + 1, choices.below(MAX_STREAM_LEN) as usize);
        let ecn = to_write.is_multiple_of(2);
        if ecn {
            syn.flags.push_str("EW");
        }
        let id = script.accepted(&syn);
        let scale = scale.unwrap_or(0);
        Self {
            script,
            id,
            peer_sent: vec![false; peer_sent],
            peer_received: vec![false; to_write],
            peer_fin_at: None,
            written: 0,
            to_write,
            shut: false,
            read: 0,
            ended: false,
            // The window of the SYN and of the final ACK of the handshake.
            peer_window_edge: 1 + (60_000 << scale),
            window_edge: 1 + BUFFER as u32,
            acked: 1,
            next: 1,
            scale,
            timestamps,
            ecn,
            echo: 0,
        }
    }

    fn clock(now: u64) -> u32 {
        (now / MILLISECOND) as u32
    }

    /// Returns the acknowledgement that the peer sends for what it received in order.
    fn in_order(&self) -> u32 {
        let bytes = self.peer_received.iter().position(|got| !got).unwrap_or(self.peer_received.len());
        1 + bytes as u32 + u32::from(self.peer_fin_at == Some(bytes))
    }

    /// Sends `len` bytes of the peer's stream from `offset` on, and the FIN if the stream ends there.
    fn send(&mut self, offset: u32, len: u32, ack: u32, window: u16, sack: &[(u32, u32)]) {
        let bytes = self.peer_sent.len() as u32 - 1;
        let (offset, end) = (offset.min(bytes + 1), offset.saturating_add(len).min(bytes));
        let fin = offset <= bytes && len > 0 && end == bytes;
        let mut segment = seg(if fin { "FA" } else { "A" }, 1 + offset, ack).window(window).sack(sack);
        segment.payload = (offset..end.max(offset)).map(|at| byte(2, at.into())).collect();
        for at in offset..end + u32::from(fin) {
            self.peer_sent[at as usize] = true;
        }
        self.next = self.next.max(1 + end.max(offset) + u32::from(fin));
        self.peer_window_edge = self.peer_window_edge.max(ack.wrapping_add(u32::from(window) << self.scale));
        self.inject(segment);
    }

    fn inject(&mut self, mut segment: Seg) {
        if self.timestamps {
            segment.timestamp = Some((Self::clock(self.script.now), self.echo));
        }
        if self.ecn {
            // Flags and marks of no sense, the same in each run of the input.
            let random = byte(3, self.script.now ^ u64::from(segment.seq) << 32);
            segment.ecn = random & 3;
            segment.flags.push_str(["", "E", "W", "EW"][usize::from(random >> 2 & 3)]);
        }
        self.script.inject(&segment);
    }

    /// Performs one action. Returns false if a reset ended the connection.
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
        let base = [self.acked - 1, self.next - 1, self.window_edge - 1, 0][usize::from(shape & 3)];
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
        let lie = 1 + choices.below(MAX_STREAM_LEN);
        let sack = [(lie, lie + choices.below(4000))];
        self.send(offset, len, ack, window, if choices.byte().is_multiple_of(3) { &sack } else { &[] });
    }

    /// Injects a spoofed segment. Only a reset with exactly the expected sequence number may end the connection.
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

    /// Checks the segments that the stack sends. `arrives` decides which of them the peer receives.
    fn transmit(&mut self, mut arrives: impl FnMut() -> bool) {
        let sent = self.script.sent();
        assert!(sent.len() < 1000, "{} segments in one call", sent.len());
        for segment in sent {
            if segment.has('R') && !self.script.stack.is_connected(self.id) && self.is_complete() {
                // Both FINs were acknowledged, and the peer still sends.
                continue;
            }
            assert!(!segment.has('R') && !segment.has('S'), "{segment:?}");
            if let Some((value, _)) = segment.timestamp {
                self.echo = value;
            }
            let (len, fin) = (segment.payload.len() as u32, segment.has('F'));
            if len > 0 || fin {
                let start = segment.seq - 1;
                assert!((start + len) as usize <= self.written, "more than the application wrote");
                assert!(
                    segment.seq + len + u32::from(fin) <= self.peer_window_edge,
                    "beyond every window that the peer offered"
                );
                assert!(!fin || (start + len) as usize == self.written && self.shut, "an early FIN");
                for (at, &got) in (start..).zip(&segment.payload) {
                    assert_eq!(got, byte(1, at.into()), "byte {at} of the application's stream");
                }
                if arrives() {
                    self.peer_received[start as usize..(start + len) as usize].fill(true);
                    if fin {
                        self.peer_fin_at = Some((start + len) as usize);
                    }
                }
            }
            let acked = segment.ack.saturating_sub(1) as usize;
            assert!(acked <= self.peer_sent.len() && self.peer_sent[..acked].iter().all(|sent| *sent), "ack {acked}");
            self.acked = self.acked.max(segment.ack);
            self.window_edge = self.window_edge.max(segment.ack + (u32::from(segment.window)));
        }
    }

    /// Returns whether the peer received the whole stream of the application.
    fn is_complete(&self) -> bool {
        self.peer_fin_at.is_some_and(|end| self.in_order() == end as u32 + 2)
    }

    fn read(&mut self, len: usize) {
        let mut buffer = vec![0; len.max(1)];
        match self.script.stack.read(self.id, &mut buffer) {
            Ok(0) => {
                assert_eq!(self.read, self.peer_sent.len() - 1, "the stream ended early");
                self.ended = true;
            }
            Ok(got) => {
                for &read in &buffer[..got] {
                    assert!(self.peer_sent[self.read], "byte {} was never sent", self.read);
                    assert_eq!(read, byte(2, self.read as u64), "byte {} of the peer's stream", self.read);
                    self.read += 1;
                }
            }
            Err(IoError::WouldBlock) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn write(&mut self, len: usize) {
        let end = self.to_write.min(self.written + len);
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

    /// Completes both streams without loss.
    fn finish(mut self) -> Counters {
        for _ in 0..HANG_LIMIT {
            if self.ended && self.is_complete() {
                assert_eq!(self.peer_fin_at, Some(self.written));
                return *self.script.stack.counters();
            }
            self.write(BUFFER);
            if !self.shut && self.written == self.to_write {
                self.shut();
            }
            self.transmit(|| true);
            self.check();
            self.read(2 * BUFFER);
            let before = (self.read, self.in_order(), self.acked);
            let ack = self.in_order();
            let room = self.window_edge.saturating_sub(self.acked).clamp(1, 1000);
            if (self.acked as usize) <= self.peer_sent.len() {
                self.send(self.acked - 1, room, ack, 60_000, &[]);
            }
            // A correct peer acknowledges from the last sequence number it used, or from the window's edge.
            let seq = self.next.min(self.window_edge.max(self.acked));
            self.peer_window_edge = self.peer_window_edge.max(ack + (60_000 << self.scale));
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
            self.peer_sent.len() - 1,
            self.in_order(),
            self.to_write,
            self.peer_fin_at,
            self.shut,
            self.script.stack.counters()
        );
    }
}
