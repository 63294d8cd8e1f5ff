//! Which ports come to us: the handle by which they are registered and released.

use std::io;
use std::sync::Arc;

use super::filter;
use super::program::Program;
use crate::broker::Broker;

/// A transport protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TCP over IPv4 and IPv6.
    Tcp,
    /// UDP over IPv4 and IPv6.
    Udp,
}

/// What of a port's traffic comes to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirected {
    /// Nothing: the kernel gets it.
    Nothing,
    /// TCP: connections that began with us, and no new ones. UDP: everything.
    Flows,
    /// Everything but the connections that the kernel has.
    Everything,
}

impl Redirected {
    pub(super) fn open_and_flows(self) -> [bool; 2] {
        [self == Self::Everything, self != Self::Nothing]
    }
}

/// Why a port could not be registered or released.
#[derive(Debug, thiserror::Error)]
#[error("cannot change which ports {device} redirects ({protocol:?} {port}): {source}")]
pub struct PortsError {
    pub(super) device: String,
    pub(super) protocol: Protocol,
    pub(super) port: u16,
    pub(super) source: io::Error,
}

impl PortsError {
    /// What the system said.
    pub fn into_source(self) -> io::Error {
        self.source
    }
}

/// The ports that are redirected to an AF_XDP NIC. Clones are handles of the same set.
///
/// At first there are none. When the last handle and the last queue pair go, the program is detached, unless it belongs to
/// a [`Broker`].
#[derive(Clone, Debug)]
pub struct Ports {
    device: String,
    redirect: Redirect,
}

/// Who redirects.
#[derive(Clone, Debug)]
enum Redirect {
    Program(Arc<Program>),
    Broker(Arc<dyn Broker>),
}

impl Ports {
    /// Those of a program of this process, on every queue that has a socket.
    pub(super) fn of_program(device: &str, program: Arc<Program>) -> Self {
        Self { device: device.to_owned(), redirect: Redirect::Program(program) }
    }

    /// Those of another process's program.
    pub(super) fn of_broker(device: &str, broker: Arc<dyn Broker>) -> Self {
        Self { device: device.to_owned(), redirect: Redirect::Broker(broker) }
    }

    /// Who has the program, if that is another process.
    pub fn broker(&self) -> Option<&Arc<dyn Broker>> {
        match &self.redirect {
            Redirect::Program(_) => None,
            Redirect::Broker(broker) => Some(broker),
        }
    }

    /// Redirects what is sent to `port` to us, from now on; not the connections that the kernel has there already.
    ///
    /// # Errors
    /// When the kernel refuses, most likely because 65,536 ports are registered.
    pub fn register(&self, protocol: Protocol, port: u16) -> Result<(), PortsError> {
        self.set(protocol, port, Redirected::Everything)
    }

    /// Leaves new TCP connections to `port` to the kernel, while those that are there stay ours.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn drain(&self, protocol: Protocol, port: u16) -> Result<(), PortsError> {
        self.set(protocol, port, Redirected::Flows)
    }

    /// Leaves what is sent to `port` to the kernel again. A port that was not registered stays so.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn release(&self, protocol: Protocol, port: u16) -> Result<(), PortsError> {
        self.set(protocol, port, Redirected::Nothing)
    }

    fn set(&self, protocol: Protocol, port: u16, what: Redirected) -> Result<(), PortsError> {
        let set = match &self.redirect {
            Redirect::Program(program) => program.change_port(protocol, port, |entry| {
                let [open, flows] = what.open_and_flows();
                let queues = |on| if on { filter::ALL_QUEUES } else { filter::NO_QUEUE };
                *entry = [queues(open), queues(flows)];
            }),
            Redirect::Broker(broker) => broker.redirect(protocol, port, what),
        };
        set.map_err(|source| PortsError { device: self.device.clone(), protocol, port, source })
    }

    /// Detaches the program, whoever still has a handle or a queue pair: the device is the kernel's alone again. The
    /// queues stay ours until their pairs are dropped.
    pub fn detach(&self) {
        match &self.redirect {
            Redirect::Program(program) => program.detach(),
            Redirect::Broker(broker) => broker.give_back(),
        }
    }
}
