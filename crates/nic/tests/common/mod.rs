//! What the tests with real devices share: namespaces of their own, and UDP over IPv4 by hand.
#![allow(dead_code, unused_imports, reason = "each test program uses a part of this")]

use std::time::Instant;

use abey_nic::{Frame, QueuePair};

pub(crate) use abey_testbed::namespace::*;
pub(crate) use abey_testbed::network::*;

/// One side of a UDP conversation.
#[derive(Clone, Copy)]
pub(crate) struct Side {
    pub(crate) mac: [u8; 6],
    pub(crate) address: [u8; 4],
    pub(crate) port: u16,
}

/// A UDP datagram over IPv4, without a UDP checksum (0 means none, RFC 768).
pub(crate) fn udp(from: Side, to: Side, payload: &[u8]) -> Frame {
    let mut bytes = [to.mac, from.mac].concat();
    bytes.extend([0x08, 0x00]);
    let mut header = vec![0x45, 0];
    header.extend((28 + payload.len() as u16).to_be_bytes());
    header.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    header.extend([from.address, to.address].concat());
    let sum: u32 = header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend(header);
    bytes.extend([from.port.to_be_bytes(), to.port.to_be_bytes()].concat());
    bytes.extend((8 + payload.len() as u16).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(payload);
    Frame::from(&bytes[..])
}

/// Destination port and payload of a UDP datagram over IPv4 without options.
pub(crate) fn parse_udp(frame: &[u8]) -> Option<(u16, Vec<u8>)> {
    let is_udp = frame.len() >= 42 && frame[12..14] == [0x08, 0x00] && frame[23] == 17;
    is_udp.then(|| {
        let length = usize::from(u16::from_be_bytes([frame[38], frame[39]]));
        (u16::from_be_bytes([frame[36], frame[37]]), frame[42..34 + length].to_vec())
    })
}

/// Receives until `count` UDP datagrams came, sleeping as a driver does, and gives the frames.
pub(crate) fn receive_udp(queues: &mut [Box<dyn QueuePair>], count: usize) -> Vec<(usize, Frame)> {
    let end = Instant::now() + HANG_LIMIT;
    let mut into = Frame::burst(16, 1500);
    let mut got = Vec::new();
    while got.len() < count {
        assert!(Instant::now() < end, "{} of {count} datagrams: {:?}", got.len(), queues[0].counters());
        let mut idle = true;
        for (index, queue) in queues.iter_mut().enumerate() {
            let received = queue.receive(&mut into).expect("receive");
            idle &= received == 0;
            got.extend(into[..received].iter().filter(|frame| parse_udp(frame).is_some()).map(|f| (index, f.clone())));
        }
        if idle && !queues.iter_mut().any(|queue| queue.unmask()) {
            let mut polled: Vec<_> = queues
                .iter()
                .map(|queue| nix::poll::PollFd::new(queue.as_fd(), nix::poll::PollFlags::POLLIN))
                .collect();
            nix::poll::poll(&mut polled, nix::poll::PollTimeout::from(100_u16)).expect("poll");
        }
        for queue in &mut *queues {
            queue.mask();
        }
    }
    got
}
