//! Two ends in one process: order, steering, masking, back-pressure, and an end that writes random values to the rings.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::{MemoryQueue, MemoryShape, pair};
use crate::ring::{Shared as _, SlotHeader, Word};
use crate::{Checksum, Frame, LinkState, QueuePair, Warning};

fn ends(queues: usize, slots: u32) -> (Vec<MemoryQueue>, Vec<MemoryQueue>) {
    let shape = MemoryShape { queues, slots, ..MemoryShape::default() };
    let (mut left, mut right) = pair(shape).expect("a pair");
    // The link came up, which interrupts every queue.
    for queue in left.iter_mut().chain(&mut right) {
        assert!(queue.acknowledge().expect("acknowledge"));
    }
    (left, right)
}

/// Returns a frame that is not IP, which goes to queue 0.
fn frame(number: u32) -> Frame {
    let mut bytes = vec![0xfe; 60 + number as usize % 1400];
    bytes[20..24].copy_from_slice(&number.to_le_bytes());
    Frame::from(&bytes[..])
}

/// Returns an IPv4 UDP frame from a port.
fn datagram(port: u16) -> Frame {
    let mut bytes = vec![0; 12];
    bytes.extend([0x08, 0x00, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend(port.to_be_bytes());
    bytes.extend([0, 53, 0, 8, 0, 0]);
    Frame::from(&bytes[..])
}

#[test]
fn frames_arrive_once_in_order_and_unchanged() {
    let (mut left, mut right) = ends(1, 64);
    let mut into = Frame::burst(32, 1500);
    let (mut sent, mut got) = (0, 0);
    while got < 2_000 {
        let batch: Vec<_> = (sent..(sent + 20).min(2_000)).map(frame).collect();
        sent += left[0].transmit(&batch).expect("transmit") as u32;
        left[0].kick().expect("kick");
        let count = right[0].receive(&mut into).expect("receive");
        for received in &into[..count] {
            assert_eq!(**received, *frame(got));
            got += 1;
        }
    }
    let (there, here) = (left[0].counters(), right[0].counters());
    assert_eq!((there.transmitted, here.received), (2_000, 2_000));
    assert_eq!(there.transmitted_bytes, here.received_bytes);
    assert_eq!((there.drops.total(), here.drops.total()), (0, 0));
}

#[test]
fn a_masked_peer_costs_no_system_call_and_an_armed_one_costs_one() {
    let (mut left, mut right) = ends(1, 64);
    let before = left[0].counters().system_calls;
    for number in 0..10 {
        left[0].transmit(&[frame(number)]).expect("transmit");
        left[0].kick().expect("kick");
    }
    assert_eq!(left[0].counters().system_calls, before, "the peer is masked");
    assert_eq!(left[0].counters().interrupts_suppressed, Some(10));
    assert!(right[0].unmask(), "work slipped in before the interrupt was armed");
    right[0].mask();
    let mut into = Frame::burst(32, 1500);
    assert_eq!(right[0].receive(&mut into).expect("receive"), 10);
    assert!(!right[0].unmask(), "nothing is left");
    for number in 0..5 {
        left[0].transmit(&[frame(number)]).expect("transmit");
        left[0].kick().expect("kick");
    }
    assert_eq!(left[0].counters().interrupts_raised, Some(1), "one interrupt for each time it was armed");
    assert_eq!(left[0].counters().system_calls, before + 1);
    assert!(right[0].acknowledge().expect("acknowledge"));
    assert!(!right[0].acknowledge().expect("acknowledge"), "and it is cleared");
}

#[test]
fn a_full_ring_pushes_back_and_interrupts_when_there_is_room() {
    let (mut left, mut right) = ends(1, 8);
    let batch: Vec<_> = (0..12).map(frame).collect();
    assert_eq!(left[0].transmit(&batch).expect("transmit"), 8);
    assert_eq!(left[0].counters().back_pressure, 1);
    assert!(!left[0].unmask(), "still full");
    let mut into = Frame::burst(4, 1500);
    assert_eq!(right[0].receive(&mut into).expect("receive"), 4);
    assert!(left[0].acknowledge().expect("acknowledge"), "room is an interrupt");
    assert!(left[0].unmask(), "and there is room");
    assert!(!left[0].unmask(), "which is reported once");
    assert_eq!(left[0].transmit(&batch[8..]).expect("transmit"), 4);
    assert_eq!(right[0].receive(&mut into).expect("receive"), 4);
    assert!(!left[0].acknowledge().expect("acknowledge"), "no queue waits for room now");
}

#[test]
fn flows_are_spread_and_keep_their_queue() {
    let (mut left, mut right) = ends(4, 256);
    let batch: Vec<_> = (0..200).map(datagram).collect();
    // From any queue.
    assert_eq!(left[0].transmit(&batch[..100]).expect("transmit"), 100);
    assert_eq!(left[3].transmit(&batch[100..]).expect("transmit"), 100);
    let mut into = Frame::burst(256, 1500);
    let mut total = 0;
    for (index, queue) in right.iter_mut().enumerate() {
        let count = queue.receive(&mut into).expect("receive");
        assert!(count > 20, "queue {index} has its share: {count}");
        assert!(into[..count].iter().all(|frame| left[0].link.rss.queue(frame) == index as u32));
        total += count;
    }
    assert_eq!(total, 200);
}

#[test]
fn frames_of_a_peer_that_has_ended_still_arrive() {
    let (mut left, mut right) = ends(1, 8);
    left[0].transmit(&[frame(1), frame(2)]).expect("transmit");
    right[0].link.set_down();
    assert_eq!(right[0].link(), LinkState::Down);
    assert!(right[0].acknowledge().expect("acknowledge"), "the end of the peer is an interrupt");
    assert_eq!(right[0].receive(&mut Frame::burst(4, 1500)).expect("receive"), 2);
    right[0].transmit(&[frame(3)]).expect("transmit");
    assert_eq!(right[0].counters().drops.link_down, 1);
}

#[test]
fn frames_that_cannot_be_sent_are_dropped_and_counted() {
    let (mut left, mut right) = ends(1, 8);
    let (short, long) = (Frame::from(&[0; 13][..]), Frame::from(&[0; 1515][..]));
    let mut marked = frame(1);
    marked.checksum = Checksum::NotNeeded;
    assert_eq!(left[0].transmit(&[short, long, marked.clone()]).expect("transmit"), 3);
    assert_eq!(left[0].counters().drops.transmit_length, 2);
    left[0].transmit(&[frame(2).with_checksum(Checksum::Partial)]).expect("transmit");
    assert_eq!(left[0].counters().drops.transmit_checksum, 1);
    let mut into = Frame::burst(4, 1500);
    assert_eq!(right[0].receive(&mut into).expect("receive"), 1);
    assert_eq!(into[0], marked, "and the state of the checksum is passed on");
    left[0].transmit(&[frame(900)]).expect("transmit");
    assert_eq!(right[0].receive(&mut [Frame::with_capacity(100)]).expect("receive"), 0);
    assert_eq!(right[0].counters().drops.buffer, 1);
}

#[test]
fn an_end_that_writes_random_values_only_loses_its_own_frames() {
    let (mut left, right) = ends(2, 16);
    let stop = Arc::new(AtomicBool::new(false));
    let scribbler = std::thread::spawn({
        let (session, stop) = (right[0].link.session().expect("a session"), stop.clone());
        move || {
            let mut random = Xoshiro256PlusPlus::seed_from_u64(4);
            while !stop.load(Ordering::Relaxed) {
                let queue = random.random_range(0..2);
                let rings = [session.receive[queue].clone(), session.ring(queue as u32).clone()];
                let ring = &rings[random.random_range(0..2)];
                let word = [Word::Produced, Word::Consumed, Word::Armed, Word::WantRoom][random.random_range(0..4)];
                let near = ring.load(word, Ordering::Relaxed).wrapping_add(random.random_range(0..40));
                let value = if random.random_bool(0.98) { near } else { random.random() };
                ring.store(word, value, Ordering::Relaxed);
                let header = SlotHeader { length: random.random_range(0..3_000), flags: random.random() };
                ring.write_slot(random.random(), header, &[random.random(); 64]);
            }
        }
    });
    let mut into = Frame::burst(8, 1500);
    let mut random = Xoshiro256PlusPlus::seed_from_u64(5);
    for _ in 0..30_000 {
        let queue = &mut left[random.random_range(0..2)];
        let count = queue.receive(&mut into).expect("receive");
        assert!(into[..count].iter().all(|frame| (14..=1514).contains(&frame.len())));
        let taken = queue.transmit(&[datagram(random.random()), frame(random.random_range(0..1000))]);
        assert!(taken.expect("transmit") <= 2);
        queue.kick().expect("kick");
        queue.unmask();
        queue.mask();
        queue.acknowledge().expect("acknowledge");
    }
    stop.store(true, Ordering::Relaxed);
    scribbler.join().expect("the scribbler ends");
    let mut counters = left[0].counters();
    counters += left[1].counters();
    assert!(counters.drops.ring_index + counters.drops.receive_length > 0, "{counters:?}");
    assert_eq!(left[0].warning(), Some(Warning::CorruptRing { device: "pair".to_owned() }));
}

#[test]
fn invalid_indices_and_invalid_lengths_have_counters_of_their_own() {
    let (mut left, mut right) = ends(1, 16);
    let mut into = Frame::burst(8, 1500);
    left[0].transmit(&[frame(1), frame(2)]).expect("transmit");
    let ring = left[0].link.session().expect("a session").ring(0).clone();
    ring.write_slot(0, SlotHeader { length: 1515, flags: 0 }, &[]);
    assert_eq!(right[0].receive(&mut into).expect("receive"), 1, "the frame behind it is sound");
    assert_eq!(*into[0], *frame(2));
    assert_eq!(right[0].counters().drops.receive_length, 1);
    ring.store(Word::Produced, 1_000, Ordering::Relaxed);
    assert_eq!(right[0].receive(&mut into).expect("receive"), 0);
    assert_eq!(right[0].counters().drops.ring_index, 1);
    assert!(!right[0].unmask(), "an invalid index is reported once");
    ring.store(Word::Consumed, 999, Ordering::Relaxed);
    let batch: Vec<_> = (0..20).map(frame).collect();
    assert_eq!(left[0].transmit(&batch).expect("transmit"), 14, "frames that the peer had not taken are still there");
    assert_eq!((left[0].counters().drops.ring_index, left[0].counters().back_pressure), (1, 1));
    assert!(!left[0].unmask(), "and there is no room either");
}
