//! The shared-memory NIC, with the datapath at both ends in one thread.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use abey_bench::Cpus;
use abey_datapath::{Event, Interest, Runtime, UdpSocket};
use abey_delivery::Mode;
use abey_loadgen::pin_to_cpus;
use abey_nic::{MemoryQueue, MemoryShape, QueuePair, pair};

use super::calls::batch;
use super::{CostError, Costs, Effort, LOW, Operation};

/// Datagrams of a batch.
const DATAGRAMS: u32 = 64;
/// A small request.
const PAYLOAD: [u8; 48] = [7; 48];

fn failed(error: impl std::fmt::Display) -> CostError {
    CostError::Memory(error.to_string())
}

const fn address(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
}

fn host(name: &str, last: u8, queues: Vec<MemoryQueue>, cpu: u32) -> Result<Runtime, CostError> {
    let queues = queues.into_iter().map(|queue| Box::new(queue) as Box<dyn QueuePair>).collect();
    let builder = Runtime::builder().queues(name, [2, 0, 0, 0, 0, last], queues, None);
    builder.address(address(last), 24).pin(vec![cpu as usize]).mode(Mode::FullBusy).build().map_err(failed)
}

pub(super) fn measure(costs: &mut Costs, cpus: Cpus, effort: Effort) -> Result<(), CostError> {
    let (left, right) = pair(MemoryShape::default()).map_err(failed)?;
    let client = host("calibrate-client", 1, left, cpus.client)?;
    let server = host("calibrate-server", 2, right, cpus.server)?;
    // Pin this thread after the runtimes have pinned their service threads.
    pin_to_cpus(&[cpus.server as usize])?;
    let to = SocketAddr::new(address(2), 9);
    let receiver = UdpSocket::bind(&server, to).map_err(failed)?;
    let sender = UdpSocket::bind(&client, SocketAddr::new(address(1), 9)).map_err(failed)?;
    receiver.set_nonblocking(true);
    let epoll = server.epoll();
    epoll.add(&receiver, 0, Interest::IN).map_err(failed)?;
    let mut events = Vec::<Event>::new();
    let mut buffer = [0; 2 * PAYLOAD.len()];
    let (mut polls, mut datagrams) = (Vec::new(), Vec::new());
    // The first round is discarded: it includes ARP, which the other end's service thread answers.
    for round in 0..=effort.batches {
        let poll = batch(|| epoll.wait(&mut events, 1, Some(Duration::ZERO)).map(drop).map_err(failed))?;
        let since = Instant::now();
        for _ in 0..DATAGRAMS {
            sender.send_to(&PAYLOAD, Some(to)).map_err(failed)?;
            while receiver.recv_from(&mut buffer).is_err() {
                if since.elapsed() > Duration::from_secs(5) {
                    return Err(failed("a datagram did not arrive within 5 s"));
                }
                epoll.wait(&mut events, 1, Some(Duration::from_millis(1))).map_err(failed)?;
            }
        }
        if round > 0 {
            polls.push(poll);
            datagrams.push(since.elapsed().as_nanos() as f64 / f64::from(DATAGRAMS));
        }
    }
    costs.add(Operation::EmptyPoll, &polls, LOW);
    costs.add(Operation::MemoryDatagram, &datagrams, LOW);
    Ok(())
}
