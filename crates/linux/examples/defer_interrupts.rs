//! Changes the delivery settings of a device's NAPI instances from a program, and restores them.
//!
//! ```text
//! cargo run -p abey-linux --example defer_interrupts -- eth0
//! ```
//!
//! Needs CAP_NET_ADMIN, and a kernel with `napi-set` (6.13).

use std::error::Error;

use abey_delivery::Mode;
use abey_linux::device::device_named;
use abey_linux::napi::{NapiChange, napi, napis, set_napi};
use abey_linux::netlink::Netlink;
use abey_linux::netns::NetNs;

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).ok_or("name a network device")?;
    let mut netlink = Netlink::open(&NetNs::current()?)?;
    let device = device_named(&mut netlink, &name, "in this network namespace")?;
    let wanted = "defer50".parse::<Mode>()?.settings().napi;

    for before in napis(&mut netlink, Some(device.ifindex))? {
        let change = NapiChange::between(&before.settings(), &wanted);
        set_napi(&mut netlink, before.id, &change)?;
        let after = napi(&mut netlink, before.id)?.settings();
        println!(
            "NAPI {}: defer-hard-irqs {}, gro-flush-timeout {}",
            before.id, after.defer_hard_irqs, after.gro_flush_timeout
        );
        set_napi(&mut netlink, before.id, &NapiChange::between(&after, &before.settings()))?;
    }
    println!("restored");
    Ok(())
}
