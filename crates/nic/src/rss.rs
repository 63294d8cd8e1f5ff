//! Receive side scaling: the Toeplitz hash of a frame's flow chooses the receiver's queue.
//!
//! The function, its input (addresses and ports in network order) and its test vectors are those Microsoft publishes
//! in "RSS hashing types" and "Verifying the RSS hash calculation".

use std::net::{IpAddr, SocketAddr};

use crate::headers::Flow;

/// Length of a key in bytes: enough for two IPv6 addresses, two ports and the 32-bit window.
pub const KEY_BYTES: usize = 40;

/// The key of the published test vectors.
pub const MICROSOFT_KEY: [u8; KEY_BYTES] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b,
    0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac,
    0x01, 0xfa,
];

/// A key with a period of 16 bits, with which both directions of a flow have the same hash. A connection is then on queue
/// pairs of the same number at both ends, and each ring has one busy producer.
pub const SYMMETRIC_KEY: [u8; KEY_BYTES] = {
    let mut key = [0; KEY_BYTES];
    let mut at = 0;
    while at < KEY_BYTES {
        key[at] = if at % 2 == 0 { 0x6d } else { 0x5a };
        at += 1;
    }
    key
};

/// Maximum length of the input: two IPv6 addresses and two ports.
const INPUT_BYTES: usize = 36;

/// Entries of the indirection table from hash to queue.
const TABLE: u32 = 128;

/// A key, with tables for hashing a byte at a time, and a number of queues.
#[derive(Clone)]
pub struct Rss {
    key: [u8; KEY_BYTES],
    queues: u32,
    /// The part of the hash for each position and value of an input byte.
    parts: Box<[[u32; 256]; INPUT_BYTES]>,
}

impl Rss {
    /// Computes the tables of a key, for `queues` queues.
    ///
    /// # Panics
    /// When `queues` is 0.
    pub fn new(key: [u8; KEY_BYTES], queues: u32) -> Self {
        assert!(queues > 0, "steering needs a queue");
        let mut parts: Box<[[u32; 256]; INPUT_BYTES]> =
            vec![[0; 256]; INPUT_BYTES].into_boxed_slice().try_into().expect("INPUT_BYTES rows");
        for (position, row) in parts.iter_mut().enumerate() {
            // The 32-bit window of the key that bit 0 (the highest) of this byte selects, and the bits that follow.
            let window =
                u64::from_be_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|at| key.get(position + at).map_or(0, |b| *b)));
            for (value, part) in row.iter_mut().enumerate() {
                for bit in (0..8).filter(|bit| value & (0x80 >> bit) != 0) {
                    *part ^= (window >> (32 - bit)) as u32;
                }
            }
        }
        Self { key, queues, parts }
    }

    /// Returns the key.
    pub fn key(&self) -> &[u8; KEY_BYTES] {
        &self.key
    }

    /// Returns the Toeplitz hash of up to 36 bytes: source address, destination address, and source and destination port
    /// if there are ports, in network order. Further bytes are ignored.
    pub fn hash(&self, input: &[u8]) -> u32 {
        input.iter().zip(self.parts.iter()).fold(0, |hash, (&byte, row)| hash ^ row[usize::from(byte)])
    }

    /// Returns the queue of a hash, through an indirection table of 128 entries, filled round-robin.
    pub fn queue_of_hash(&self, hash: u32) -> u32 {
        (hash % TABLE) % self.queues
    }

    /// Returns the queue on which TCP and UDP from `source` arrive at `destination`. A client chooses its port by this, to
    /// get replies on a certain queue.
    ///
    /// # Panics
    /// When one address is of IPv4 and the other of IPv6.
    pub fn queue_of_flow(&self, source: SocketAddr, destination: SocketAddr) -> u32 {
        let ports = [source.port().to_be_bytes(), destination.port().to_be_bytes()].concat();
        match (source.ip(), destination.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                self.queue_of_hash(self.hash(&[&from.octets()[..], &to.octets(), &ports].concat()))
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                self.queue_of_hash(self.hash(&[&from.octets()[..], &to.octets(), &ports].concat()))
            }
            _ => panic!("no flow from {source} to {destination}"),
        }
    }

    /// Returns the queue on which a frame arrives: by addresses and ports for TCP and UDP, by addresses for fragments and
    /// other transports, queue 0 for other protocols than IP.
    pub fn queue(&self, frame: &[u8]) -> u32 {
        if self.queues == 1 {
            return 0;
        }
        let Some(flow) = Flow::of(frame) else { return 0 };
        let mut input = [0; INPUT_BYTES];
        let addresses = flow.addresses.len();
        input[..addresses].copy_from_slice(flow.addresses);
        let mut length = addresses;
        if let Some(ports) = flow.ports() {
            input[length..length + 4].copy_from_slice(ports);
            length += 4;
        }
        self.queue_of_hash(self.hash(&input[..length]))
    }
}

