//! Flows, and the secret keys of hashes over them.

use core::{
    hash::{Hash, Hasher},
    net::{IpAddr, SocketAddr},
};

use siphasher::sip::SipHasher13;

/// Four-tuple of a connection; `local` is this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flow {
    pub local: IpAddr,
    pub remote: IpAddr,
    pub local_port: u16,
    pub remote_port: u16,
}

impl Flow {
    pub(crate) const fn local(&self) -> SocketAddr {
        SocketAddr::new(self.local, self.local_port)
    }

    pub(crate) const fn remote(&self) -> SocketAddr {
        SocketAddr::new(self.remote, self.remote_port)
    }

    /// Returns the length of the IP header in bytes.
    pub(crate) const fn ip_header(&self) -> usize {
        if self.local.is_ipv4() { 20 } else { 40 }
    }
}

/// Key of a hash that an attacker must not predict.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Secret([u64; 2]);

impl Secret {
    /// Derives the `index`-th secret of a stack from its seed.
    pub(crate) fn derive(seed: u64, index: u64) -> Self {
        let half = |number: u64| {
            let mut hasher = SipHasher13::new_with_keys(seed, index);
            hasher.write_u64(number);
            hasher.finish()
        };
        Self([half(0), half(1)])
    }

    /// Returns the SipHash of `value`.
    pub(crate) fn hash(&self, value: impl Hash) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.0[0], self.0[1]);
        value.hash(&mut hasher);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_one_seed_differ_and_repeat() {
        assert_ne!(Secret::derive(1, 0).hash(7), Secret::derive(1, 1).hash(7));
        assert_eq!(Secret::derive(1, 0).hash(7), Secret::derive(1, 0).hash(7));
    }
}
