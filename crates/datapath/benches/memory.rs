//! The memory of an idle connection in the whole datapath: stack, observers, epoll entry, the application's handle.
//!
//! It counts the allocations for 10,000 connections at both ends, after each has carried a request and its response,
//! including the growth of tables. Half of that belongs to one end.
//!
//! `cargo bench -p abey-datapath --bench memory`

mod common;

use std::alloc::System;
use std::time::Duration;

use abey_datapath::Interest;
use abey_nic::MemoryShape;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const CONNECTIONS: usize = 10_000;

fn main() {
    let (client, server) = common::hosts(MemoryShape::default());
    let (here, there) = (client.epoll(), server.epoll());
    // The state of threads and the first growth of tables do not count.
    drop(common::connect(&client, &server, 1));
    let region = Region::new(ALLOCATOR);
    let (ours, theirs) = common::connect(&client, &server, CONNECTIONS);
    for (token, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        here.add(ours, token as u64, Interest::IN).expect("new");
        there.add(theirs, token as u64, Interest::IN).expect("new");
    }
    let mut events = Vec::new();
    let mut next = |epoll: &abey_datapath::Epoll| {
        assert_eq!(epoll.wait(&mut events, 1, Some(Duration::from_secs(10))).expect("a wait"), 1, "lost");
        events[0].token as usize
    };
    let mut buffer = [0; 64];
    for stream in &ours {
        stream.write_all(&[7; 64]).expect("written");
        let stream = &theirs[next(&there)];
        stream.read_exact(&mut buffer).expect("a request");
        stream.write_all(&buffer).expect("written");
        ours[next(&here)].read_exact(&mut buffer).expect("a response");
    }
    // Until the last acknowledgements have been sent.
    std::thread::sleep(Duration::from_millis(300));
    let change = region.change();
    let held = change.bytes_allocated as isize - change.bytes_deallocated as isize;
    let blocks = change.allocations as isize - change.deallocations as isize;
    let ends = 2.0 * CONNECTIONS as f64;
    println!(
        "memory per idle connection, one end: {:.0} bytes in {:.1} blocks (limit 2048)",
        held as f64 / ends,
        blocks as f64 / ends
    );
}
