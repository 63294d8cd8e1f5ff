//! The server behind what is tuned: its processes, whose epoll instances get the parameters of the mode.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use abey_delivery::EpollBusyPoll;
use abey_linux::cpu::{CpuList, process_affinity};
use abey_linux::process::{self, EpollChanges, EpollNote, EpollParams};
use abey_policy::Program;

use crate::commands::apply::processes_of;
use crate::failure::Failure;

/// How often its processes are looked through for epoll instances that are new.
const LOOK_THROUGH: Duration = Duration::from_secs(5);

/// The processes that a device's packets are for. What is below them belongs to it.
pub(crate) struct Server {
    processes: Vec<u32>,
    /// Programs of the policy whose processes these are; nothing where the processes were named.
    programs: Vec<Program>,
    cpus: CpuList,
    epolls: EpollChanges,
    looked_through: Instant,
}

impl Server {
    /// These processes; without any, nobody knows the server.
    pub(crate) fn of_processes(processes: Vec<u32>) -> Result<Self, Failure> {
        let cpus = cpus_of(&processes).map_err(Failure::usage)?;
        let (epolls, looked_through) = (EpollChanges::default(), Instant::now());
        Ok(Self { processes, programs: Vec::new(), cpus, epolls, looked_through })
    }

    /// The processes of these programs, those included that are to come.
    pub(crate) fn of_programs(programs: Vec<Program>) -> Self {
        let (cpus, epolls, looked_through) = (CpuList::default(), EpollChanges::default(), Instant::now());
        let mut server = Self { processes: Vec::new(), programs, cpus, epolls, looked_through };
        server.find();
        server
    }

    /// Whether anybody knows it.
    pub(crate) fn is_known(&self) -> bool {
        !self.processes.is_empty() || !self.programs.is_empty()
    }

    /// The CPUs that it may run on; none while it does not run.
    pub(crate) fn cpus(&self) -> &CpuList {
        &self.cpus
    }

    /// Other processes are the server from now on.
    pub(crate) fn become_processes(&mut self, processes: Vec<u32>) {
        self.processes = processes;
    }

    /// What one of its epoll instances has now.
    pub(crate) fn present(&self) -> Option<EpollBusyPoll> {
        let views = self.processes.iter().filter_map(|pid| process::inspect_tree(*pid).ok()).flatten();
        views.flat_map(|view| view.epolls).find_map(|one| EpollParams::get(one.params))
    }

    /// What leads back.
    pub(crate) fn notes(&self) -> BTreeSet<EpollNote> {
        self.epolls.notes()
    }

    /// Looks for processes and epoll instances that are new, if it has not for a while, and gives them the parameters.
    pub(crate) fn look_through(&mut self, wanted: Option<EpollBusyPoll>) -> Result<(), Failure> {
        if self.looked_through.elapsed() < LOOK_THROUGH {
            return Ok(());
        }
        self.find();
        self.set(wanted)
    }

    /// Gives its epoll instances the parameters, or none.
    pub(crate) fn set(&mut self, wanted: Option<EpollBusyPoll>) -> Result<(), Failure> {
        self.looked_through = Instant::now();
        if self.processes.is_empty() {
            return Ok(());
        }
        let below = self.processes.iter().flat_map(|pid| process::descendants(*pid).unwrap_or_default());
        let all: BTreeSet<u32> = self.processes.iter().copied().chain(below).collect();
        let all: Vec<u32> = all.into_iter().collect();
        let count = self.epolls.set(&all, wanted).map_err(Failure::lacks)?;
        let runs = all.iter().any(|pid| process::start_time(*pid).is_some());
        // A program of the policy may be about to make its first.
        if count == 0 && runs && wanted.is_some() && self.programs.is_empty() {
            return Err(Failure::check("the server has no epoll instance that could busy poll: leave --pid out"));
        }
        Ok(())
    }

    /// Puts the parameters back, or leaves them for good.
    pub(crate) fn finish(self, keep: bool) -> Result<(), Failure> {
        if keep {
            self.epolls.keep();
            return Ok(());
        }
        self.epolls.restore().map_err(Failure::check)
    }

    fn find(&mut self) {
        if self.programs.is_empty() {
            return;
        }
        self.processes = self.programs.iter().flat_map(processes_of).collect();
        // One that ends meanwhile is looked for again.
        self.cpus = cpus_of(&self.processes).unwrap_or_default();
    }
}

/// The online CPUs that these processes may run on.
fn cpus_of(processes: &[u32]) -> Result<CpuList, abey_linux::cpu::CpuError> {
    let online = CpuList::online()?;
    let mut own = BTreeSet::new();
    for pid in processes {
        own.extend(process_affinity(*pid)?.iter());
    }
    Ok(own.into_iter().filter(|cpu| online.contains(*cpu)).collect())
}
