//! Gives the NIC's queue pairs to the processes of the program, and does for them what needs privileges.
//!
//! `abey run` outlives every process of the program and may keep the privileges that those drop, so what there is once
//! about a NIC is here: under AF_XDP the program in the kernel and its maps. A process connects when its first socket
//! needs the datapath, that is, after it was forked and after it has changed its user, and gets queue pairs
//! ([`shares`] tells how many). It gives them back by closing the connection, which no kind of death prevents: from then
//! on the kernel gets what arrives for it, and answers connections that it does not know with resets.
//!
//! Who may ask is who knows the token, which stands in the environment of the program and of what it starts. What a
//! process can have done is about its own queues only: it redirects ports on those, and has neighbours looked after.
//!
//! When this process is killed everything here goes with it (the XDP program is attached by a link, sockets are abstract),
//! and the guard ends the program.

mod shares;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use abey_datapath::Neighbors;
use abey_datapath::control::{Lent, lend};
use abey_linux::library::BrokerAddress;
use abey_linux::netns::NetNs;
use abey_nic::broker::{Listener, Peer, Reply, Request, SharedNic};
use abey_nic::{NicName, OpenError, Options, Protocol, Redirected};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::getpid;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use shares::{Decision, Id, Shares};

/// What there is to give, and how.
pub(super) struct Terms {
    pub(super) nic: NicName,
    pub(super) options: Options,
    /// Queue pairs for each process, if that was said.
    pub(super) each: Option<usize>,
    /// A process for which there are none ends the program.
    pub(super) strict: bool,
}

