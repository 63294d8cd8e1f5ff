//! The shard in which each outgoing connection lives, for a NIC that may deliver the answers on any queue.
//!
//! Usually a connection's local port is chosen so that the NIC delivers the answers to the connection's shard. That needs
//! the NIC's steering, which AF_XDP does not reveal. Without it, the shard that receives a frame forwards it to the
//! connection's shard.

use std::sync::atomic::{AtomicU16, Ordering};

use abey_delivery::NapiIndex;

/// The shards of local TCP ports: for each port the shard's index plus one, or 0 if no connection was made from there.
pub(crate) struct PortOwners(Box<[AtomicU16]>);

impl std::fmt::Debug for PortOwners {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = self.0.iter().filter(|owner| owner.load(Ordering::Relaxed) != 0).count();
        formatter.debug_struct("PortOwners").field("ports", &count).finish()
    }
}

impl PortOwners {
    pub(crate) fn new() -> Self {
        Self((0..=u16::MAX).map(|_| AtomicU16::new(0)).collect())
    }

    /// Sets the shard of connections from `port`; `None` if there are no more.
    pub(crate) fn set(&self, port: u16, shard: Option<NapiIndex>) {
        let owner = shard.map_or(0, |shard| shard.0 as u16 + 1);
        self.0[usize::from(port)].store(owner, Ordering::Release);
    }

    /// Returns the shard of connections from `port`.
    pub(crate) fn get(&self, port: u16) -> Option<NapiIndex> {
        let owner = self.0[usize::from(port)].load(Ordering::Acquire);
        Some(NapiIndex(u32::from(owner.checked_sub(1)?)))
    }

    /// Returns the shard to which a frame that arrived in `here` must be forwarded, if any.
    pub(super) fn forward_to(&self, frame: &[u8], here: NapiIndex) -> Option<NapiIndex> {
        let owner = self.get(destination_port(frame)?)?;
        (owner != here).then_some(owner)
    }
}

/// Returns the destination port of a TCP segment that is not a fragment.
fn destination_port(frame: &[u8]) -> Option<u16> {
    const TCP: u8 = 6;
    let transport = match frame.get(12..14)? {
        [0x08, 0x00] if *frame.get(23)? == TCP && frame[20] & 0x1f == 0 && frame[21] == 0 => {
            14 + usize::from(frame[14] & 15) * 4
        }
        [0x86, 0xdd] if *frame.get(20)? == TCP => 14 + 40,
        _ => return None,
    };
    let port = frame.get(transport + 2..transport + 4)?;
    Some(u16::from_be_bytes([port[0], port[1]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_forwarded_to_the_shard_that_connected() {
        let mut v4 = vec![0; 14 + 20 + 20];
        (v4[12], v4[14], v4[23], v4[37]) = (0x08, 0x45, 6, 80);
        let mut v6 = vec![0; 14 + 40 + 20];
        (v6[12], v6[13], v6[20], v6[57]) = (0x86, 0xdd, 6, 80);
        let owners = PortOwners::new();
        for frame in [&v4, &v6] {
            assert_eq!(owners.forward_to(frame, NapiIndex(0)), None);
            owners.set(80, Some(NapiIndex(1)));
            assert_eq!(owners.forward_to(frame, NapiIndex(0)), Some(NapiIndex(1)));
            assert_eq!(owners.forward_to(frame, NapiIndex(1)), None);
            for cut in 0..frame.len() {
                owners.forward_to(&frame[..cut], NapiIndex(0));
            }
            owners.set(80, None);
        }
        owners.set(80, Some(NapiIndex(1)));
        v4[21] = 1;
        assert_eq!(owners.forward_to(&v4, NapiIndex(0)), None, "a later fragment has no ports");
    }
}
