//! A claim, in the process that has it.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::connection::Connection;
use super::protocol::{Reply, Request};
use crate::af_xdp::Handshake;
use crate::claim::{Broker, Claim};
use crate::redirect::{Protocol, Redirected};
use crate::repair::RepairState;

/// Longest frame that a request carries, in bytes.
const MAX_INJECTED: usize = 1800;
/// Time for which a claim waits. The broker itself decides within a few seconds.
const CLAIM_LIMIT: Duration = Duration::from_secs(10);
/// Time for which any other request waits.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// How often a claim is repeated when the broker closes the connection before it has read it: it was full of connections.
const CLAIM_ATTEMPTS: usize = 5;

/// Reason why a claim failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// The broker refused it.
    #[error("{0}")]
    Refused(String),
    /// The broker could not be reached.
    #[error("`abey run`, which gives out the NIC's queues, cannot be reached: {0}")]
    Unreachable(#[from] io::Error),
}

/// Claims queue pairs from the broker at an abstract name, and waits for its decision.
///
/// The claim lasts until the last handle of [`Claim::broker`] is dropped, or this process ends.
///
/// # Errors
/// [`ClaimError`]
pub fn claim(name: &str, token: &str, is_forked: bool) -> Result<Claim, ClaimError> {
    let request = Request::Claim { token: token.to_owned(), is_forked };
    let mut attempts = 1..=CLAIM_ATTEMPTS;
    let (connection, (reply, mut descriptors)) = loop {
        let mut connection = Connection::open(name, CLAIM_LIMIT)?;
        match connection.request(&request, &[], CLAIM_LIMIT) {
            Err(error) if is_closed(&error) && attempts.next().is_some() => {}
            reply => break (connection, reply?),
        }
    };
    match reply {
        Reply::Granted { queues, of, has_control, is_bound } => {
            let control = if has_control { descriptors.pop() } else { None };
            let broker = Arc::new(Client(Mutex::new(State { connection, ports: BTreeMap::new() })));
            Ok(Claim { queues, of: of as usize, descriptors, control, is_bound, broker })
        }
        Reply::Refused(reason) => Err(ClaimError::Refused(reason)),
        _ => Err(io::Error::from(io::ErrorKind::InvalidData).into()),
    }
}

fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

/// The connection to the broker, for one request at a time.
#[derive(Debug)]
struct Client(Mutex<State>);

#[derive(Debug)]
struct State {
    connection: Connection,
    /// What the broker has confirmed for each port that it redirects here.
    ports: BTreeMap<(Protocol, u16), Redirected>,
}

impl Client {
    fn request(&self, request: &Request) -> io::Result<()> {
        self.request_with(request, &[])
    }

    fn request_with(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).request(request, descriptors)
    }
}

impl State {
    fn request(&mut self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        match self.connection.request(request, descriptors, REQUEST_LIMIT)?.0 {
            Reply::Done => Ok(()),
            Reply::Failed(number) => Err(io::Error::from_raw_os_error(number)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Redirects a port. A request that is not answered in time has failed for the caller, so it is taken back in case the
    /// broker performs it later.
    fn redirect(&mut self, port: (Protocol, u16), what: Redirected, holder: &[BorrowedFd<'_>]) -> io::Result<()> {
        let request = |what| Request::Redirect { protocol: port.0, port: port.1, what };
        let done = self.request(&request(what), holder);
        match &done {
            Ok(()) if what == Redirected::Nothing => drop(self.ports.remove(&port)),
            Ok(()) => drop(self.ports.insert(port, what)),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                let before = self.ports.get(&port).copied().unwrap_or(Redirected::Nothing);
                self.connection.send_only(&request(before));
            }
            Err(_) => {}
        }
        done
    }
}

/// Returns a frame as hexadecimal digits.
fn digits(frame: &[u8]) -> io::Result<String> {
    if frame.len() > MAX_INJECTED {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(frame.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Broker for Client {
    fn engage(&self) -> io::Result<()> {
        self.request(&Request::Engage)
    }

    fn redirect(
        &self,
        protocol: Protocol,
        port: u16,
        what: Redirected,
        holder: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.redirect((protocol, port), what, holder.as_slice())
    }

    fn serve(&self, address: IpAddr, on: bool) -> io::Result<()> {
        self.request(&Request::Serve { address, on })
    }

    fn use_neighbor(&self, address: IpAddr) -> io::Result<()> {
        self.request(&Request::UseNeighbor(address))
    }

    fn begin_repair(&self, socket: BorrowedFd<'_>, state: &RepairState) -> io::Result<()> {
        self.request_with(&Request::BeginRepair(state.clone()), &[socket])
    }

    fn end_repair(&self, socket: BorrowedFd<'_>, reuse_address: bool, has_succeeded: bool) -> io::Result<()> {
        self.request_with(&Request::EndRepair { reuse_address, has_succeeded }, &[socket])
    }

    fn pass_flow(&self, local: SocketAddr, remote: SocketAddr, on: bool) -> io::Result<()> {
        self.request(&Request::PassFlow { local, remote, on })
    }

    fn prepare_offers(&self) -> io::Result<()> {
        self.request(&Request::PrepareOffers)
    }

    fn offer(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
        handshake: &Handshake,
        ack: Option<&[u8]>,
    ) -> io::Result<()> {
        let ack = ack.map(digits).transpose()?;
        self.request(&Request::Offer { local, remote, handshake: handshake.clone(), ack })
    }

    fn inject(&self, frame: &[u8]) -> io::Result<()> {
        self.request(&Request::Inject(digits(frame)?))
    }

    fn report_failure(&self, reason: &str) -> io::Result<()> {
        self.request(&Request::ReportFailure(reason.to_owned()))
    }

    fn give_back(&self) {
        // A broker that has ended has released everything.
        let _ = self.request(&Request::GiveBack);
    }
}
