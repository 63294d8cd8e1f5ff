//! The broker's thread: accepts processes, answers their requests, and takes back what they had.

use std::collections::BTreeSet;
use std::io::{self, PipeReader};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use abey_datapath::{HostAddresses, Neighbors};
use abey_nic::broker::{Arrival, Listener, Reply, Request, SharedNic};
use abey_nic::{NicName, PortHolders, Redirected};
use nix::sys::signal::{Signal, kill};
use nix::unistd::getpid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::clients::Clients;
use super::handover;
use super::ledger::{ClientId, Decision, Ledger};
use super::{BrokerConfig, Claim, SharedClaims, SharedFailure, StartError};

/// The most connections that are accepted, and the most requests of one process that are answered, before the others get their
/// turn.
const BATCH: usize = 32;
/// The most different messages that are reported: a process chooses them.
const MAX_REPORTED: usize = 100;
/// The number of claims above which those of processes that have ended are forgotten.
const MAX_CLAIMS: usize = 4096;

/// The state of the broker's thread.
pub(super) struct BrokerServer {
    config: BrokerConfig,
    token: String,
    nic: SharedNic,
    neighbors: Option<Neighbors>,
    ledger: Ledger,
    clients: Clients,
    /// The addresses of the namespace, if the NIC is shared with its kernel.
    addresses: Option<HostAddresses>,
    /// Who may have a port of the NIC redirected; `None` for a NIC that is not shared with the kernel.
    holders: Option<PortHolders>,
    /// When the listener is polled again, if no descriptor was left.
    accepts_at: Option<Instant>,
    /// Messages that were reported.
    reported: BTreeSet<String>,
    failure: SharedFailure,
    claims: SharedClaims,
}

impl BrokerServer {
    /// Opens the NIC in the namespace of the calling thread.
    pub(super) fn open(
        config: BrokerConfig,
        token: String,
        (failure, claims): (SharedFailure, SharedClaims),
    ) -> Result<Self, StartError> {
        let nic = SharedNic::open(&config.nic, &config.options)?;
        let (neighbors, shared) = match &config.nic {
            NicName::AfXdp(device) => {
                let index = nix::net::if_::if_nametoindex(device.as_str()).map_err(io::Error::from)?;
                (Some(Neighbors::open(index)?), Some((HostAddresses::open()?, PortHolders::new(device)?)))
            }
            _ => (None, None),
        };
        let ledger = Ledger::new(nic.queues(), nic.is_divisible(), config.queues_per_process);
        let (addresses, holders) = shared.unzip();
        let (clients, reported) = (Clients::default(), BTreeSet::new());
        Ok(Self {
            config,
            token,
            nic,
            neighbors,
            addresses,
            ledger,
            clients,
            holders,
            accepts_at: None,
            reported,
            failure,
            claims,
        })
    }

    /// Serves processes until the other end of `stop` is closed.
    pub(super) fn run(&mut self, listener: &mut Listener, stop: &PipeReader) {
        loop {
            self.decide();
            let Some(ready) = self.wait(listener, stop) else { return };
            for id in ready {
                self.serve(id);
            }
            let now = Instant::now();
            self.clients.close_late(now);
            if self.accepts_at.is_none_or(|at| at <= now) {
                self.accept(listener, now);
            }
        }
    }

    /// Accepts processes, and reads what they have sent at once: a process without the token is soon gone.
    fn accept(&mut self, listener: &mut Listener, now: Instant) {
        self.accepts_at = None;
        for _ in 0..BATCH {
            match listener.accept() {
                Ok(Arrival::Peer(peer)) => {
                    let id = self.clients.add(peer, now);
                    self.serve(id);
                }
                Ok(Arrival::Nothing) => return,
                Ok(Arrival::Exhausted) | Err(_) => {
                    self.clients.close_strangers();
                    self.accepts_at = Some(now + Listener::PAUSE);
                    return;
                }
            }
        }
    }

