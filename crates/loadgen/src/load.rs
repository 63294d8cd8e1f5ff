//! A load: connections that are made once and then run at one rate after another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::clock::Clock;
use crate::config::{Config, Options};
use crate::engine::{Engine, Stop};
use crate::error::LoadError;
use crate::kernel::Kernel;
use crate::network::Network;
use crate::rate::RunConfig;
use crate::report::Report;
use crate::run::{Plan, run};
use crate::tally::Tally;
use crate::workload::Material;

/// A boundary of the measured interval, reported when it is passed, so that the caller can read counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Warm-up is over. With one thread the schedule stands still while the callback runs.
    MeasureStart,
    /// The interval is over: in an open loop up to 10 ms later, so that what is outstanding comes in undisturbed.
    MeasureEnd,
}

/// How much later than now the threads of a load begin, so that all have started.
const THREAD_START: u64 = 20_000_000;

/// Connections to one server, ready to run; the crate's documentation has an example.
///
/// Sockets are made, and threads started, by the calling thread: they live in its network namespace and on its CPUs.
#[derive(Debug)]
pub struct Load<N: Network = Kernel> {
    network: N,
    options: Options,
    clock: Clock,
    material: Arc<Material>,
    engines: Vec<Engine<N>>,
    /// A run ended early. Answers to its requests may still arrive, so the next run connects anew.
    unclean: bool,
}

impl Load {
    /// Connects through the kernel, and for memcached stores the whole key space.
    ///
    /// # Errors
    ///
    /// [`LoadError`] if the server refuses or breaks connections, answers with an error, or stops answering.
    pub fn connect(config: &Config) -> Result<Self, LoadError> {
        Self::connect_on(Kernel, config, None)
    }
}

impl<N: Network> Load<N> {
    /// Connects through any network. Gives up when `stop` becomes true: between connections, and within 100 ms while the key
    /// space is stored.
    ///
    /// # Errors
    ///
    /// Those of [`Load::connect`], and [`LoadError::Stopped`].
    pub fn connect_on(network: N, config: &Config, stop: Option<Arc<AtomicBool>>) -> Result<Self, LoadError> {
        let stop = Stop { asked: stop, abort: Arc::default() };
        let options = config.options().clone();
        let clock = Clock::start();
        let material = Arc::new(Material::new(&options.workload, options.target));
        let mut engines = connect_engines(&network, &options, clock, &material, &stop)?;
        if material.stored_keys() > 0 {
            engines[0].store_keys(&stop)?;
        }
        Ok(Self { network, options, clock, material, engines, unclean: false })
    }

    /// Runs once: warm-up, measurement, and waiting for the last answers. Further runs may follow.
    ///
    /// `on_phase` is called on this thread at both ends of the measured interval. With one thread the load runs here,
    /// too; else in threads that have ended when this returns. Afterwards no request is outstanding.
    ///
    /// # Errors
    ///
    /// [`LoadError`]: broken connections, error replies, [`LoadError::Silent`] after [`Options::timeout`] without any
    /// answer, [`LoadError::Stopped`] when the stop flag was raised.
    pub fn run(&mut self, config: &RunConfig, on_phase: &mut dyn FnMut(Phase)) -> Result<Report, LoadError> {
        let stop = Stop { asked: config.stop.clone(), abort: Arc::default() };
        if self.unclean {
            self.engines.clear();
            self.engines = connect_engines(&self.network, &self.options, self.clock, &self.material, &stop)?;
        }
        self.unclean = true;
        let tally = match &mut self.engines[..] {
            [engine] => {
                let plan = Plan { begin: self.clock.now(), thread: 0, threads: 1 };
                run(engine, config, plan, &stop, on_phase)?
            }
            engines => run_threads(engines, self.clock, config, &stop, on_phase)?,
        };
        self.unclean = false;
        Ok(Report::new(&self.options, config, &tally))
    }
}

/// Distributes the connections to one engine per thread.
fn connect_engines<N: Network>(
    network: &N,
    options: &Options,
    clock: Clock,
    material: &Arc<Material>,
    stop: &Stop,
) -> Result<Vec<Engine<N>>, LoadError> {
    let (threads, connections) = (options.threads, options.connections);
    let mut first = 1;
    (0..threads)
        .map(|thread| {
            let count = connections / threads + usize::from(thread < connections % threads);
            let engine =
                Engine::connect(network, options, clock, Arc::clone(material), thread, first..first + count, stop);
            first += count;
            engine
        })
        .collect()
}

fn run_threads<N: Network>(
    engines: &mut [Engine<N>],
    clock: Clock,
    config: &RunConfig,
    stop: &Stop,
    on_phase: &mut dyn FnMut(Phase),
) -> Result<Tally, LoadError> {
    let (begin, threads) = (clock.now() + THREAD_START, engines.len());
    std::thread::scope(|scope| {
        let mut started = Vec::with_capacity(threads);
        for (thread, engine) in engines.iter_mut().enumerate() {
            let plan = Plan { begin, thread, threads };
            let work = move || {
                let result = run(engine, config, plan, stop, &mut |_| {});
                if result.is_err() {
                    stop.abort.store(true, Ordering::Relaxed);
                }
                result
            };
            let builder = std::thread::Builder::new().name(format!("load-{thread}"));
            match builder.spawn_scoped(scope, work) {
                Ok(handle) => started.push(handle),
                Err(error) => {
                    stop.abort.store(true, Ordering::Relaxed);
                    return Err(LoadError::Thread(error));
                }
            }
        }
        let from = begin + config.warmup.as_nanos() as u64;
        if sleep_until(clock, from, stop) {
            on_phase(Phase::MeasureStart);
            if sleep_until(clock, from + config.duration.as_nanos() as u64, stop) {
                on_phase(Phase::MeasureEnd);
            }
        }
        let results = started.into_iter().map(|handle| handle.join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
        merged(results.collect())
    })
}

/// Sleeps. Returns `false` as soon as the run shall stop.
fn sleep_until(clock: Clock, time: u64, stop: &Stop) -> bool {
    loop {
        let left = time.saturating_sub(clock.now());
        if left == 0 || stop.is_raised() {
            return left == 0;
        }
        std::thread::sleep(Duration::from_nanos(left).min(Duration::from_millis(20)));
    }
}

/// Returns the sum of all threads, or the error that stopped the others.
fn merged(results: Vec<Result<Tally, LoadError>>) -> Result<Tally, LoadError> {
    let mut sum = Tally::new();
    let mut stopped = None;
    for result in results {
        match result {
            Ok(tally) => sum.merge(&tally),
            Err(LoadError::Stopped) => stopped = Some(LoadError::Stopped),
            Err(error) => return Err(error),
        }
    }
    stopped.map_or(Ok(sum), Err)
}
