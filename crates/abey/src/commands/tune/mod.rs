//! `abey tune`: finds good settings while a server runs, and follows its load.

mod datapath;
mod goal;
mod kernel;
mod latency;
mod probe;
mod report;
mod tuner;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use abey_delivery::{Family, ModeSettings, Nanos};
use abey_linux::apply::{JOURNAL_DIRECTORY, Place, Target, restore_abandoned};
use abey_linux::cpu::CpuList;
use abey_linux::device::device_named;
use abey_tune::{Bounds, Controller, Goal};

pub(crate) use datapath::{Served, put_back};
pub(crate) use goal::GoalArgs;
pub(crate) use kernel::{Kernel, Subject};
pub(crate) use latency::{Feed, Witness};
pub(crate) use probe::{Probe, ProbeArgs};
pub(crate) use report::Row;
pub(crate) use tuner::{Plant, Tuner};

use self::report::Sum;
use crate::commands::guard::Guard;
use crate::datapath_world::{Datapaths, is_nic};
use crate::failure::Failure;
use crate::linux_world::Namespace;
use crate::output::{print_rows, print_text};
use crate::signals::Signals;

/// Find the settings that meet a goal, while the server runs, and follow its load
///
/// Measures in intervals, changes gro-flush-timeout, irq-suspend-timeout and the mode within the bounds, and says why in one
/// line. What it changed is put back when it ends, however it ends, unless it is told to keep it.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The network device, or the NIC of a running datapath (such as memory:kv)
    #[arg(value_name = "DEV", required_unless_present = "pid")]
    device: Option<String>,
    #[command(flatten)]
    goal: GoalArgs,
    /// Only the NAPI instances that serve these receive queues of DEV
    #[arg(long, value_name = "N,..", value_delimiter = ',', requires = "device")]
    queues: Vec<u32>,
    /// The server's process: with a device, its epoll instances and those of its children get the busy-poll parameters of
    /// the mode while it runs; without one, the process whose datapath is meant
    #[arg(long, value_name = "P")]
    pid: Option<u32>,
    /// The CPUs whose time counts [default: those that the process of --pid may run on; without it all of them; of a
    /// datapath always its process's]
    #[arg(long, value_name = "LIST")]
    cpus: Option<CpuList>,
    #[command(flatten)]
    probe: ProbeArgs,
    /// Read latencies from a FIFO, a file or standard input (-), lines such as
    /// {"count":5000,"p50_us":40.5,"p99_us":180.2,"interval_ms":250}
    #[arg(long, value_name = "FILE", conflicts_with = "probe")]
    latencies: Option<PathBuf>,
    /// How long one measurement takes
    #[arg(long, value_name = "TIME", default_value = "500ms")]
    interval: Nanos,
    /// End after this long [default: at SIGINT or SIGTERM]
    #[arg(long = "for", value_name = "TIME")]
    duration: Option<Nanos>,
    /// Say what would be changed, from what is seen under the settings that are in force, and change nothing
    #[arg(long, conflicts_with = "keep")]
    dry_run: bool,
    /// Leave the last settings in force at the end
    #[arg(long)]
    keep: bool,
    /// Say what every interval led to, whether or not it is a change
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    namespace: Namespace,
    /// One JSON document on standard output at the end, with a row for each interval
    #[arg(long)]
    json: bool,
    /// Where journals are kept
    #[arg(long, hide = true, default_value = JOURNAL_DIRECTORY)]
    journals: PathBuf,
}

/// The last rows of a document: more than a day of the shortest intervals is in nobody's document.
const MOST_ROWS: usize = 1 << 20;

/// How much longer than its interval a measurement may take until somebody has seen a latency.
const PATIENCE: u32 = 4;

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let goal = args.goal.wanted()?;
    let allowed = Nanos::from_millis(100)..=Nanos::from_millis(60_000);
    if !allowed.contains(&args.interval) {
        return Err(Failure::usage(format!("--interval {} is out of range: it goes from 100ms to 60s", args.interval)));
    }
    if args.duration.is_some_and(|duration| duration < args.interval) {
        return Err(Failure::usage("--for is shorter than one --interval: nothing would be measured"));
    }
    // Refused before anybody is asked anything.
    args.goal.bounds(&[Family::Base])?;
    let is_datapath = args.device.as_deref().is_none_or(is_nic);
    // Before there is any other thread, to which a signal could go. From here on none ends this process by itself.
    let ends = Signals::catch().map_err(|error| Failure::lacks(format!("cannot catch signals: {error}")))?;
    if is_datapath { tune_datapath(&args, goal, ends) } else { tune_kernel(&args, goal, ends) }
}

