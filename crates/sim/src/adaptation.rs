//! Dynamic interrupt moderation: adaptation of the NIC's interrupt moderation to the traffic.

use crate::nic::Moderation;
use crate::random::Random;

/// Levels of moderation, those of the Linux drivers' common library in CQE mode (Linux
/// `Documentation/networking/net_dim.rst`).
pub(crate) const LEVELS: [Moderation; 5] = [
    Moderation { usecs: 2, frames: 256 },
    Moderation { usecs: 8, frames: 128 },
    Moderation { usecs: 16, frames: 64 },
    Moderation { usecs: 32, frames: 64 },
    Moderation { usecs: 64, frames: 64 },
];

/// Interrupts per measurement.
const SAMPLE_INTERRUPTS: u64 = 64;

/// Dynamic interrupt moderation: searches for the level that handles the traffic with the fewest interrupts.
///
/// After every [`SAMPLE_INTERRUPTS`] it compares packets and interrupts per millisecond with the previous sample. A
/// difference of more than a tenth is significant. After an improvement it continues in the same direction, otherwise
/// it turns around. At a local optimum, at the end of the scale, or after too many steps, it stops until the traffic
/// changes.
#[derive(Clone, Debug)]
pub(crate) struct Adaptation {
    level: usize,
    state: Climb,
    /// NIC interrupts for received packets.
    pub(crate) interrupts: u64,
    sample_start: Option<(u64, u64, u64)>,
    previous: Sample,
    steps_up: u32,
    steps_down: u32,
    tired: u32,
    /// Largest random deviation of a sample's rate from that of the simulated packets, in percent.
    noise_percent: u64,
    random: Random,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Climb {
    Resting,
    RestingTired,
    Up,
    Down,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    packets_per_ms: u64,
    interrupts_per_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Better,
    Same,
    Worse,
}

impl Adaptation {
    pub(crate) fn new(noise_percent: u64, random: Random) -> Self {
        Self {
            noise_percent,
            random,
            level: 1,
            state: Climb::Resting,
            interrupts: 0,
            sample_start: None,
            previous: Sample::default(),
            steps_up: 0,
            steps_down: 0,
            tired: 0,
        }
    }
}

impl Sample {
    fn compare(&self, previous: &Self) -> Verdict {
        if previous.packets_per_ms == 0 {
            return if self.packets_per_ms > 0 { Verdict::Better } else { Verdict::Same };
        }
        if differ(self.packets_per_ms, previous.packets_per_ms) {
            return if self.packets_per_ms > previous.packets_per_ms { Verdict::Better } else { Verdict::Worse };
        }
        if previous.interrupts_per_ms > 0 && differ(self.interrupts_per_ms, previous.interrupts_per_ms) {
            return if self.interrupts_per_ms < previous.interrupts_per_ms { Verdict::Better } else { Verdict::Worse };
        }
        Verdict::Same
    }
}

/// Returns whether two rates differ by more than a tenth of the second.
fn differ(a: u64, b: u64) -> bool {
    a.abs_diff(b) * 100 / b > 10
}

impl Adaptation {
    pub(crate) fn moderation(&self) -> Moderation {
        LEVELS[self.level]
    }

    /// Handles the end of a poll after which the interrupt was unmasked.
    pub(crate) fn handle_poll(&mut self, now: u64, received: u64) {
        let Some((at, packets, interrupts)) = self.sample_start else {
            self.sample_start = Some((now, received, self.interrupts));
            return;
        };
        let events = self.interrupts - interrupts;
        let micros = (now - at) / 1_000;
        if events < SAMPLE_INTERRUPTS || micros == 0 {
            return;
        }
        let per_ms = |count: u64| (count * 1_000).div_ceil(micros);
        let noise = 1_000 - self.noise_percent * 10 + self.random.below(self.noise_percent * 20 + 1);
        let sample =
            Sample { packets_per_ms: per_ms(received - packets) * noise / 1_000, interrupts_per_ms: per_ms(events) };
        self.decide(&sample);
        self.sample_start = Some((now, received, self.interrupts));
    }

    fn decide(&mut self, sample: &Sample) {
        let level = self.level;
        let before = self.state;
        let verdict = sample.compare(&self.previous);
        match self.state {
            Climb::Resting => {
                if verdict != Verdict::Same {
                    self.set_off();
                }
            }
            Climb::RestingTired => {
                self.tired = self.tired.saturating_sub(1);
                if self.tired == 0 {
                    self.set_off();
                }
            }
            Climb::Up | Climb::Down => {
                if verdict != Verdict::Better {
                    self.turn();
                }
                if self.is_on_top() { self.rest() } else { self.step() }
            }
        }
        if before != Climb::Resting || self.state != Climb::Resting || level != self.level {
            self.previous = *sample;
        }
    }

    fn set_off(&mut self) {
        self.state = if self.level > 0 { Climb::Down } else { Climb::Up };
        self.step();
    }

    fn turn(&mut self) {
        match self.state {
            Climb::Up => {
                self.state = Climb::Down;
                self.steps_down = 0;
            }
            Climb::Down => {
                self.state = Climb::Up;
                self.steps_up = 0;
            }
            Climb::Resting | Climb::RestingTired => {}
        }
    }

    fn is_on_top(&self) -> bool {
        match self.state {
            Climb::Up => self.steps_down > 1 && self.steps_up == 1,
            Climb::Down => self.steps_up > 1 && self.steps_down == 1,
            Climb::Resting | Climb::RestingTired => true,
        }
    }

    fn step(&mut self) {
        if self.tired == LEVELS.len() as u32 * 2 {
            self.forget_steps();
            self.state = Climb::RestingTired;
            return;
        }
        match self.state {
            Climb::Up if self.level + 1 < LEVELS.len() => {
                self.level += 1;
                self.steps_up += 1;
            }
            Climb::Down if self.level > 0 => {
                self.level -= 1;
                self.steps_down += 1;
            }
            _ => return self.rest(),
        }
        self.tired += 1;
    }

    fn rest(&mut self) {
        self.forget_steps();
        self.tired = 0;
        self.state = Climb::Resting;
    }

    fn forget_steps(&mut self) {
        self.steps_up = 0;
        self.steps_down = 0;
    }
}
