//! What a handed-over connection needs of the owner of the XDP program, which may be a broker.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use super::offers::Handshake;
use super::ports::{Ports, Redirect};
use crate::repair::{self, RepairState};

impl Ports {
    /// Makes a kernel socket one of a connection, in repair mode ([`repair::begin`]). The connection's segments are redirected
    /// all the same until [`Self::pass_flow`]. After an error the socket is as it was before.
    ///
    /// # Errors
    /// Those of [`repair::begin`]; the broker has ended.
    pub fn begin_repair(&self, socket: BorrowedFd<'_>, state: &RepairState) -> io::Result<()> {
        match &self.redirect {
            Redirect::Program { program, .. } => {
                program.hold_flow(state.local, state.remote)?;
                repair::begin(socket, state).inspect_err(|_| {
                    let _ = repair::undo(socket, state.reuse_address);
                    let _ = program.release_flow(state.local, state.remote);
                })
            }
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

    /// Sets whether the segments of a TCP connection of which the kernel has a socket are passed to it. They are from the
    /// beginning, and are not after [`Self::begin_repair`].
    ///
    /// # Errors
    /// When the kernel refuses, most likely because 4,096 connections are being handed over.
    pub fn pass_flow(&self, local: SocketAddr, remote: SocketAddr, on: bool) -> io::Result<()> {
        match &self.redirect {
            Redirect::Program { program, .. } if on => program.release_flow(local, remote),
            Redirect::Program { program, .. } => program.hold_flow(local, remote),
            Redirect::Broker(broker) => broker.pass_flow(local, remote, on),
        }
    }

    /// Returns whether the kernel can take [offers](Self::offer). The first call may take some milliseconds.
    pub fn can_offer(&self) -> bool {
        match &self.redirect {
            Redirect::Program { program, index } => program.prepare_offers(*index).is_ok(),
            Redirect::Broker(broker) => broker.prepare_offers().is_ok(),
        }
    }

    /// Lets the kernel's listener accept a connection from `local` to `remote`. `ack` is the frame with the segment that ended its
    /// handshake. Without it, that segment has still to arrive, at a queue that is not redirected any more.
    ///
    /// What the peer has sent after that segment has to be [injected](Self::inject). After an error nothing has changed.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`]: the kernel is older than Linux 6.9 or has no SYN cookies;
    /// [`io::ErrorKind::NotConnected`]: the listener's queue is full, or there is none; the broker has ended.
    pub fn offer(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
        handshake: &Handshake,
        ack: Option<&[u8]>,
    ) -> io::Result<()> {
        match &self.redirect {
            Redirect::Program { program, index } => program.offer(*index, (local, remote), handshake, ack),
            Redirect::Broker(broker) => broker.offer(local, remote, handshake, ack),
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
