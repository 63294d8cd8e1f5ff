//! Short floods over a veth pair between two namespaces: the cost of sending, and of receiving on the sender's CPU.

use std::net::{SocketAddr, UdpSocket};
use std::time::Instant;

use abey_bench::{Cpus, Receivers, VethNetwork};
use abey_delivery::{Nanos, NapiSettings};
use abey_linux::kernel::NetnsHandle;
use abey_linux::napi::NapiChange;
use abey_linux::netlink::Netlink;
use abey_linux::probe::napi_capabilities;
use abey_loadgen::pin_to_cpus;
use abey_reconcile::{Applied, Plan, Target};

use super::{CostError, Costs, Effort, LOW, Operation, refused};

/// Datagrams of a batch: fewer than the ring of a veth holds, because a deferred instance is not polled.
const DATAGRAMS: u32 = 64;
const PAYLOAD: [u8; 48] = [7; 48];
/// Deferral time, longer than a batch.
const DEFERRED: Nanos = Nanos::from_millis(20);

pub(super) fn measure(costs: &mut Costs, cpus: Cpus, effort: Effort) -> Result<(), CostError> {
    let network = VethNetwork::new(cpus, Receivers::KernelOnly)?;
    let to = VethNetwork::address(9);
    let refused = refused(Operation::VethSend);
    let receiver = network.server().run(|| UdpSocket::bind(to))?.map_err(&refused)?;
    receiver.set_nonblocking(true).map_err(&refused)?;
    let sender = network.client().run(|| UdpSocket::bind("0.0.0.0:0"))?.map_err(&refused)?;
    pin_to_cpus(&[cpus.client as usize])?;
    let (mut at_once, mut deferred) = (Vec::new(), Vec::new());
    let drain = || while receiver.recv(&mut [0; 2 * PAYLOAD.len()]).is_ok() {};
    // A few rounds of each in turn: changing the settings is slow.
    for _ in 0..ROUNDS {
        for _ in 0..effort.batches.div_ceil(ROUNDS) {
            at_once.push(flood(&sender, to).map_err(&refused)?);
            drain();
        }
        let applied = defer(&network)?;
        for _ in 0..effort.batches.div_ceil(ROUNDS) {
            // The interrupt is masked only after a recent poll with packets.
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

/// Sends a batch and returns the time per datagram in nanoseconds.
fn flood(sender: &UdpSocket, to: SocketAddr) -> std::io::Result<f64> {
    let since = Instant::now();
    for _ in 0..DATAGRAMS {
        sender.send_to(&PAYLOAD, to)?;
    }
    Ok(since.elapsed().as_nanos() as f64 / f64::from(DATAGRAMS))
}

/// Defers the receiver's NAPI instance.
fn defer(network: &VethNetwork) -> Result<Applied, CostError> {
    let mut kernel = NetnsHandle::open(network.server())?;
    let capabilities = napi_capabilities(&mut Netlink::open(network.server())?)?;
    let wanted = NapiSettings { defer_hard_irqs: 100, gro_flush_timeout: DEFERRED, ..NapiSettings::default() };
    let plan = Plan::new(&mut kernel, network.device(), &Target::Device, &NapiChange::to(&wanted), capabilities)?;
    // No journal: the namespace ends with this process.
    Ok(plan.apply(kernel, None)?)
}
