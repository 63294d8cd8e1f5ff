//! What goes into the timeline of a run that wants one.

use super::World;
use super::cpu::{Irq, Level};
use super::softirq::SoftPhase;
use crate::trace::Trace;

/// The timeline under way.
#[derive(Debug, Default)]
pub(super) struct Tracing {
    pub(super) trace: Trace,
    /// The first of each CPU's four tracks.
    cpus: Vec<u32>,
    queues: Vec<QueueTrack>,
}

#[derive(Debug)]
struct QueueTrack {
    track: u32,
    state: &'static str,
    since: u64,
}

const LEVELS: [(Level, &str); 4] =
    [(Level::Hard, "hardirq"), (Level::Soft, "softirq"), (Level::Thread, "thread"), (Level::Idle, "idle loop")];

impl Tracing {
    pub(super) fn new(cpus: usize, queues: usize) -> Self {
        let mut tracing = Self::default();
        for cpu in 0..cpus {
            let tracks = LEVELS.map(|(_, name)| tracing.trace.add_track(format!("CPU {cpu} {name}")));
            tracing.cpus.push(tracks[0]);
        }
        for queue in 0..queues {
            let track = tracing.trace.add_track(format!("queue {queue} interrupt"));
            tracing.queues.push(QueueTrack { track, state: "masked", since: 0 });
        }
        tracing
    }
}

impl World<'_> {
    /// A CPU has done something since then.
    pub(super) fn trace_cpu(&mut self, index: usize, level: Level, since: u64) {
        if self.tracing.is_none() {
            return;
        }
        let name = self.describe(index, level);
        let now = self.now;
        let Some(tracing) = &mut self.tracing else { return };
        if let Some(at) = LEVELS.iter().position(|(listed, _)| *listed == level) {
            tracing.trace.add(tracing.cpus[index] + at as u32, name, since, now);
        }
    }

    fn describe(&self, index: usize, level: Level) -> &'static str {
        let cpu = &self.cpus[index];
        match level {
            Level::Hard => match cpu.hard {
                Some((Irq::Nic(_), _)) => "NIC interrupt",
                _ => "timer interrupt",
            },
            Level::Soft => match cpu.soft {
                Some((SoftPhase::Polling(_), _)) => "softirq poll",
                _ => "softirq",
            },
            Level::Thread => cpu.current.map_or("thread", |thread| self.describe_thread(thread)),
            Level::Idle | Level::Halted => "idle loop",
        }
    }

    /// Notes which queues' interrupts have changed.
    pub(super) fn trace_queues(&mut self) {
        let Some(tracing) = &mut self.tracing else { return };
        for (queue, track) in self.queues.iter().zip(&mut tracing.queues) {
            let state = if !queue.rx.masked {
                "unmasked"
            } else if queue.napi.get().is_suspended() {
                "suspended"
            } else {
                "masked"
            };
            if state != track.state {
                tracing.trace.add(track.track, track.state, track.since, self.now);
                *track = QueueTrack { track: track.track, state, since: self.now };
            }
        }
    }

    /// The finished timeline.
    pub(super) fn take_trace(&mut self) -> Option<Trace> {
        let mut tracing = self.tracing.take()?;
        for track in &tracing.queues {
            tracing.trace.add(track.track, track.state, track.since, self.now);
        }
        Some(tracing.trace)
    }
}
