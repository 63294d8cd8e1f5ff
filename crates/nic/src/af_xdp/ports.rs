//! The ports that are redirected to AF_XDP sockets.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::filter;
use super::program::Program;
use crate::claim::Broker;
use crate::redirect::{Protocol, Redirected};

/// Reason why a port could not be registered or released.
#[derive(Debug, thiserror::Error)]
#[error("cannot change which ports {device} redirects ({protocol:?} {port}): {source}")]
pub struct PortsError {
    pub(super) device: String,
    pub(super) protocol: Protocol,
    pub(super) port: u16,
    pub(super) source: io::Error,
}

impl PortsError {
    /// Returns the system's error.
    pub fn into_source(self) -> io::Error {
        self.source
    }
}

/// The ports that are redirected to an AF_XDP NIC. Clones are handles of the same set.
///
/// A new set is empty, and no address is served ([`Self::serve`]). When the last handle and the last queue pair are dropped the program is detached, unless it belongs
/// to a [`Broker`].
#[derive(Clone, Debug)]
pub struct Ports {
    device: String,
    pub(super) redirect: Redirect,
}

/// The program that redirects, or the broker that has it.
#[derive(Clone, Debug)]
pub(super) enum Redirect {
    Program { program: Arc<Program>, index: u32 },
    Broker(Arc<dyn Broker>),
}

impl Ports {
    /// Returns the ports of a program of this process, on every queue with a socket.
    pub(super) fn of_program(device: &str, index: u32, program: Arc<Program>) -> Self {
        Self { device: device.to_owned(), redirect: Redirect::Program { program, index } }
    }

    /// Returns the ports of a broker's program.
    pub(super) fn of_broker(device: &str, broker: Arc<dyn Broker>) -> Self {
        Self { device: device.to_owned(), redirect: Redirect::Broker(broker) }
    }

    /// Returns the broker, if another process has the program.
    pub fn broker(&self) -> Option<&Arc<dyn Broker>> {
        match &self.redirect {
            Redirect::Program { .. } => None,
            Redirect::Broker(broker) => Some(broker),
        }
    }

    /// Sets whether packets to an address of this host are redirected, if they are for a registered port. Packets to any
    /// other address are passed to the kernel.
    ///
    /// # Errors
    /// When the kernel refuses, most likely because 4,096 addresses are served; EADDRNOTAVAIL from a broker in whose network
    /// namespace no device has the address.
    pub fn serve(&self, address: IpAddr, on: bool) -> io::Result<()> {
        match &self.redirect {
            Redirect::Program { program, .. } => program.change_address(address, |queues| {
                *queues = if on { filter::ALL_QUEUES } else { filter::NO_QUEUE };
            }),
            Redirect::Broker(broker) => broker.serve(address, on),
        }
    }

    /// Redirects the packets of `port` to served addresses, except those of connections that the kernel has already.
    ///
    /// # Errors
    /// When the kernel refuses, most likely because 65,536 ports are registered.
    pub fn register(&self, protocol: Protocol, port: u16) -> Result<(), PortsError> {
        self.set(protocol, port, Redirected::Everything, None)
    }

    /// As [`Self::register`], for a port to which `holder` is bound. A broker redirects a port for the first time in this
    /// way only.
    ///
    /// # Errors
    /// Those of [`Self::register`]; EPERM if the broker does not accept the socket.
    pub fn register_bound(
        &self,
        protocol: Protocol,
        port: u16,
        holder: Option<BorrowedFd<'_>>,
    ) -> Result<(), PortsError> {
        self.set(protocol, port, Redirected::Everything, holder)
    }

    /// Passes new TCP connections to `port` to the kernel, and continues to redirect existing ones.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn drain(&self, protocol: Protocol, port: u16) -> Result<(), PortsError> {
        self.set(protocol, port, Redirected::Flows, None)
    }

    /// Passes the packets of `port` to the kernel again. No effect on a port that was not registered.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn release(&self, protocol: Protocol, port: u16) -> Result<(), PortsError> {
        self.set(protocol, port, Redirected::Nothing, None)
    }

    fn set(
        &self,
        protocol: Protocol,
        port: u16,
        what: Redirected,
        holder: Option<BorrowedFd<'_>>,
    ) -> Result<(), PortsError> {
        let set = match &self.redirect {
            Redirect::Program { program, .. } => program.change_port(protocol, port, |entry| {
                let [open, flows] = what.open_and_flows();
                let queues = |on| if on { filter::ALL_QUEUES } else { filter::NO_QUEUE };
                [entry[0], entry[1]] = [queues(open), queues(flows)];
            }),
            Redirect::Broker(broker) => broker.redirect(protocol, port, what, holder),
        };
        set.map_err(|source| PortsError { device: self.device.clone(), protocol, port, source })
    }

    /// Detaches the program, even if other handles or queue pairs exist: the kernel receives all frames again. The queues
    /// stay bound until their pairs are dropped.
    pub fn detach(&self) {
        match &self.redirect {
            Redirect::Program { program, .. } => program.detach(),
            Redirect::Broker(broker) => broker.give_back(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::error::OpenError;
    use crate::interface::Interface;

    fn attached(device: &str, index: u32) -> Result<Ports, OpenError> {
        let program = Program::load(device)?;
        program.attach(index, false)?;
        Ok(Ports::of_program(device, index, Arc::new(program)))
    }

    #[test]
    fn a_program_of_another_process_stays_attached() {
        if !nix::unistd::geteuid().is_root() || Command::new("ip").arg("-V").output().is_err() {
            eprintln!("skipped: needs root and the `ip` program to make a device");
            return;
        }
        let test = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("a namespace");
            let words = ["link", "add", "v0", "type", "veth", "peer", "name", "v1"];
            assert!(Command::new("ip").args(words).status().expect("ip").success());
            let index = Interface::new("v0").expect("a socket").index().expect("a device");
            let first = attached("af_xdp:v0", index).expect("attach");
            let second = attached("af_xdp:v0", index).expect_err("one program at a time").to_string();
            let own = format!("(pid {}) is attached to it; end that process first", std::process::id());
            assert!(second.contains("the XDP program of ") && second.contains(&own), "{second}");
            first.register(Protocol::Tcp, 80).expect("the first program still works");
            let handle = first.clone();
            drop(first);
            attached("af_xdp:v0", index).expect_err("a handle keeps the program attached");
            handle.detach();
            attached("af_xdp:v0", index).expect("the device has no program after a detach");
        };
        std::thread::spawn(test).join().expect("the test");
    }
}