fn tune_kernel(args: &Args, goal: Goal, ends: Signals) -> Result<ExitCode, Failure> {
    if args.probe.probe.is_none() && args.latencies.is_none() && matches!(goal, Goal::P99(_)) {
        return Err(nobody_sees(goal));
    }
    let netns = args.namespace.open()?;
    let name = args.device.as_deref().expect("clap asks for DEV or --pid");
    let mut place = Place::open(&netns)?;
    let device = device_named(place.netlink(), name, netns.description())?;
    let target = if args.queues.is_empty() { Target::Device } else { Target::Queues(args.queues.clone()) };
    let (server, cpus) = (args.pid.into_iter().collect(), args.cpus.clone());
    let subject = Subject { netns, device, target, server, cpus, journals: args.journals.clone() };
    let mut kernel = Kernel::open(subject, args.interval.into(), witness(args)?)?;
    let bounds = args.goal.bounds(&kernel.families(&args.goal.families)?)?;
    let present = kernel.present()?;
    if !args.dry_run && !restore_abandoned(&args.journals)?.is_empty() {
        eprintln!("abey: put back the settings that an abey that was killed had left");
    }
    eprintln!("abey: {goal} on {name}; CPU time is that of CPU {}", kernel.cpus());
    let mut session = Session::begin(args, goal, (bounds, present), ends)?;
    let outcome =
        session.run(&mut kernel, &mut |kernel, settings| kernel.differences(settings), &mut |kernel, guard| {
            guard.put_back_epolls(&kernel.epolls().notes());
        });
    let finished = kernel.finish(args.keep);
    session.end(outcome, finished)
}

fn tune_datapath(args: &Args, goal: Goal, ends: Signals) -> Result<ExitCode, Failure> {
    if !args.queues.is_empty() {
        return Err(Failure::usage("the latency of a datapath is that of all its queues: leave --queues out"));
    }
    if args.cpus.is_some() {
        return Err(Failure::usage("the CPU time of a datapath is that of its process: leave --cpus out"));
    }
    let found = Datapaths::matching(args.device.as_deref(), args.pid)?.only()?;
    let name = format!("{} of {} (pid {})", found.status.nic, found.status.program, found.client.pid());
    let mut served = Served::open(found, args.interval.into(), witness(args)?);
    let bounds = args.goal.bounds(&[Family::Base, Family::Defer, Family::Suspend])?;
    let present = served.present();
    eprintln!("abey: {goal} on {name}");
    let mut session = Session::begin(args, goal, (bounds, present), ends)?;
    let outcome =
        session.run(&mut served, &mut |served, settings| served.differences(settings), &mut |served, guard| {
            guard.put_back_datapath(served.pid(), served.back());
        });
    let finished = served.finish(args.keep);
    session.end(outcome, finished)
}

/// Whoever sees latencies, if somebody was named.
fn witness(args: &Args) -> Result<Option<Box<dyn Witness>>, Failure> {
    Ok(match (&args.probe.probe, &args.latencies) {
        (Some(target), _) => Some(Box::new(Probe::start(&args.probe, target, &args.namespace)?)),
        (None, Some(path)) => Some(Box::new(Feed::open(path)?)),
        (None, None) => None,
    })
}

pub(crate) fn nobody_sees(goal: Goal) -> Failure {
    Failure::usage(format!(
        "--goal {goal} needs somebody who sees latencies, which the kernel does not: give --probe HOST:PORT, or let a client \
         write what it sees (--latencies FILE); a datapath sees them by itself, and --goal cpu=N% needs none"
    ))
}

/// A controller that begins with what is in force, if the bounds allow that.
pub(crate) fn controller(goal: Goal, bounds: &Bounds, present: &ModeSettings) -> Result<Controller, Failure> {
    let start = bounds.contains(present).then_some(*present);
    Controller::new(goal, bounds.clone(), start).map_err(Failure::usage)
}

