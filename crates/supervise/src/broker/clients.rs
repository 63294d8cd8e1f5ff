//! The connections to the broker, and how many of them it keeps.
//!
//! Any user may connect: the abstract socket of the broker has no permissions, and the program's processes may run as any
//! user. So a connection is worth nothing until it has sent the token. There are at most [`MAX_STRANGERS`] such connections,
//! each for [`TOKEN_LIMIT`]; one more closes the oldest. A process sends its token at once, and repeats its claim when
//! its connection was closed.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use abey_datapath::control::{Lent, lend};
use abey_nic::Protocol;
use abey_nic::broker::Peer;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::addresses::ServedAddresses;
use super::handover::HeldFlows;
use super::ledger::ClientId;

/// The most connections that have not sent the token.
pub(super) const MAX_STRANGERS: usize = 64;
/// The most connections that have: processes of the program.
pub(super) const MAX_CLAIMANTS: usize = 1024;
/// Time until a connection has sent the token.
pub(super) const TOKEN_LIMIT: Duration = Duration::from_secs(2);

/// A process that has connected.
pub(super) struct Client {
    pub(super) peer: Peer,
    /// Readable when the process has ended, even if others have copies of its connection. Only of one with the token.
    pub(super) pidfd: Option<OwnedFd>,
    /// Whether it has sent the token.
    pub(super) has_claimed: bool,
    pub(super) queues: Vec<u32>,
    pub(super) ports: BTreeSet<(Protocol, u16)>,
    pub(super) addresses: ServedAddresses,
    pub(super) held: HeldFlows,
    /// The control socket made for it.
    pub(super) control: Option<Lent>,
    connected: Instant,
}

impl Client {
    fn new(peer: Peer, connected: Instant) -> Self {
        Self {
            peer,
            pidfd: None,
            has_claimed: false,
            queues: Vec::new(),
            ports: BTreeSet::new(),
            addresses: ServedAddresses::default(),
            held: HeldFlows::default(),
            control: None,
            connected,
        }
    }

    /// Notes that it has sent the token.
    pub(super) fn set_claimed(&mut self) {
        self.has_claimed = true;
        let by_number = || {
            let pid = Pid::from_raw(self.peer.credentials().pid()?.cast_signed())?;
            pidfd_open(pid, PidfdFlags::empty()).ok()
        };
        self.pidfd = self.peer.pidfd().or_else(by_number);
    }

    /// Returns whether it runs as the broker's user.
    pub(super) fn is_own(&self) -> bool {
        self.peer.credentials().is_user(nix::unistd::geteuid().as_raw())
    }

    /// Makes the control socket of a process of another user: such a process has no directory for one that this user's
    /// commands search.
    pub(super) fn lend_control(&mut self) -> Option<OwnedFd> {
        if self.is_own() {
            return None;
        }
        let (listener, lent) = lend(self.peer.credentials().pid()?).ok()?;
        self.control = Some(lent);
        Some(listener.into())
    }
}

/// The connections, by number in the order in which they were accepted.
#[derive(Default)]
pub(super) struct Clients {
    all: BTreeMap<ClientId, Client>,
    next_id: ClientId,
}

impl Clients {
    /// Adds a connection. If there are too many without the token, closes the oldest of them.
    pub(super) fn add(&mut self, peer: Peer, now: Instant) -> ClientId {
        if self.strangers().count() >= MAX_STRANGERS {
            self.close_oldest_stranger();
        }
        let id = self.next_id;
        self.all.insert(id, Client::new(peer, now));
        self.next_id += 1;
        id
    }

    pub(super) fn get(&self, id: ClientId) -> Option<&Client> {
        self.all.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: ClientId) -> Option<&mut Client> {
        self.all.get_mut(&id)
    }

    pub(super) fn remove(&mut self, id: ClientId) {
        self.all.remove(&id);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ClientId, &Client)> {
        self.all.iter().map(|(id, client)| (*id, client))
    }

    /// Returns whether one more process of the program may have a connection.
    pub(super) fn has_room(&self) -> bool {
        self.all.values().filter(|client| client.has_claimed).count() < MAX_CLAIMANTS
    }

    fn strangers(&self) -> impl Iterator<Item = (ClientId, &Client)> {
        self.iter().filter(|(_, client)| !client.has_claimed)
    }

    fn close_oldest_stranger(&mut self) {
        let oldest = self.strangers().next().map(|(id, _)| id);
        oldest.into_iter().for_each(|id| self.remove(id));
    }

    /// Closes every connection without the token: there are no descriptors left.
    pub(super) fn close_strangers(&mut self) {
        self.all.retain(|_, client| client.has_claimed);
    }

    /// Closes the connections whose time for the token is over.
    pub(super) fn close_late(&mut self, now: Instant) {
        self.all.retain(|_, client| client.has_claimed || now < client.connected + TOKEN_LIMIT);
    }

    /// Returns when [`Self::close_late`] closes the next one.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.strangers().next().map(|(_, oldest)| oldest.connected + TOKEN_LIMIT)
    }
}