    /// Waits for the next event, and returns the clients that have sent something or have ended; `None` at the end.
    fn wait(&self, listener: &Listener, stop: &PipeReader) -> Option<Vec<ClientId>> {
        let deadlines = [self.ledger.next_deadline(), self.clients.next_deadline(), self.accepts_at];
        let timeout = deadlines.into_iter().flatten().min().and_then(|at| {
            // Rounded up to milliseconds, so that the wait does not end before the deadline.
            let left = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            Timespec::try_from(left).ok()
        });
        let accepts = if self.accepts_at.is_none() { PollFlags::IN } else { PollFlags::empty() };
        let mut polled = vec![PollFd::new(stop, PollFlags::IN), PollFd::new(listener, accepts)];
        let mut ids = Vec::new();
        for (id, client) in self.clients.iter() {
            for descriptor in [Some(client.peer.as_fd()), client.pidfd.as_ref().map(AsFd::as_fd)].into_iter().flatten()
            {
                polled.push(PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
                ids.push(id);
            }
        }
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Some(Vec::new()),
            // The descriptors are read without blocking.
            Err(_) => return Some(self.clients.iter().map(|(id, _)| id).collect()),
        }
        let is_ready = |one: &PollFd<'_>| !one.revents().is_empty();
        if is_ready(&polled[0]) {
            return None;
        }
        let ready = polled[2..].iter().zip(ids).filter(|(one, _)| is_ready(one)).map(|(_, id)| id);
        let mut ready: Vec<ClientId> = ready.collect();
        ready.dedup();
        Some(ready)
    }

    /// Answers the requests of a client, or removes it if it has ended.
    fn serve(&mut self, id: ClientId) {
        for _ in 0..BATCH {
            let Some(client) = self.clients.get(id) else { return };
            let has_ended = client.pidfd.as_ref().is_some_and(is_readable);
            match client.peer.receive() {
                Ok(Some((request, descriptors))) if !has_ended => {
                    if self.answer(id, request, &descriptors).is_err() {
                        return self.remove(id);
                    }
                }
                Ok(None) if !has_ended => return,
                _ => return self.remove(id),
            }
        }
    }

    /// Performs a request. After an error the client is removed.
    fn answer(&mut self, id: ClientId, request: Request, descriptors: &[OwnedFd]) -> io::Result<()> {
        let has_room = self.clients.has_room();
        let client = self.clients.get_mut(id).expect("it has sent the request");
        let refused = || Err(io::ErrorKind::PermissionDenied.into());
        let done = match request {
            Request::Claim { token, .. } if client.has_claimed || token != self.token => return refused(),
            Request::Claim { .. } if !has_room => return refused(),
            Request::Claim { is_forked, .. } => {
                client.set_claimed();
                self.ledger.claim(id, is_forked, Instant::now());
                return Ok(());
            }
            // A process that has returned its queues may still report why.
            Request::ReportFailure(reason) if client.has_claimed => {
                self.take_back(id);
                self.note(id, Claim::Refused);
                self.report(&reason);
                Ok(())
            }
            _ if client.queues.is_empty() => return refused(),
            Request::Engage => self.nic.engage(&client.queues),
            Request::Redirect { protocol, port, what } => {
                handover::check_holder(self.holders.as_ref(), &client.ports, (protocol, port), what, descriptors)
                    .and_then(|()| {
                        if what == Redirected::Nothing {
                            client.ports.remove(&(protocol, port));
                        } else {
                            client.ports.insert((protocol, port));
                        }
                        self.nic.set_port(protocol, port, &client.queues, what).map_err(|error| error.into_source())
                    })
            }
            Request::Serve { address, on } => {
                client.addresses.set((&self.nic, self.addresses.as_mut()), &client.queues, address, on)
            }
            Request::UseNeighbor(address) => match &mut self.neighbors {
                Some(neighbors) => neighbors.mark_used(address),
                None => Ok(()),
            },
            Request::BeginRepair(state) => {
                handover::begin_repair((&self.nic, &mut client.held), &client.ports, &state, descriptors)
            }
            Request::EndRepair { reuse_address, has_succeeded } => {
                handover::end_repair(descriptors, reuse_address, has_succeeded)
            }
            Request::PassFlow { local, remote, on } => {
                let checked = handover::check_port(&client.ports, local.port());
                checked.and_then(|()| client.held.pass(&self.nic, (local, remote), on))
            }
            Request::PrepareOffers => self.nic.prepare_offers(),
            Request::Offer { local, remote, handshake, ack } => {
                let ack = ack.map(|digits| handover::frame(&client.ports, &digits)).transpose();
                handover::check_port(&client.ports, local.port())
                    .and(ack)
                    .and_then(|ack| self.nic.offer((local, remote), &handshake, ack.as_deref()))
            }
            Request::Inject(digits) => {
                handover::frame(&client.ports, &digits).and_then(|frame| self.nic.inject(&frame))
            }
            Request::ReportFailure(_) => return refused(),
            Request::GiveBack => {
                self.take_back(id);
                self.note(id, Claim::None);
                Ok(())
            }
        };
        let reply = match done {
            Ok(()) => Reply::Done,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Reply::Failed(nix::libc::EPERM),
            Err(error) => Reply::Failed(error.raw_os_error().unwrap_or(nix::libc::EIO)),
        };
        self.send(id, &reply, &[])
    }

