//! A short flood over a veth pair in namespaces of its own: what sending costs, and what receiving does, which the sender's
//! CPU pays for.

use std::net::{SocketAddr, UdpSocket};
use std::time::Instant;

use abey_bench::{Cpus, Takers, TestBed};
use abey_delivery::{Nanos, NapiSettings};
use abey_linux::apply::{Applied, Place, Plan, Target};
use abey_linux::napi::NapiChange;
use abey_linux::netlink::Netlink;
use abey_linux::probe::napi_capabilities;
use abey_load::pin_to_cpus;

use super::{CostError, Costs, Effort, LOW, Operation, refused};

/// Datagrams of one batch: fewer than the ring of a veth holds, since nobody polls while it is deferred.
const DATAGRAMS: u32 = 64;
const PAYLOAD: [u8; 48] = [7; 48];
/// Longer than a batch takes.
const DEFERRED: Nanos = Nanos::from_millis(20);

pub(super) fn measure(costs: &mut Costs, cpus: Cpus, effort: Effort) -> Result<(), CostError> {
    let bed = TestBed::new(cpus, Takers::Kernel)?;
    let to = TestBed::address(9);
    let refused = refused(Operation::VethSend);
    let receiver = bed.server().run(|| UdpSocket::bind(to))?.map_err(&refused)?;
    receiver.set_nonblocking(true).map_err(&refused)?;
    let sender = bed.client().run(|| UdpSocket::bind("0.0.0.0:0"))?.map_err(&refused)?;
    pin_to_cpus(&[cpus.client as usize])?;
    let (mut at_once, mut deferred) = (Vec::new(), Vec::new());
    let drain = || while receiver.recv(&mut [0; 2 * PAYLOAD.len()]).is_ok() {};
    // A few rounds of each in turn: changing the settings is dear.
    for _ in 0..ROUNDS {
        for _ in 0..effort.batches.div_ceil(ROUNDS) {
            at_once.push(flood(&sender, to).map_err(&refused)?);
            drain();
        }
        let applied = defer(&bed)?;
        for _ in 0..effort.batches.div_ceil(ROUNDS) {
            // What is masked is only what a packet was polled from lately.
            sender.send_to(&PAYLOAD, to).map_err(&refused)?;
            deferred.push(flood(&sender, to).map_err(&refused)?);
            std::thread::sleep(2 * std::time::Duration::from(DEFERRED));
            drain();
        }
        applied.restore()?;
    }
    costs.add(Operation::VethSend, &deferred, LOW);
    costs.add_difference(Operation::VethReceive, (&at_once, &deferred), 0.0);
    Ok(())
}

const ROUNDS: usize = 4;

/// Nanoseconds of one datagram.
fn flood(sender: &UdpSocket, to: SocketAddr) -> std::io::Result<f64> {
    let since = Instant::now();
    for _ in 0..DATAGRAMS {
        sender.send_to(&PAYLOAD, to)?;
    }
    Ok(since.elapsed().as_nanos() as f64 / f64::from(DATAGRAMS))
}

/// Defers the receiver's NAPI instance.
fn defer(bed: &TestBed) -> Result<Applied, CostError> {
    let mut place = Place::open(bed.server())?;
    let able = napi_capabilities(&mut Netlink::open(bed.server())?)?;
    let wanted = NapiSettings { defer_hard_irqs: 100, gro_flush_timeout: DEFERRED, ..NapiSettings::default() };
    let plan = Plan::new(&mut place, bed.device(), &Target::Device, &NapiChange::to(&wanted), able)?;
    // No journal: the namespace and everything set in it vanish with this process.
    Ok(plan.apply(place, None)?)
}
