//! Choosing the own end of a connection so that the NIC brings its packets to the wanted shard.

use std::net::{IpAddr, SocketAddr};

use super::Shared;
use crate::error::OpenError;

impl Shared {
    /// The own address for packets to `remote`: one on the same prefix, else the first of the same family.
    pub(crate) fn source_for(&self, remote: IpAddr) -> Option<IpAddr> {
        let same_family = || self.addresses.iter().filter(move |(own, _)| own.is_ipv4() == remote.is_ipv4());
        let on_link = same_family().find(|(own, prefix)| shares_prefix(*own, remote, *prefix));
        on_link.or_else(|| same_family().next()).map(|(own, _)| *own)
    }

    /// Says of a local port whether answers to it arrive at this shard.
    pub(crate) fn steering(
        &self,
        remote: SocketAddr,
        local: Option<IpAddr>,
        shard: usize,
    ) -> Result<impl Fn(u16) -> bool + use<'_>, OpenError> {
        let several = self.shards.len() > 1 || self.is_part;
        let handed_over = self.kernel.as_ref().is_some_and(|kernel| kernel.handover.is_some());
        if several && self.rss.is_none() && !handed_over {
            return Err(OpenError::NoSteering(remote));
        }
        Ok(move |port: u16| match (&self.rss, local) {
            // What counts is where the answers arrive, which go from them to us.
            (Some(rss), Some(local)) if several => {
                rss.queue_of_flow(remote, SocketAddr::new(local, port)) as usize == shard
            }
            _ => true,
        })
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn shares_prefix(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    let differing = octets(a).into_iter().zip(octets(b)).enumerate().find(|(_, (a, b))| a != b);
    differing.is_none_or(|(at, (a, b))| at as u32 * 8 + (a ^ b).leading_zeros() >= u32::from(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        assert!(shares_prefix(ip("10.0.0.1"), ip("10.0.0.200"), 24));
        assert!(!shares_prefix(ip("10.0.0.1"), ip("10.0.1.1"), 24));
        assert!(shares_prefix(ip("10.0.0.1"), ip("10.0.1.1"), 23));
        assert!(shares_prefix(ip("fd00::1"), ip("fd00::2"), 64) && shares_prefix(ip("::1"), ip("fd00::2"), 0));
    }
}
