//! Every mode at every load, several times, interleaved in random order.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use abey_delivery::Mode;
use abey_linux::counters::{Count, WorkCounter};
use abey_linux::cpu::CpuList;
use abey_linux::epoll;
use abey_linux::netlink::Netlink;
use abey_linux::probe::{NapiCapabilities, napi_capabilities};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::error::BenchError;
use super::run::Bench;
use super::server::App;
use super::testbed::TestBed;
use crate::{Load, Run};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// The modes, each once.
    pub modes: Vec<Mode>,
    /// The loads, each once.
    pub loads: Vec<Load>,
    /// Runs of each mode at each load.
    pub repetitions: u32,
    /// How long one run is measured.
    pub duration: Duration,
    /// How long each run goes on before it is measured; counters prove the mode in this time.
    pub warmup: Duration,
    /// Connections to the server.
    pub connections: usize,
    /// The seed of the order and of the arrivals.
    pub seed: u64,
    /// The server.
    pub app: App,
    /// `libabey.so`.
    pub library: PathBuf,
    /// Leave out modes that this kernel cannot do, and say so, instead of failing.
    pub skip_impossible: bool,
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// One for each repetition of each mode at each load.
    pub runs: Vec<Run>,
    /// What a reader has to know, such as modes left out.
    pub notes: Vec<String>,
    /// The test bed in words.
    pub testbed: &'static str,
    /// The CPU the server ran on.
    pub server_cpu: u32,
    /// The CPU the load ran on.
    pub client_cpu: u32,
    /// Whether cycles and instructions were counted.
    pub hardware_counters: bool,
}

/// How far a bench has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The mode that is measured next.
    pub mode: Mode,
    /// Runs done.
    pub done: usize,
    /// Runs in all.
    pub all: usize,
}

/// Measures the matrix. Returns early with [`BenchError::Stopped`] once `stop` is true.
///
/// Each round takes every mode once, in an order drawn from the seed, with a server of its own that meets every load
/// in an order of its own: what disturbs the machine for a while then disturbs all modes alike.
///
/// # Errors
/// [`BenchError`]; in particular a mode that counters do not prove active is an error, never a row.
pub fn measure(
    matrix: &Matrix,
    stop: &Arc<AtomicBool>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome, BenchError> {
    let bed = TestBed::new()?;
    let able = napi_capabilities(&mut Netlink::open(&bed.server)?)?;
    let (modes, notes) = possible(matrix, able)?;
    let mut random = StdRng::seed_from_u64(matrix.seed);
    let bench = Bench {
        bed: &bed,
        app: &matrix.app,
        library: &matrix.library,
        able,
        connections: matrix.connections,
        duration: matrix.duration,
        warmup: matrix.warmup,
        stop: Arc::clone(stop),
    };
    let all = modes.len() * matrix.loads.len() * matrix.repetitions as usize;
    let mut runs = Vec::with_capacity(all);
    for _ in 0..matrix.repetitions {
        let mut round = modes.clone();
        round.shuffle(&mut random);
        for mode in round {
            if stop.load(Ordering::Relaxed) {
                return Err(BenchError::Stopped);
            }
            progress(Progress { mode, done: runs.len(), all });
            let mut loads = matrix.loads.clone();
            loads.shuffle(&mut random);
            runs.extend(bench.measure(mode, &loads, random.random())?);
        }
    }
    let cpus: CpuList = std::iter::once(bed.server_cpu).collect();
    let hardware_counters = WorkCounter::on_cpus(&cpus, &[Count::Cycles])?.missing().is_empty();
    Ok(Outcome {
        runs,
        notes,
        testbed: TestBed::description(),
        server_cpu: bed.server_cpu,
        client_cpu: bed.client_cpu,
        hardware_counters,
    })
}

/// The modes this kernel can do, and a note on each of the others; an error where none may be left out.
fn possible(matrix: &Matrix, able: NapiCapabilities) -> Result<(Vec<Mode>, Vec<String>), BenchError> {
    let epoll = epoll::supported().unwrap_or(false);
    let (mut modes, mut notes) = (Vec::new(), Vec::new());
    for &mode in &matrix.modes {
        let settings = mode.settings();
        let lacks = if !settings.napi.irq_suspend_timeout.is_zero() && !able.suspend {
            Some("this kernel has no IRQ suspension (Linux 6.13)")
        } else if settings.epoll.is_some() && !epoll {
            Some("this kernel has no busy-poll parameters per epoll instance (Linux 6.9)")
        } else if mode == Mode::ThreadedBusy && !able.threaded_busy {
            Some("this kernel has no threaded busy polling (Linux 6.19)")
        } else {
            None
        };
        match lacks {
            None => modes.push(mode),
            Some(why) if matrix.skip_impossible => notes.push(format!("{mode} is left out: {why}")),
            Some(why) => {
                let what = format!("{mode} cannot be measured: {why}");
                return Err(BenchError::Lacks { what, advice: "use a newer kernel, or leave the mode out" });
            }
        }
    }
    Ok((modes, notes))
}