    fn send(&self, id: ClientId, reply: &Reply, descriptors: &[OwnedFd]) -> io::Result<()> {
        self.clients.get(id).map_or(Ok(()), |client| client.peer.send(reply, descriptors))
    }

    /// Notes what a client has got. A refusal is kept when its connection ends.
    fn note(&self, id: ClientId, claim: Claim) {
        let Some(pid) = self.clients.get(id).and_then(|client| client.peer.credentials().pid()) else { return };
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        if claim == Claim::None && claims.get(&pid) != Some(&Claim::Refused) {
            claims.remove(&pid);
        } else if claim != Claim::None {
            if claims.len() >= MAX_CLAIMS {
                claims.retain(|pid, _| std::path::Path::new(&format!("/proc/{pid}")).exists());
            }
            claims.insert(pid, claim);
        }
    }

    fn remove(&mut self, id: ClientId) {
        self.take_back(id);
        self.note(id, Claim::None);
        self.clients.remove(id);
    }

    /// Frees the queues of a client. The kernel receives what arrives on them.
    fn take_back(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let (queues, ports) = (std::mem::take(&mut client.queues), std::mem::take(&mut client.ports));
        client.control = None;
        client.addresses.clear(&self.nic, &queues);
        client.held.pass_all(&self.nic);
        for (protocol, port) in ports {
            // If this fails, the queue without a socket passes its frames to the kernel all the same.
            let _ = self.nic.set_port(protocol, port, &queues, Redirected::Nothing);
        }
        self.nic.take_back(&queues);
        self.ledger.release(id, &queues, Instant::now());
    }

    fn decide(&mut self) {
        for (id, decision) in self.ledger.decide(Instant::now()) {
            let answered = match decision {
                Decision::Grant(queues) => self.grant(id, queues),
                Decision::Refuse => {
                    let reason = self.in_use();
                    self.refuse(id, &reason)
                }
            };
            if answered.is_err() {
                self.remove(id);
            }
        }
    }

    fn grant(&mut self, id: ClientId, queues: Vec<u32>) -> io::Result<()> {
        self.note(id, Claim::Granted);
        let Some(client) = self.clients.get_mut(id) else { return Ok(()) };
        client.queues.clone_from(&queues);
        match self.nic.hand_out(&queues, client.is_own()) {
            Ok((mut descriptors, is_bound)) => {
                let of = self.nic.queues() as u32;
                let control = client.lend_control();
                let has_control = control.is_some();
                descriptors.extend(control);
                self.send(id, &Reply::Granted { queues, of, has_control, is_bound }, &descriptors)
            }
            Err(error) => {
                self.take_back(id);
                self.refuse(id, &error.to_string())
            }
        }
    }

    /// Returns the reason for a refusal while all queues are in use.
    fn in_use(&self) -> String {
        let (nic, queues) = (&self.config.nic, self.nic.queues());
        if !self.nic.is_divisible() {
            return format!("{nic} is in use by another process of the program, and only one can use it at a time");
        }
        let queues = if queues == 1 { "the one queue".to_owned() } else { format!("each of the {queues} queues") };
        format!("{queues} of {nic} is in use by another process of the program: a process needs one of its own")
    }

    fn refuse(&mut self, id: ClientId, reason: &str) -> io::Result<()> {
        self.note(id, Claim::Refused);
        self.report(reason);
        self.send(id, &Reply::Refused(reason.to_owned()), &[])
    }

    /// Reports that a process uses the kernel's sockets; under `strict` ends the program instead.
    ///
    /// The process cannot do so: a server may have closed standard error or redirected it to a log.
    fn report(&mut self, reason: &str) {
        if !self.config.strict {
            if self.reported.len() < MAX_REPORTED && self.reported.insert(reason.to_owned()) {
                (self.config.report)(&format!("{reason}; the process uses the kernel's sockets"));
            }
            return;
        }
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if failure.is_none() {
            *failure = Some(reason.to_owned());
            // The supervisor forwards it to the program.
            let _ = kill(getpid(), Signal::SIGTERM);
        }
    }
}

/// Returns whether a descriptor is readable.
fn is_readable(descriptor: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(descriptor, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}