/// The broker's thread; ends when dropped.
pub(super) struct Broker {
    address: BrokerAddress,
    failure: Arc<Mutex<Option<String>>>,
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

/// Why there is no broker.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error(transparent)]
    Nic(#[from] OpenError),
    #[error("cannot give out the queues of the NIC: {0}")]
    System(#[from] io::Error),
}

impl Broker {
    /// Opens what is shared of the NIC in the namespace, and waits for processes there.
    pub(super) fn start(terms: Terms, netns: NetNs) -> Result<Self, StartError> {
        let address = BrokerAddress {
            socket: format!("abey-broker/{}/{:016x}", std::process::id(), rand::random::<u64>()),
            token: format!("{:032x}", rand::random::<u128>()),
        };
        let (reader, stop) = io::pipe()?;
        let (opened, is_open) = channel();
        let failure = Arc::new(Mutex::new(None));
        let (known, says) = (address.clone(), failure.clone());
        let thread = std::thread::Builder::new().name("abey-broker".to_owned()).spawn(move || {
            let tell = opened.clone();
            let served = netns.run(move || serve(terms, known, says, &opened, &reader));
            if let Err(error) = served {
                let _ = tell.send(Err(io::Error::other(error).into()));
            }
        })?;
        let broker = Self { address, failure, stop: Some(stop), thread: Some(thread) };
        is_open.recv().unwrap_or_else(|_| Err(io::Error::other("its thread ended").into()))?;
        Ok(broker)
    }

    /// What the program must know.
    pub(super) fn address(&self) -> &BrokerAddress {
        &self.address
    }

    /// Why the program was ended, if it was.
    pub(super) fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// The thread's life; `opened` is told how it begins.
fn serve(
    terms: Terms,
    address: BrokerAddress,
    failure: Arc<Mutex<Option<String>>>,
    opened: &Sender<Result<(), StartError>>,
    stop: &PipeReader,
) {
    let desk = Desk::open(terms, address.token, failure);
    let listener = desk.and_then(|desk| Ok((desk, Listener::bind(&address.socket)?)));
    match listener {
        Ok((mut desk, listener)) => {
            let _ = opened.send(Ok(()));
            desk.run(&listener, stop);
        }
        Err(error) => {
            let _ = opened.send(Err(error));
        }
    }
}

/// A process that has connected.
struct Member {
    peer: Peer,
    /// Readable when the process has ended, whoever else has copies of its connection.
    life: Option<OwnedFd>,
    /// It knew the token.
    has_asked: bool,
    queues: Vec<u32>,
    ports: BTreeSet<(u8, u16)>,
    /// Where it can be asked how it is, which it could not arrange for itself.
    control: Option<Lent>,
}

impl Member {
    /// The control socket of a process of another user, which has no directory for one that anybody would look into.
    fn lend_control(&mut self) -> Option<OwnedFd> {
        let is_other = self.peer.user().ok()? != nix::unistd::geteuid().as_raw();
        let (listener, lent) = is_other.then(|| self.peer.pid().ok().and_then(|pid| lend(pid).ok()))??;
        self.control = Some(lent);
        Some(listener.into())
    }
}

/// Everything the thread has.
struct Desk {
    terms: Terms,
    token: String,
    nic: SharedNic,
    neighbors: Option<Neighbors>,
    shares: Shares,
    members: BTreeMap<Id, Member>,
    next: Id,
    said: BTreeSet<String>,
    failure: Arc<Mutex<Option<String>>>,
}

impl Desk {
    fn open(terms: Terms, token: String, failure: Arc<Mutex<Option<String>>>) -> Result<Self, StartError> {
        let nic = SharedNic::open(&terms.nic, &terms.options)?;
        let neighbors = match &terms.nic {
            NicName::AfXdp(device) => {
                let index = nix::net::if_::if_nametoindex(device.as_str()).map_err(io::Error::from)?;
                Some(Neighbors::open(index)?)
            }
            _ => None,
        };
        let shares = Shares::new(nic.queues(), nic.is_divisible(), terms.each);
        let (members, said) = (BTreeMap::new(), BTreeSet::new());
        Ok(Self { terms, token, nic, neighbors, shares, members, next: 0, said, failure })
    }

    fn run(&mut self, listener: &Listener, stop: &PipeReader) {
        loop {
            self.decide();
            let Some(ready) = self.wait(listener, stop) else { return };
            for who in ready {
                self.serve(who);
            }
            while let Ok(Some(peer)) = listener.accept() {
                self.welcome(peer);
            }
        }
    }

    /// Waits until there is something to do, and tells which members have something to say or have gone. `None`: the end.
    fn wait(&self, listener: &Listener, stop: &PipeReader) -> Option<Vec<Id>> {
        let timeout = self.shares.next().map_or(PollTimeout::NONE, |at| {
            // Rounded up, so as not to wake before the time.
            let left = at.saturating_duration_since(Instant::now()).as_millis() as u64 + 1;
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        });
        let watch = |of| PollFd::new(of, PollFlags::POLLIN);
        let mut polled = vec![watch(stop.as_fd()), watch(listener.as_fd())];
        let mut whose = Vec::new();
        for (who, member) in &self.members {
            for of in [Some(member.peer.as_fd()), member.life.as_ref().map(AsFd::as_fd)].into_iter().flatten() {
                polled.push(watch(of));
                whose.push(*who);
            }
        }
        let _ = poll(&mut polled, timeout);
        let is_ready = |one: &PollFd<'_>| one.any().unwrap_or(true);
        if is_ready(&polled[0]) {
            return None;
        }
        let mut ready: Vec<Id> =
            polled[2..].iter().zip(whose).filter(|(one, _)| is_ready(one)).map(|(_, who)| who).collect();
        ready.dedup();
        Some(ready)
    }

    fn welcome(&mut self, peer: Peer) {
        let pid = peer.pid().ok().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        let life = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let member = Member { peer, life, has_asked: false, queues: Vec::new(), ports: BTreeSet::new(), control: None };
        self.members.insert(self.next, member);
        self.next += 1;
    }

    /// Hears a member out, or lets it go.
    fn serve(&mut self, who: Id) {
        loop {
            let Some(member) = self.members.get(&who) else { return };
            let has_ended = member.life.as_ref().is_some_and(is_readable);
            match member.peer.receive() {
                Ok(Some(request)) if !has_ended => {
                    if self.answer(who, request).is_err() {
                        return self.let_go(who);
                    }
                }
                Ok(None) if !has_ended => return,
                _ => return self.let_go(who),
            }
        }
    }

    /// Does what a member asks; an error is one that lets it go.
    fn answer(&mut self, who: Id, request: Request) -> io::Result<()> {
        let member = self.members.get_mut(&who).expect("it asked");
        let refused = || Err(io::ErrorKind::PermissionDenied.into());
        let done = match request {
            Request::Claim { token, .. } if member.has_asked || token != self.token => return refused(),
            Request::Claim { is_forked, .. } => {
                member.has_asked = true;
                self.shares.ask(who, is_forked, Instant::now());
                return Ok(());
            }
            // It may have given its queues back before it says why.
            Request::Complain(why) if member.has_asked => {
                self.take_back(who);
                self.tell(&why);
                Ok(())
            }
            _ if member.queues.is_empty() => return refused(),
            Request::Engage => self.nic.engage(&member.queues),
            Request::Redirect { protocol, port, what } => {
                let port_key = (protocol as u8, port);
                if what == Redirected::Nothing {
                    member.ports.remove(&port_key);
                } else {
                    member.ports.insert(port_key);
                }
                self.nic.set_port(protocol, port, &member.queues, what).map_err(|error| error.into_source())
            }
            Request::UseNeighbor(address) => match &mut self.neighbors {
                Some(neighbors) => neighbors.say_used(address),
                None => Ok(()),
            },
            Request::Complain(_) => return refused(),
            Request::GiveBack => {
                self.take_back(who);
                Ok(())
            }
        };
        let reply = match done {
            Ok(()) => Reply::Done,
            Err(error) => Reply::Failed(error.raw_os_error().unwrap_or(nix::libc::EIO)),
        };
        self.send(who, &reply, &[])
    }

    fn send(&self, who: Id, reply: &Reply, descriptors: &[OwnedFd]) -> io::Result<()> {
        self.members.get(&who).map_or(Ok(()), |member| member.peer.send(reply, descriptors))
    }

    fn let_go(&mut self, who: Id) {
        self.take_back(who);
        self.members.remove(&who);
    }

    /// What a member had is free, and what arrives for it the kernel's.
    fn take_back(&mut self, who: Id) {
        let Some(member) = self.members.get_mut(&who) else { return };
        let (queues, ports) = (std::mem::take(&mut member.queues), std::mem::take(&mut member.ports));
        member.control = None;
        for (protocol, port) in ports {
            let protocol = if protocol == Protocol::Tcp as u8 { Protocol::Tcp } else { Protocol::Udp };
            // The socket goes as well, so nothing is redirected in any case.
            let _ = self.nic.set_port(protocol, port, &queues, Redirected::Nothing);
        }
        self.nic.take_back(&queues);
        self.shares.leave(who, &queues, Instant::now());
    }

    fn decide(&mut self) {
        for (who, decision) in self.shares.decide(Instant::now()) {
            let answered = match decision {
                Decision::Grant(queues) => self.grant(who, queues),
                Decision::Nothing => {
                    let why = self.nothing_left();
                    self.refuse(who, &why)
                }
            };
            if answered.is_err() {
                self.let_go(who);
            }
        }
    }

    fn grant(&mut self, who: Id, queues: Vec<u32>) -> io::Result<()> {
        let Some(member) = self.members.get_mut(&who) else { return Ok(()) };
        member.queues.clone_from(&queues);
        match self.nic.hand_out(&queues) {
            Ok(mut descriptors) => {
                let of = self.nic.queues() as u32;
                let control = member.lend_control();
                let has_control = control.is_some();
                descriptors.extend(control);
                self.send(who, &Reply::Granted { queues, of, has_control }, &descriptors)
            }
            Err(error) => {
                self.take_back(who);
                self.refuse(who, &error.to_string())
            }
        }
    }

    fn nothing_left(&self) -> String {
        let (nic, queues) = (&self.terms.nic, self.nic.queues());
        if !self.nic.is_divisible() {
            return format!("{nic} is in use by another process of the program, and goes to one at a time");
        }
        let queues = if queues == 1 { "the one queue".to_owned() } else { format!("each of the {queues} queues") };
        format!("{queues} of {nic} is in use by another process of the program: a process needs one of its own")
    }

    /// There is nothing for a member.
    fn refuse(&mut self, who: Id, why: &str) -> io::Result<()> {
        self.tell(why);
        self.send(who, &Reply::Refused(why.to_owned()), &[])
    }

    /// A process has to do without: that is said once, or ends the program if it must not be.
    ///
    /// It is said here, as a server may have closed standard error or made it a file of its own.
    fn tell(&mut self, why: &str) {
        if !self.terms.strict {
            if self.said.insert(why.to_owned()) {
                eprintln!("abey: {why}; one process more uses the kernel's sockets");
            }
            return;
        }
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if failure.is_none() {
            *failure = Some(why.to_owned());
            // The supervisor passes it on, as any that comes from outside.
            let _ = kill(getpid(), Signal::SIGTERM);
        }
    }
}

/// Whether a descriptor has something to read.
fn is_readable(descriptor: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)];
    poll(&mut polled, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}
