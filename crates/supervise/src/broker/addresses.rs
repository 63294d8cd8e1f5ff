//! The addresses for which packets are redirected to a client's queues.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use abey_datapath::HostAddresses;
use abey_nic::broker::SharedNic;

/// Maximum number of addresses of a client.
const MAX_ADDRESSES: usize = 1024;

/// The served addresses of a client.
#[derive(Debug, Default)]
pub(super) struct ServedAddresses(BTreeSet<IpAddr>);

impl ServedAddresses {
    /// Sets whether an address, which the host must have, is served on the client's queues. Packets to others are not for
    /// this host, and a client must not receive them.
    pub(super) fn set(
        &mut self,
        (nic, host): (&SharedNic, Option<&mut HostAddresses>),
        queues: &[u32],
        address: IpAddr,
        on: bool,
    ) -> io::Result<()> {
        if !on {
            self.0.remove(&address);
            return nic.serve(address, queues, false);
        }
        if self.0.len() >= MAX_ADDRESSES {
            return Err(io::Error::from_raw_os_error(nix::libc::ENOBUFS));
        }
        if let Some(host) = host
            && !host.list()?.contains(&address)
        {
            return Err(io::Error::from_raw_os_error(nix::libc::EADDRNOTAVAIL));
        }
        nic.serve(address, queues, true)?;
        self.0.insert(address);
        Ok(())
    }

    /// Serves none of them any more: the client has returned its queues.
    pub(super) fn clear(&mut self, nic: &SharedNic, queues: &[u32]) {
        for address in std::mem::take(&mut self.0) {
            // If this fails, the queue without a socket passes its frames to the kernel all the same.
            let _ = nic.serve(address, queues, false);
        }
    }
}
