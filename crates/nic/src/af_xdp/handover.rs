//! What a handed-over connection needs of the owner of the XDP program, which may be a broker.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use super::ports::{Ports, Redirect};
use crate::repair::{self, RepairState};

impl Ports {
    /// Makes a kernel socket one of a connection, in repair mode ([`repair::begin`]). After an error the socket is as it was
    /// before.
    ///
    /// # Errors
    /// Those of [`repair::begin`]; the broker has ended.
    pub fn begin_repair(&self, socket: BorrowedFd<'_>, state: &RepairState) -> io::Result<()> {
        match &self.redirect {
            Redirect::Program { .. } => repair::begin(socket, state).inspect_err(|_| {
                let _ = repair::undo(socket, state.reuse_address);
            }),
            Redirect::Broker(broker) => broker.begin_repair(socket, state),
        }
    }

    /// Ends the repair mode: [`repair::end`] if the hand-over has succeeded, otherwise [`repair::undo`].
    ///
    /// # Errors
    /// EPERM; the broker has ended.
    pub fn end_repair(&self, socket: BorrowedFd<'_>, reuse_address: bool, has_succeeded: bool) -> io::Result<()> {
        match &self.redirect {
            Redirect::Program { .. } if has_succeeded => repair::end(socket, reuse_address),
            Redirect::Program { .. } => repair::undo(socket, reuse_address),
            Redirect::Broker(broker) => broker.end_repair(socket, reuse_address, has_succeeded),
        }
    }

    /// Passes the segments of a TCP connection to the kernel, as long as the kernel has a socket of it.
    ///
    /// # Errors
    /// When the kernel refuses, most likely because 65,536 connections were handed over.
    pub fn pass_flow(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<()> {
        match &self.redirect {
            Redirect::Program { program, .. } => program.pass_flow(local, remote),
            Redirect::Broker(broker) => broker.pass_flow(local, remote, true),
        }
    }

    /// Undoes [`Self::pass_flow`].
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn reclaim_flow(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<()> {
        match &self.redirect {
            Redirect::Program { program, .. } => program.reclaim_flow(local, remote),
            Redirect::Broker(broker) => broker.pass_flow(local, remote, false),
        }
    }

    /// Returns the number of connections whose segments are passed to the kernel, or `None` if a broker counts them.
    pub fn passed_flows(&self) -> Option<usize> {
        match &self.redirect {
            Redirect::Program { program, .. } => Some(program.flows()),
            Redirect::Broker(_) => None,
        }
    }

    /// Ends the exceptions of connections of which the kernel has no socket any more. A broker does that by itself. To be
    /// called every few seconds in the network namespace of the device.
    ///
    /// # Errors
    /// Those of `sock_diag(7)`.
    pub fn sweep_flows(&self) -> io::Result<()> {
        match &self.redirect {
            Redirect::Program { program, .. } => program.sweep_flows(),
            Redirect::Broker(_) => Ok(()),
        }
    }

    /// Gives a frame to the kernel as if the device had received it.
    ///
    /// # Errors
    /// The kernel is older than Linux 5.18, or the frame is too long: 3,000 bytes at most, and 1,800 with a broker.
    pub fn inject(&self, frame: &[u8]) -> io::Result<()> {
        match &self.redirect {
            Redirect::Program { program, index } => program.inject(*index, frame),
            Redirect::Broker(broker) => broker.inject(frame),
        }
    }
}
