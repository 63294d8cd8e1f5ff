//! Cost of the shared-memory NIC: `cargo bench -p abey-nic` (pin with `taskset` for one CPU; two threads otherwise).
//!
//! One-way: frames per second from one thread to another, both polling. Ping-pong: round trips of one frame, both
//! polling. Sleeping ping-pong: the same with an interrupt for every frame. Mask and unmask: on an idle queue.

use std::time::{Duration, Instant};

use abey_nic::{Frame, MemoryQueue, MemoryShape, QueuePair, pair};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

const RUN: Duration = Duration::from_secs(1);

fn ends(mtu: usize) -> (MemoryQueue, MemoryQueue) {
    let (mut left, mut right) = pair(MemoryShape { mtu, ..MemoryShape::default() }).expect("a pair");
    (left.remove(0), right.remove(0))
}

/// Sends frames of `length` bytes in bursts of `burst` and returns the frames received per second.
fn one_way(length: usize, burst: usize) -> f64 {
    let (mut left, mut right) = ends(9_000);
    let frames = vec![Frame::from(&vec![0xfe; length][..]); burst];
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            while begin.elapsed() < RUN {
                // Reading the clock costs as much as a short frame.
                for _ in 0..16 {
                    if left.transmit(&frames).expect("transmit") < frames.len() {
                        std::hint::spin_loop();
                    }
                    left.kick().expect("kick");
                }
            }
            left.counters().transmitted
        });
        let mut into = Frame::burst(64, 9_000);
        while !sender.is_finished() {
            for _ in 0..16 {
                if right.receive(&mut into).expect("receive") == 0 {
                    std::hint::spin_loop();
                }
            }
        }
        while right.receive(&mut into).expect("receive") > 0 {}
        assert_eq!(right.counters().received, sender.join().expect("the sender ends"));
    });
    right.counters().received as f64 / begin.elapsed().as_secs_f64()
}

/// Sends one frame back and forth and returns round trips per second and system calls per round trip.
fn ping_pong(sleeping: bool) -> (f64, f64) {
    let (mut left, mut right) = ends(1_500);
    let frame = [Frame::from(&[0xfe; 60][..])];
    let begin = Instant::now();
    let end = begin + RUN;
    let turn = |queue: &mut MemoryQueue, into: &mut [Frame]| loop {
        if queue.receive(into).expect("receive") > 0 {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        if sleeping {
            if !queue.unmask() {
                let mut polled = [PollFd::new(std::os::fd::AsFd::as_fd(queue), PollFlags::POLLIN)];
                poll(&mut polled, PollTimeout::from(100_u16)).expect("poll");
                queue.acknowledge().expect("acknowledge");
            }
            queue.mask();
        }
    };
    let trips = std::thread::scope(|scope| {
        let frame = &frame;
        let turn = &turn;
        scope.spawn(move || {
            let mut into = Frame::burst(4, 1_500);
            while turn(&mut right, &mut into) {
                right.transmit(frame).expect("transmit");
                right.kick().expect("kick");
            }
        });
        let mut into = Frame::burst(4, 1_500);
        let mut trips = 0_u64;
        loop {
            left.transmit(frame).expect("transmit");
            left.kick().expect("kick");
            if !turn(&mut left, &mut into) {
                return trips;
            }
            trips += 1;
        }
    });
    (trips as f64 / begin.elapsed().as_secs_f64(), left.counters().system_calls as f64 / trips as f64)
}

/// Returns the time of a mask and an unmask together, in nanoseconds.
fn mask_and_unmask() -> f64 {
    let (_left, mut right) = ends(1_500);
    let rounds = 5_000_000;
    let begin = Instant::now();
    for _ in 0..rounds {
        right.mask();
        assert!(!std::hint::black_box(right.unmask()));
    }
    begin.elapsed().as_nanos() as f64 / f64::from(rounds)
}

fn main() {
    println!("one way, two threads");
    for (length, burst) in [(60, 1), (60, 32), (1_514, 1), (1_514, 32), (9_014, 32)] {
        let rate = one_way(length, burst);
        let gigabits = rate * length as f64 * 8.0 / 1e9;
        println!("  {length:>5} bytes, bursts of {burst:>2}: {:>7.2} M frames/s, {gigabits:>6.1} Gbit/s", rate / 1e6);
    }
    for (what, sleeping) in [("polling", false), ("sleeping", true)] {
        let (rate, calls) = ping_pong(sleeping);
        println!("ping-pong, {what}: {rate:.0} round trips/s, {calls:.2} NIC system calls each at one end");
    }
    println!("mask and unmask: {:.1} ns", mask_and_unmask());
}