/// Says what a change would be, one line for each setting.
type Differences<'f, P> = &'f mut dyn FnMut(&mut P, &ModeSettings) -> Result<Vec<String>, Failure>;

/// Tells the guard what leads back.
type Note<'f, P> = &'f mut dyn FnMut(&P, &mut Guard);

/// One `abey tune`.
struct Session<'a> {
    args: &'a Args,
    goal: Goal,
    bounds: Bounds,
    present: ModeSettings,
    ends: Signals,
    guard: Option<Guard>,
    rows: Vec<Row>,
    sum: Sum,
}

impl<'a> Session<'a> {
    fn begin(
        args: &'a Args,
        goal: Goal,
        (bounds, present): (Bounds, ModeSettings),
        ends: Signals,
    ) -> Result<Self, Failure> {
        let start = || Guard::start(&args.journals);
        let guard = (!args.dry_run && !args.keep).then(start).transpose();
        let guard = guard.map_err(|error| Failure::lacks(format!("cannot start the guard process: {error}")))?;
        Ok(Self { args, goal, bounds, present, ends, guard, rows: Vec::new(), sum: Sum::default() })
    }

    /// Until the time is over or a signal comes. `differences` says what a change would be, `note` tells the guard what
    /// leads back.
    fn run<P: Plant>(
        &mut self,
        plant: &mut P,
        differences: Differences<'_, P>,
        note: Note<'_, P>,
    ) -> Result<(), Failure> {
        let dry = self.args.dry_run;
        let mut tuner = self.tuner()?;
        let began = Instant::now();
        let end = self.args.duration.map(|duration| began + Duration::from(duration));
        let look = tuner.start(plant)?;
        if dry {
            for line in differences(plant, &look.settings)? {
                self.say(&format!("would begin with {line}"))?;
            }
        }
        self.told(plant, &look, note)?;
        while !self.wait(plant, end)? {
            let look = tuner.look(plant, Nanos::from_nanos(began.elapsed().as_nanos() as u64))?;
            self.told(plant, &look, note)?;
            if dry && look.changes() {
                // What it sees from here on is not what it decided on.
                tuner = self.tuner()?;
                plant.begin(false)?;
            }
        }
        Ok(())
    }

    fn tuner(&self) -> Result<Tuner, Failure> {
        Ok(Tuner::new(controller(self.goal, &self.bounds, &self.present)?, self.present, self.args.dry_run))
    }

    /// One interval. Whether it was the last.
    fn wait<P: Plant>(&self, plant: &mut P, end: Option<Instant>) -> Result<bool, Failure> {
        let interval = Duration::from(self.args.interval);
        let mut until = Instant::now() + interval;
        let patience = until + interval * PATIENCE;
        loop {
            if end.is_some_and(|end| end < until) || self.ends.wait_until(until) {
                return Ok(true);
            }
            if plant.is_ready()? || until >= patience {
                return Ok(false);
            }
            until += Duration::from_millis(10);
        }
    }

    fn told<P: Plant>(&mut self, plant: &P, look: &tuner::Look, note: Note<'_, P>) -> Result<(), Failure> {
        if let Some(guard) = self.guard.as_mut().filter(|_| look.changes()) {
            note(plant, guard);
        }
        if !self.args.dry_run {
            self.present = look.settings;
        }
        self.sum.add(look, self.goal);
        let row = Row::new(look, self.goal);
        if look.changes() || self.args.all {
            self.say(&row.line(self.args.dry_run))?;
        }
        if self.args.json && self.rows.len() < MOST_ROWS {
            self.rows.push(row);
        }
        Ok(())
    }

    fn say(&self, line: &str) -> Result<(), Failure> {
        if self.args.json { Ok(()) } else { print_text(&format!("{line}\n")).map(drop) }
    }

    /// What is said at the end, when the settings are back.
    fn end(self, outcome: Result<(), Failure>, finished: Result<(), Failure>) -> Result<ExitCode, Failure> {
        if let Some(guard) = self.guard {
            guard.dismiss();
        }
        outcome?;
        finished?;
        let stay = if self.args.keep { ", which stay" } else { "" };
        eprintln!("abey: {}{stay}", self.sum.line(self.goal, &self.present));
        if self.args.json { print_rows(&self.rows) } else { Ok(ExitCode::SUCCESS) }
    }
}
