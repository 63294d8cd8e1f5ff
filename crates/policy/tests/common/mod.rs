//! Machines made by hand, and policies for them.

#![allow(dead_code, reason = "each test file uses its part")]

use abey_linux::cpu::CpuList;
use abey_linux::device::Device;
use abey_linux::ethtool::{Channels, Count, Driver, RssContext};
use abey_linux::machine::{
    Available, Cause, DeviceState, Feature, IrqSource, IrqState, Link, NapiState, QueueState, Snapshot, Unavailable,
};
use abey_linux::napi::Napi;
use abey_linux::probe::NapiCapabilities;
use abey_policy::{DesiredState, Policy};

pub(crate) const ABLE: NapiCapabilities =
    NapiCapabilities { list: true, deferral: true, suspend: true, threaded: true, threaded_busy: true };

pub(crate) fn online() -> CpuList {
    "0-7".parse().expect("a list")
}

pub(crate) fn lack<T>(feature: Feature) -> Available<T> {
    Err(Unavailable { feature, why: Cause::Unsupported { reason: "its driver has none".to_owned() } })
}

pub(crate) fn list(text: &str) -> CpuList {
    text.parse().expect("a list")
}

/// A NIC that can do everything, with so many queues, each with a NAPI instance (100 and up) and an IRQ (40 and up).
pub(crate) fn nic(name: &str, queues: u32) -> DeviceState {
    let napi = |queue: u32| NapiState {
        napi: Napi {
            id: 100 + queue,
            ifindex: 7,
            irq: Some(40 + queue),
            thread: None,
            defer_hard_irqs: Some(0),
            gro_flush_timeout: Some(abey_delivery::Nanos::ZERO),
            irq_suspend_timeout: Some(abey_delivery::Nanos::ZERO),
            context: Some(abey_delivery::PollContext::Softirq),
        },
        rx_queues: vec![queue],
        irq: Ok(IrqState {
            irq: 40 + queue,
            cpus: Ok(list("0-7")),
            effective: Ok(list("0")),
            source: IrqSource::Kernel,
        }),
        thread: None,
    };
    let context =
        |id, queues: Vec<u32>| RssContext { id, table: queues, key: Vec::new(), function: 1, transformation: 0 };
    DeviceState {
        device: Device {
            ifindex: 7,
            name: name.to_owned(),
            up: true,
            loopback: false,
            kind: None,
            link: None,
            link_elsewhere: false,
            rx_queues: 16,
            addresses: Vec::new(),
        },
        address: Some("02:00:00:00:00:01".to_owned()),
        pci: Some("0000:3b:00.0".to_owned()),
        driver: Ok(Driver {
            name: "ice".to_owned(),
            version: String::new(),
            firmware: String::new(),
            bus: "0000:3b:00.0".to_owned(),
        }),
        channels: Ok(Channels { combined: Count { now: queues, most: 16 }, ..Channels::default() }),
        rss: Ok(context(0, (0..queues).collect())),
        contexts: Ok(Vec::new()),
        rules: Ok(Vec::new()),
        queues: (0..queues).map(|queue| QueueState { queue, napi: Some(100 + queue), link: Link::Driver }).collect(),
        xps: Ok((0..queues).map(|queue| (queue, CpuList::default())).collect()),
        napis: (0..queues).map(napi).collect(),
    }
}

pub(crate) fn machine(devices: Vec<DeviceState>) -> Snapshot {
    Snapshot { place: "the test".to_owned(), network_namespace: 1, capabilities: ABLE, devices }
}

pub(crate) fn policy(text: &str) -> Policy {
    Policy::parse("p.toml", &format!("version = 1\n{text}")).expect("a policy")
}

pub(crate) fn desired(text: &str, devices: Vec<DeviceState>) -> DesiredState {
    policy(text).resolve(&machine(devices), &online()).expect("resolved")
}
