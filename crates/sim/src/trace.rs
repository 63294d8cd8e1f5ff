//! Trace of a run: activities of the CPUs, states of interrupts and timers, and the progress of every request.
//! [`Trace::write_json`] writes it in the Chrome trace format for Perfetto (ui.perfetto.dev).

use std::fmt;
use std::io::{self, Write};

/// Trace of a run. Times are nanoseconds of virtual time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    tracks: Vec<Track>,
    slices: Vec<Slice>,
    requests: Vec<RequestTrace>,
}

/// Subject of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Track {
    /// Activity of a CPU at one level. Higher levels interrupt lower ones.
    Cpu {
        /// The CPU.
        cpu: u32,
        /// The level.
        level: CpuLevel,
    },
    /// Masking of a queue's interrupt.
    Interrupt {
        /// The queue.
        queue: u32,
    },
    /// Timer of a queue's NAPI instance.
    Timer {
        /// The queue.
        queue: u32,
    },
    /// Sleep of a server's thread.
    Server {
        /// The server.
        server: u32,
    },
}

/// Activity levels of a CPU, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuLevel {
    /// An interrupt of the NIC or of a timer.
    Hardirq,
    /// Softirq.
    Softirq,
    /// A thread.
    Thread,
    /// The idle loop, on its way to halting the CPU.
    Idle,
}

impl fmt::Display for Track {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu { cpu, level } => {
                let level = match level {
                    CpuLevel::Hardirq => "hardirq",
                    CpuLevel::Softirq => "softirq",
                    CpuLevel::Thread => "thread",
                    CpuLevel::Idle => "idle loop",
                };
                write!(f, "CPU {cpu} {level}")
            }
            Self::Interrupt { queue } => write!(f, "queue {queue} interrupt"),
            Self::Timer { queue } => write!(f, "queue {queue} timer"),
            Self::Server { server } => write!(f, "server {server}"),
        }
    }
}

/// Activity or state during a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activity {
    /// The NIC's interrupt is handled.
    NicInterrupt,
    /// A timer's interrupt is handled.
    TimerInterrupt,
    /// A softirq run, between polls.
    Softirq,
    /// A softirq polls.
    SoftirqPoll,
    /// The CPU's softirq thread runs, or polls.
    SoftirqThread,
    /// The thread of a NAPI instance runs, or polls.
    NapiThread,
    /// A worker of the pool runs, or polls.
    Worker,
    /// A server's thread is in its wait (a system call) and does not poll.
    Wait,
    /// A server polls a queue.
    BusyPoll,
    /// A server serves a request.
    Serve,
    /// A CPU's idle loop.
    IdleLoop,
    /// The interrupt is masked.
    Masked,
    /// The interrupt is unmasked.
    Unmasked,
    /// The interrupt is masked because an application suspended it.
    Suspended,
    /// The timer is armed.
    Armed,
    /// The server's thread sleeps.
    Asleep,
}

impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::NicInterrupt => "NIC interrupt",
            Self::TimerInterrupt => "timer interrupt",
            Self::Softirq => "softirq",
            Self::SoftirqPoll => "softirq poll",
            Self::SoftirqThread => "softirq thread",
            Self::NapiThread => "NAPI thread",
            Self::Worker => "worker",
            Self::Wait => "wait",
            Self::BusyPoll => "busy poll",
            Self::Serve => "serve",
            Self::IdleLoop => "idle loop",
            Self::Masked => "masked",
            Self::Unmasked => "unmasked",
            Self::Suspended => "suspended",
            Self::Armed => "armed",
            Self::Asleep => "asleep",
        })
    }
}

/// Period with one activity or state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Subject.
    pub track: Track,
    /// Activity or state.
    pub what: Activity,
    /// Start in nanoseconds.
    pub from: u64,
    /// End or interruption in nanoseconds.
    pub to: u64,
    /// For a poll, the packets taken by then.
    pub packets: Option<u32>,
}

/// Progress of a request through the server. Times are nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTrace {
    /// Connection.
    pub connection: u32,
    /// Its last packet was in the receive ring.
    pub arrived: u64,
    /// A poll had delivered it to its socket.
    pub delivered: u64,
    /// The server began to serve it; equals `delivered` if the network stack responds itself.
    pub begun: u64,
    /// Its answer was passed to the NIC.
    pub answered: u64,
}

impl Trace {
    pub(crate) fn add_track(&mut self, track: Track) {
        self.tracks.push(track);
    }

    pub(crate) fn add(&mut self, slice: Slice) {
        if slice.to > slice.from {
            self.slices.push(slice);
        }
    }

    pub(crate) fn add_request(&mut self, request: RequestTrace) {
        self.requests.push(request);
    }

    /// Returns the slices in the order of their ends.
    pub fn slices(&self) -> &[Slice] {
        &self.slices
    }

    /// Returns the answered requests in the order of their answers.
    pub fn requests(&self) -> &[RequestTrace] {
        &self.requests
    }

    /// Returns whether the trace is empty.
    pub fn is_empty(&self) -> bool {
        self.slices.is_empty()
    }

    /// Writes the trace as one JSON document.
    ///
    /// # Errors
    /// If writing fails.
    pub fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        write!(out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        write!(out, "\n{{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{{\"name\":\"server\"}}}}")?;
        for (index, name) in self.tracks.iter().enumerate() {
            for (key, text) in [
                ("thread_name", format!("{{\"name\":\"{name}\"}}")),
                ("thread_sort_index", format!("{{\"sort_index\":{index}}}")),
            ] {
                write!(out, ",\n{{\"ph\":\"M\",\"pid\":1,\"tid\":{},\"name\":\"{key}\",\"args\":{text}}}", index + 1)?;
            }
        }
        for Slice { track, what, from, to, packets } in &self.slices {
            let Some(index) = self.tracks.iter().position(|listed| listed == track) else { continue };
            write!(
                out,
                ",\n{{\"ph\":\"X\",\"pid\":1,\"tid\":{},\"name\":\"{what}\",\"ts\":{},\"dur\":{}",
                index + 1,
                Micros(*from),
                Micros(to - from)
            )?;
            if let Some(packets) = packets {
                write!(out, ",\"args\":{{\"packets\":{packets}}}")?;
            }
            write!(out, "}}")?;
        }
        for (id, request) in self.requests.iter().enumerate() {
            let RequestTrace { connection, arrived, delivered, begun, answered } = *request;
            for (name, from, to) in
                [("in the ring", arrived, delivered), ("in its socket", delivered, begun), ("served", begun, answered)]
            {
                for (phase, at) in [("b", from), ("e", to)] {
                    write!(
                        out,
                        ",\n{{\"ph\":\"{phase}\",\"cat\":\"request\",\"pid\":1,\"id\":{id},\"name\":\"{name}\",\"ts\":{},\
                         \"args\":{{\"connection\":{connection}}}}}",
                        Micros(at)
                    )?;
                }
            }
        }
        writeln!(out, "\n]}}")
    }
}

/// Nanoseconds, displayed as microseconds.
struct Micros(u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1_000, self.0 % 1_000)
    }
}
