//! The server behind a target: the processes whose epoll instances get the mode's busy-poll parameters.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use abey_delivery::EpollBusyPoll;
use abey_linux::cpu::{CpuError, CpuList, process_affinity};
use abey_linux::process::{self, EpollChanges, EpollNote, EpollParams};
use abey_policy::Program;
use abey_reconcile::processes_of;

use crate::TuneError;

/// How often processes are searched for new epoll instances.
const SEARCH_INTERVAL: Duration = Duration::from_secs(5);

/// The processes that receive a device's packets, with their descendants.
pub struct Server {
    processes: Vec<u32>,
    /// The policy's programs whose processes these are; empty where processes were given.
    programs: Vec<Program>,
    cpus: CpuList,
    epolls: EpollChanges,
    searched: Instant,
}

impl Server {
    /// Creates the server of given processes; with none, the server is unknown.
    ///
    /// # Errors
    /// When the CPU affinity of a process cannot be read.
    pub fn of_processes(processes: Vec<u32>) -> Result<Self, TuneError> {
        let cpus = cpus_of(&processes).map_err(TuneError::usage)?;
        let (epolls, searched) = (EpollChanges::default(), Instant::now());
        Ok(Self { processes, programs: Vec::new(), cpus, epolls, searched })
    }

    /// Creates the server of a policy's programs: their present and future processes.
    pub fn of_programs(programs: Vec<Program>) -> Self {
        let (cpus, epolls, searched) = (CpuList::default(), EpollChanges::default(), Instant::now());
        let mut server = Self { processes: Vec::new(), programs, cpus, epolls, searched };
        server.find_processes();
        server
    }

    /// Returns whether processes or programs were given.
    pub fn is_known(&self) -> bool {
        !self.processes.is_empty() || !self.programs.is_empty()
    }

    /// Returns the CPUs that it may run on; none while it does not run.
    pub fn cpus(&self) -> &CpuList {
        &self.cpus
    }

    /// Replaces the processes.
    pub fn set_processes(&mut self, processes: Vec<u32>) {
        self.processes = processes;
    }

    /// Returns the present busy-poll parameters of one of its epoll instances.
    pub fn present(&self) -> Option<EpollBusyPoll> {
        let views = self.processes.iter().filter_map(|pid| process::inspect_tree(*pid).ok()).flatten();
        views.flat_map(|view| view.epolls).find_map(|one| EpollParams::get(one.params))
    }

    /// Returns what restores its epoll instances.
    pub fn undo_notes(&self) -> BTreeSet<EpollNote> {
        self.epolls.notes()
    }

    /// Searches for new processes and epoll instances, if the last search is a while ago, and sets their parameters.
    ///
    /// # Errors
    /// When parameters cannot be set.
    pub fn set_new(&mut self, desired: Option<EpollBusyPoll>) -> Result<(), TuneError> {
        if self.searched.elapsed() < SEARCH_INTERVAL {
            return Ok(());
        }
        self.find_processes();
        self.set(desired)
    }

    /// Sets the parameters of its epoll instances; `None` restores them.
    ///
    /// # Errors
    /// When parameters cannot be set, or the server has no epoll instance.
    pub fn set(&mut self, desired: Option<EpollBusyPoll>) -> Result<(), TuneError> {
        self.searched = Instant::now();
        if self.processes.is_empty() {
            return Ok(());
        }
        let below = self.processes.iter().flat_map(|pid| process::descendants(*pid).unwrap_or_default());
        let all: BTreeSet<u32> = self.processes.iter().copied().chain(below).collect();
        let all: Vec<u32> = all.into_iter().collect();
        let count = self.epolls.set(&all, desired).map_err(TuneError::unsupported)?;
        let runs = all.iter().any(|pid| process::start_time(*pid).is_some());
        // A program of the policy may not have made its first one yet.
        if count == 0 && runs && desired.is_some() && self.programs.is_empty() {
            return Err(TuneError::failed("the server has no epoll instance that could busy poll: leave --pid out"));
        }
        Ok(())
    }

    /// Restores the parameters, or leaves them with `keep`.
    ///
    /// # Errors
    /// When parameters cannot be restored.
    pub fn finish(self, keep: bool) -> Result<(), TuneError> {
        if keep {
            self.epolls.keep();
            return Ok(());
        }
        self.epolls.restore().map_err(TuneError::failed)
    }

    fn find_processes(&mut self) {
        if self.programs.is_empty() {
            return;
        }
        self.processes = self.programs.iter().flat_map(processes_of).collect();
        // A process that ends meanwhile is searched for again.
        self.cpus = cpus_of(&self.processes).unwrap_or_default();
    }
}

/// Returns the online CPUs that these processes may run on.
fn cpus_of(processes: &[u32]) -> Result<CpuList, CpuError> {
    let online = CpuList::online()?;
    let mut own = BTreeSet::new();
    for pid in processes {
        own.extend(process_affinity(*pid)?.iter());
    }
    Ok(own.into_iter().filter(|cpu| online.contains(*cpu)).collect())
}
