//! Requests: key, operation, size, and bytes.

use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;

use std::net::SocketAddr;

use crate::config::{HttpGet, Memcached, RequestResponse, Workload, digits};
use crate::memcached::Dialect;
use crate::schedule::random_stream;
use crate::{http, memcached, redis};

/// The kind of a request, which decides the kind of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Get,
    Set,
    Exchange,
}

/// The parameters and bytes of requests, shared by all threads of a load.
#[derive(Debug)]
pub(crate) enum Material {
    Values {
        dialect: Dialect,
        mix: Memcached,
        keys: Keys,
        filler: Vec<u8>,
    },
    /// The same request every time.
    Same {
        request: Vec<u8>,
    },
}

impl Material {
    /// Returns the material of requests to a server at `target`.
    pub(crate) fn new(workload: &Workload, target: SocketAddr) -> Self {
        match workload {
            Workload::Memcached(mix) => Self::values(Dialect::Memcached, mix),
            Workload::Redis(mix) => Self::values(Dialect::Redis, mix),
            Workload::Http(HttpGet { path }) => {
                let mut request = Vec::new();
                http::append_get(&mut request, &target.to_string(), path);
                Self::Same { request }
            }
            Workload::RequestResponse(RequestResponse { request_bytes, .. }) => {
                Self::Same { request: (b'a'..=b'z').cycle().take(*request_bytes).collect() }
            }
        }
    }

    fn values(dialect: Dialect, mix: &Memcached) -> Self {
        Self::Values {
            dialect,
            mix: mix.clone(),
            keys: Keys::new(mix),
            filler: (b'a'..=b'z').cycle().take(mix.value_size.max_value_size()).collect(),
        }
    }

    /// Appends a request drawn with `rng`.
    pub(crate) fn append_request(&self, out: &mut Vec<u8>, rng: &mut Xoshiro256PlusPlus) -> Kind {
        match self {
            Self::Values { dialect, mix, keys, filler } => {
                let key = keys.get(rng.random_range(0..keys.len()));
                if rng.random::<f64>() < mix.set_ratio {
                    dialect.append_set(out, key, &filler[..mix.value_size.value_size(rng)]);
                    Kind::Set
                } else {
                    dialect.append_get(out, key);
                    Kind::Get
                }
            }
            Self::Same { request } => {
                out.extend_from_slice(request);
                Kind::Exchange
            }
        }
    }

    /// Returns the number of keys to store before a measurement.
    pub(crate) fn stored_keys(&self) -> usize {
        match self {
            Self::Values { keys, .. } => keys.len(),
            Self::Same { .. } => 0,
        }
    }

    /// Appends the `set` of key number `key`. Must not be called for workloads without keys.
    pub(crate) fn append_store(&self, out: &mut Vec<u8>, key: usize, rng: &mut Xoshiro256PlusPlus) {
        let Self::Values { dialect, mix, keys, filler } = self else { unreachable!("this workload stores no keys") };
        dialect.append_set(out, keys.get(key), &filler[..mix.value_size.value_size(rng)]);
    }
}

impl Dialect {
    fn append_get(self, out: &mut Vec<u8>, key: &[u8]) {
        match self {
            Self::Memcached => memcached::append_get(out, key),
            Self::Redis => redis::append_get(out, key),
        }
    }

    fn append_set(self, out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
        match self {
            Self::Memcached => memcached::append_set(out, key, value),
            Self::Redis => redis::append_set(out, key, value),
        }
    }
}

/// The key space: the decimal numbers from 0, zero-padded to their sizes.
#[derive(Debug)]
pub(crate) struct Keys {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Keys {
    fn new(mix: &Memcached) -> Self {
        let mut keys = Self { bytes: Vec::new(), ends: Vec::with_capacity(mix.keys) };
        let needed = digits(mix.keys);
        // A key's size belongs to the key: independent of the run's seed, so that another run finds the same keys.
        let mut rng = random_stream(0, 0, 2);
        for key in 0..mix.keys {
            let size = mix.key_size.key_size(rng.random()).max(needed);
            let number = key.to_string();
            keys.bytes.extend(std::iter::repeat_n(b'0', size - number.len()));
            keys.bytes.extend_from_slice(number.as_bytes());
            keys.ends.push(u32::try_from(keys.bytes.len()).expect("at most 10 million keys of 250 bytes"));
        }
        keys
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn get(&self, key: usize) -> &[u8] {
        let start = if key == 0 { 0 } else { self.ends[key - 1] as usize };
        &self.bytes[start..self.ends[key] as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist::SizeDist;

    #[test]
    fn keys_are_distinct_and_of_their_sizes() {
        for (size, dist) in [(30, SizeDist::Fixed(30)), (4, SizeDist::Fixed(4)), (36, SizeDist::Etc)] {
            let keys = Keys::new(&Memcached { key_size: dist, keys: 10_000, ..Memcached::default() });
            let all: std::collections::HashSet<_> = (0..keys.len()).map(|k| keys.get(k).to_vec()).collect();
            assert_eq!(all.len(), 10_000);
            assert_eq!(keys.bytes.len().div_ceil(10_000), size.max(4) + usize::from(dist == SizeDist::Etc));
            assert!(all.iter().all(|key| (4..=250).contains(&key.len()) && key.iter().all(u8::is_ascii_digit)));
        }
    }

    #[test]
    fn the_share_of_sets_is_as_asked() {
        let material = Material::new(
            &Workload::Memcached(Memcached { set_ratio: 0.25, ..Memcached::default() }),
            ([127, 0, 0, 1], 1).into(),
        );
        let (mut rng, mut out) = (random_stream(1, 0, 1), Vec::new());
        let sets = (0..10_000).filter(|_| material.append_request(&mut out, &mut rng) == Kind::Set).count();
        // Standard deviation 43.
        assert!((2_200..2_800).contains(&sets), "{sets}");
    }
}