impl std::fmt::Debug for Rss {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Rss").field("queues", &self.queues).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Published test vectors: source, its port, destination, its port, hash of the addresses, hash with ports.
    const PUBLISHED: [(&str, u16, &str, u16, u32, u32); 8] = [
        ("66.9.149.187", 2794, "161.142.100.80", 1766, 0x323e_8fc2, 0x51cc_c178),
        ("199.92.111.2", 14230, "65.69.140.83", 4739, 0xd718_262a, 0xc626_b0ea),
        ("24.19.198.95", 12898, "12.22.207.184", 38024, 0xd2d0_a5de, 0x5c2b_394a),
        ("38.27.205.30", 48228, "209.142.163.6", 2217, 0x8298_9176, 0xafc7_327f),
        ("153.39.163.191", 44251, "202.188.127.2", 1303, 0x5d18_09c5, 0x10e8_28a2),
        ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766, 0x2cc1_8cd5, 0x4020_7d3d),
        ("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739, 0x0f0c_461c, 0xdde5_1bbf),
        ("3ffe:1900:4545:3:200:f8ff:fe21:67cf", 44251, "fe80::200:f8ff:fe21:67cf", 38024, 0x4b61_e985, 0x02d1_feef),
    ];

    fn bytes(address: &str) -> Vec<u8> {
        match address.parse().expect("an address") {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        }
    }

    fn input(row: &(&str, u16, &str, u16, u32, u32)) -> (Vec<u8>, Vec<u8>) {
        let addresses = [bytes(row.0), bytes(row.2)].concat();
        let ports = [row.1.to_be_bytes(), row.3.to_be_bytes()].concat();
        (addresses.clone(), [addresses, ports].concat())
    }

    #[test]
    fn the_published_test_vectors() {
        let rss = Rss::new(MICROSOFT_KEY, 4);
        for row in &PUBLISHED {
            let (addresses, all) = input(row);
            assert_eq!((rss.hash(&addresses), rss.hash(&all)), (row.4, row.5), "{row:?}");
        }
    }

    /// Returns a frame of a flow.
    fn frame(source: &str, source_port: u16, destination: &str, destination_port: u16, protocol: u8) -> Vec<u8> {
        let mut frame = vec![0; 12];
        if source.contains(':') {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, protocol, 64]);
        } else {
            frame.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0]);
        }
        frame.extend([bytes(source), bytes(destination)].concat());
        frame.extend([source_port.to_be_bytes(), destination_port.to_be_bytes()].concat());
        frame.extend([0; 16]);
        frame
    }

    #[test]
    fn frames_are_steered_by_their_headers() {
        let rss = Rss::new(MICROSOFT_KEY, 8);
        for (source, sport, destination, dport, by_address, by_port) in PUBLISHED {
            let tcp = frame(source, sport, destination, dport, 6);
            assert_eq!(rss.queue(&tcp), rss.queue_of_hash(by_port));
            let socket = |address: &str, port| SocketAddr::new(address.parse().expect("an address"), port);
            let flow = rss.queue_of_flow(socket(source, sport), socket(destination, dport));
            assert_eq!(rss.queue(&tcp), flow);
            assert_eq!(rss.queue(&frame(source, sport, destination, dport, 1)), rss.queue_of_hash(by_address));
            for length in 0..tcp.len() {
                assert!(rss.queue(&tcp[..length]) < 8, "{length} bytes");
            }
        }
        let mut fragment = frame("66.9.149.187", 2794, "161.142.100.80", 1766, 17);
        fragment[20] = 0x20;
        assert_eq!(rss.queue(&fragment), rss.queue_of_hash(0x323e_8fc2));
        assert_eq!(rss.queue(&[0xff; 60]), 0, "not IP");
    }

    #[test]
    fn both_directions_have_one_queue_with_the_symmetric_key() {
        let rss = Rss::new(SYMMETRIC_KEY, 4);
        let mut seen = [0; 4];
        for port in 0..4000_u16 {
            let there = frame("10.0.0.1", 20_000 + port, "10.0.0.2", 11_211, 6);
            let back = frame("10.0.0.2", 11_211, "10.0.0.1", 20_000 + port, 6);
            assert_eq!(rss.queue(&there), rss.queue(&back));
            seen[rss.queue(&there) as usize] += 1;
        }
        assert!(seen.iter().all(|&count| count > 700), "spread over the queues: {seen:?}");
    }
}
