//! Running datapaths, found by NIC or by process.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use abey_datapath::control::{Client, ControlError, RefusalKind, Status, Unreachable, find, statuses};
use abey_linux::process::descendants;

use crate::failure::Failure;

/// A running datapath and its status.
pub(crate) struct Datapath {
    pub client: Client,
    pub status: Status,
}

/// Running datapaths.
#[derive(Default)]
pub(crate) struct Datapaths {
    pub reached: Vec<Datapath>,
    /// Those that did not answer.
    pub unreachable: Vec<Unreachable>,
}

/// Returns whether a name is that of a datapath's NIC, such as `memory:kv`. Names of kernel devices have no colon.
pub(crate) fn is_nic(name: &str) -> bool {
    name.contains(':')
}

impl Datapaths {
    /// Returns all datapaths; none if there is no directory for their sockets.
    pub(crate) fn all() -> Result<Self, Failure> {
        match Self::find() {
            Err(ControlError::NoDirectory) => Ok(Self::default()),
            other => Ok(other?),
        }
    }

    /// Returns the datapaths with this NIC and of this process, at least one.
    pub(crate) fn matching(nic: Option<&str>, pid: Option<u32>) -> Result<Self, Failure> {
        let mut all = Self::find()?;
        all.keep(nic, pid);
        if !all.reached.is_empty() {
            return Ok(all);
        }
        // That other users' sockets do not answer is no reason why this fails.
        all.unreachable.retain(|one| one.user.is_none() || pid.is_some());
        if let Some(Unreachable { error, .. }) = all.unreachable.pop() {
            return Err(error.into());
        }
        Err(match (nic, pid) {
            (_, Some(pid)) => none_of_process(pid, nic),
            (Some(nic), None) => {
                Failure::usage(format!("no running datapath has the NIC {nic}: `abey status` lists the running ones"))
            }
            (None, None) => Failure::usage("no datapath runs: start one with `abey serve kv --nic memory:NAME`"),
        })
    }

    /// Returns the only datapath. Both ends of a shared-memory NIC have its name, so there may be two. Those of this user come
    /// before those of others, who may give theirs any name.
    pub(crate) fn only(mut self) -> Result<Datapath, Failure> {
        if self.reached.iter().any(|one| one.client.user().is_none()) {
            self.reached.retain(|one| one.client.user().is_none());
        }
        let Some(last) = self.reached.pop() else { return Err(Failure::usage("no datapath runs")) };
        if self.reached.is_empty() {
            return Ok(last);
        }
        self.reached.push(last);
        let each = |one: &Datapath| format!("{} of {} (pid {})", one.status.nic, one.status.program, one.client.pid());
        let all: Vec<String> = self.reached.iter().map(each).collect();
        Err(Failure::usage(format!("several datapaths match: {}; choose one with DEV and --pid", all.join(", "))))
    }

    /// Keeps the datapaths with this NIC and of this process. The NIC of those that did not answer is unknown.
    pub(crate) fn keep(&mut self, nic: Option<&str>, pid: Option<u32>) {
        let is_wanted = |one: &Datapath| {
            nic.is_none_or(|nic| one.status.nic == nic) && pid.is_none_or(|pid| one.client.local_pid() == Some(pid))
        };
        self.reached.retain(is_wanted);
        self.unreachable.retain(|one| pid.is_none_or(|pid| one.pid == pid));
    }

    /// Like [`Self::keep`], with the datapaths of the process's descendants if it has none itself: a server's master leaves
    /// its sockets to workers, and `abey run` has none.
    pub(crate) fn keep_tree(&mut self, nic: Option<&str>, pid: u32) -> Result<(), Failure> {
        let has_own = self.reached.iter().any(|one| one.client.local_pid() == Some(pid))
            || self.unreachable.iter().any(|one| one.pid == pid);
        if has_own {
            self.keep(nic, Some(pid));
            return Ok(());
        }
        let below = descendants(pid).map_err(Failure::check)?;
        self.reached.retain(|one| one.client.local_pid().is_some_and(|pid| below.contains(&pid)));
        self.unreachable.retain(|one| below.contains(&one.pid));
        self.keep(nic, None);
        Ok(())
    }

    fn find() -> Result<Self, ControlError> {
        let mut all = Self::default();
        let mut clients = Vec::new();
        for client in find()? {
            match client {
                Ok(client) => clients.push(client),
                Err(unreachable) => all.unreachable.push(unreachable),
            }
        }
        for (client, status) in statuses(clients) {
            match status {
                Ok(status) => all.reached.push(Datapath { client, status }),
                // The process has ended meanwhile.
                Err(ControlError::Gone { pid }) if !process(pid).exists() => {}
                Err(error) => all.unreachable.push(client.unreachable(error)),
            }
        }
        Ok(all)
    }
}

fn process(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

fn none_of_process(pid: u32, nic: Option<&str>) -> Failure {
    let Ok(about) = process(pid).metadata() else {
        return Failure::usage(format!("there is no process {pid}: check the number"));
    };
    let (me, user) = (nix::unistd::geteuid(), about.uid());
    if !me.is_root() && user != me.as_raw() {
        return Failure::lacks(format!("process {pid} belongs to user {user}: run as that user or as root"));
    }
    let what = nic.map_or_else(String::new, |nic| format!(" with the NIC {nic}"));
    Failure::usage(format!("process {pid} has no datapath{what}: `abey status` lists the running ones"))
}

impl From<ControlError> for Failure {
    fn from(error: ControlError) -> Self {
        match &error {
            ControlError::Refused(refusal) => match refusal.kind {
                RefusalKind::Impossible => Self::usage(error),
                RefusalKind::Malformed => Self::lacks(error),
                _ => Self::check(error),
            },
            ControlError::Gone { .. } => Self::check(error),
            _ => Self::lacks(error),
        }
    }
}
