//! The broker: gives the queue pairs of a NIC to the processes of a program, and performs the privileged calls for them.
//!
//! The broker's process outlives the program's processes and keeps the privileges that they drop. It holds what exists once
//! a NIC; under AF_XDP that is the XDP program and its maps. A process connects when its first socket needs the datapath,
//! that is, after it was forked and after it has changed its user. It gets queue pairs (the ledger decides how many), and
//! returns them by closing the connection, which the kernel does if the process is killed. From then on the kernel receives
//! the frames of these queues, and resets connections that it does not have.
//!
//! A process proves that it belongs to the program by a token in its environment; the module `clients` says what becomes of the others.
//! It can change the state of its own queues only: redirect ports to them, of which it shows a bound socket, and addresses of the
//! host, and keep neighbour entries in use.
//!
//! When the broker's process is killed the kernel detaches the XDP program (it is attached by a link) and removes the
//! abstract socket; the guard ends the program.

mod addresses;
mod clients;
mod handover;
mod ledger;
mod server;

use std::collections::BTreeMap;
use std::io::{self, PipeWriter};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use abey_linux::library::BrokerAddress;
use abey_linux::netns::NetNs;
use abey_nic::broker::Listener;
use abey_nic::{NicName, OpenError, Options};

use server::BrokerServer;

/// Configuration of a broker.
pub struct BrokerConfig {
    /// The NIC.
    pub nic: NicName,
    /// Options for opening it.
    pub options: Options,
    /// Queue pairs of each process; `None` lets the broker divide them.
    pub queues_per_process: Option<usize>,
    /// Whether a process that gets no queue pairs ends the program.
    pub strict: bool,
    /// Called with a message, once for each reason, when a process gets no queue pairs and the program runs on.
    pub report: Box<dyn Fn(&str) + Send>,
}

impl std::fmt::Debug for BrokerConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BrokerConfig").field("nic", &self.nic).finish_non_exhaustive()
    }
}

/// Reason why a broker was not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The NIC could not be opened.
    #[error(transparent)]
    Nic(#[from] OpenError),
    /// The system refused a thread, a pipe or a socket.
    #[error("cannot start the broker of the NIC: {0}")]
    System(#[from] io::Error),
}

/// Why the program was ended, if it was; shared between the broker's thread and its handle.
type SharedFailure = Arc<Mutex<Option<String>>>;

/// What a process has got from the broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Claim {
    /// It has not asked, or has returned what it got.
    #[default]
    None,
    /// Queue pairs.
    Granted,
    /// Nothing, or it could not use them: reported.
    Refused,
}

/// The claims of the processes that are connected, by process; shared between the broker's thread and its handle.
type SharedClaims = Arc<Mutex<BTreeMap<u32, Claim>>>;

/// A running broker. Dropping it ends its thread.
#[derive(Debug)]
pub struct BrokerThread {
    address: BrokerAddress,
    failure: SharedFailure,
    claims: SharedClaims,
    /// Closing it ends the thread.
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl BrokerThread {
    /// Opens the NIC in the namespace, and serves processes there in a thread.
    ///
    /// # Errors
    /// [`StartError`]
    pub fn start(config: BrokerConfig, netns: NetNs) -> Result<Self, StartError> {
        let address = BrokerAddress {
            socket: format!("abey-broker/{}/{:016x}", std::process::id(), rand::random::<u64>()),
            token: format!("{:032x}", rand::random::<u128>()),
        };
        let (reader, stop) = io::pipe()?;
        let (started, is_started) = channel();
        let (failure, claims) = (SharedFailure::default(), SharedClaims::default());
        let (thread_address, shared) = (address.clone(), (failure.clone(), claims.clone()));
        let thread = std::thread::Builder::new().name("abey-broker".to_owned()).spawn(move || {
            let in_namespace = started.clone();
            let ran = netns.run(move || {
                if let Some((mut server, mut listener)) = open(config, thread_address, shared, &in_namespace) {
                    server.run(&mut listener, &reader);
                }
            });
            if let Err(error) = ran {
                let _ = started.send(Err(io::Error::other(error).into()));
            }
        })?;
        let broker = Self { address, failure, claims, stop: Some(stop), thread: Some(thread) };
        is_started.recv().unwrap_or_else(|_| Err(io::Error::other("its thread ended").into()))?;
        Ok(broker)
    }

    /// Returns the address and token that the program needs.
    #[must_use]
    pub fn address(&self) -> &BrokerAddress {
        &self.address
    }

    /// Returns what a process has got.
    #[must_use]
    pub fn claim(&self, pid: u32) -> Claim {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner).get(&pid).copied().unwrap_or_default()
    }

    /// Returns why the program was ended, if it was.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for BrokerThread {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // The message of a panic was printed already.
            let _ = thread.join();
        }
    }
}

/// Opens the NIC and the socket, and sends the outcome to `started`.
fn open(
    config: BrokerConfig,
    address: BrokerAddress,
    shared: (SharedFailure, SharedClaims),
    started: &Sender<Result<(), StartError>>,
) -> Option<(BrokerServer, Listener)> {
    let server = BrokerServer::open(config, address.token, shared);
    let opened = server.and_then(|server| Ok((server, Listener::bind(&address.socket)?)));
    let (outcome, opened) = match opened {
        Ok(opened) => (Ok(()), Some(opened)),
        Err(error) => (Err(error), None),
    };
    let _ = started.send(outcome);
    opened
}
