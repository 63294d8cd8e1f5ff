//! A process's side of its claim.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use super::protocol::{Connection, Reply, Request};
use super::{Broker, Claim};
use crate::af_xdp::{Protocol, Redirected};

/// Why there is no claim.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// The broker has no queues for this process.
    #[error("{0}")]
    Refused(String),
    /// The broker cannot be reached.
    #[error("`abey run`, which gives out the NIC's queues, cannot be reached: {0}")]
    Unreachable(#[from] io::Error),
}

/// Asks the broker of this name for queue pairs, and waits until it has decided. The claim lasts until its broker's last
/// handle is dropped, or this process ends.
///
/// # Errors
/// When there are none for this process, or the broker cannot be reached.
pub fn claim(name: &str, token: &str, is_forked: bool) -> Result<Claim, ClaimError> {
    let connection = Connection::open(name)?;
    let (reply, mut descriptors) = connection.ask(&Request::Claim { token: token.to_owned(), is_forked })?;
    match reply {
        Reply::Granted { queues, of, has_control } => {
            let control = if has_control { descriptors.pop() } else { None };
            let broker = Arc::new(Client(Mutex::new(connection)));
            Ok(Claim { queues, of: of as usize, descriptors, control, broker })
        }
        Reply::Refused(why) => Err(ClaimError::Refused(why)),
        _ => Err(io::Error::from(io::ErrorKind::InvalidData).into()),
    }
}

/// One request at a time.
#[derive(Debug)]
struct Client(Mutex<Connection>);

impl Client {
    fn ask(&self, request: &Request) -> io::Result<()> {
        let connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match connection.ask(request)?.0 {
            Reply::Done => Ok(()),
            Reply::Failed(number) => Err(io::Error::from_raw_os_error(number)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl Broker for Client {
    fn engage(&self) -> io::Result<()> {
        self.ask(&Request::Engage)
    }

    fn redirect(&self, protocol: Protocol, port: u16, what: Redirected) -> io::Result<()> {
        self.ask(&Request::Redirect { protocol, port, what })
    }

    fn use_neighbor(&self, address: IpAddr) -> io::Result<()> {
        self.ask(&Request::UseNeighbor(address))
    }

    fn complain(&self, why: &str) -> io::Result<()> {
        self.ask(&Request::Complain(why.to_owned()))
    }

    fn give_back(&self) {
        // A broker that is gone has nothing left to take.
        let _ = self.ask(&Request::GiveBack);
    }
}
