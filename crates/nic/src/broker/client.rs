//! A claim, in the process that has it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use super::protocol::{Connection, Reply, Request};
use crate::claim::{Broker, Claim};
use crate::redirect::{Protocol, Redirected};
use crate::repair::RepairState;

/// Longest frame that a request carries, in bytes.
const MAX_INJECTED: usize = 1800;

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
    let connection = Connection::open(name)?;
    let (reply, mut descriptors) = connection.request(&Request::Claim { token: token.to_owned(), is_forked }, &[])?;
    match reply {
        Reply::Granted { queues, of, has_control } => {
            let control = if has_control { descriptors.pop() } else { None };
            let broker = Arc::new(Client(Mutex::new(connection)));
            Ok(Claim { queues, of: of as usize, descriptors, control, broker })
        }
        Reply::Refused(reason) => Err(ClaimError::Refused(reason)),
        _ => Err(io::Error::from(io::ErrorKind::InvalidData).into()),
    }
}

/// The connection to the broker, for one request at a time.
#[derive(Debug)]
struct Client(Mutex<Connection>);

impl Client {
    fn request(&self, request: &Request) -> io::Result<()> {
        self.request_with(request, &[])
    }

    fn request_with(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match connection.request(request, descriptors)?.0 {
            Reply::Done => Ok(()),
            Reply::Failed(number) => Err(io::Error::from_raw_os_error(number)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl Broker for Client {
    fn engage(&self) -> io::Result<()> {
        self.request(&Request::Engage)
    }

    fn redirect(&self, protocol: Protocol, port: u16, what: Redirected) -> io::Result<()> {
        self.request(&Request::Redirect { protocol, port, what })
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

    fn inject(&self, frame: &[u8]) -> io::Result<()> {
        if frame.len() > MAX_INJECTED {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.request(&Request::Inject(frame.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    fn report_failure(&self, reason: &str) -> io::Result<()> {
        self.request(&Request::ReportFailure(reason.to_owned()))
    }

    fn give_back(&self) {
        // A broker that has ended has released everything.
        let _ = self.request(&Request::GiveBack);
    }
}
