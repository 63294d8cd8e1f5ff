//! NAPI instances of a namespace and their settings.
//!
//! Source: Linux `Documentation/networking/napi.rst` and `Documentation/netlink/specs/netdev.yaml`.

use std::collections::BTreeMap;

use abey_delivery::{Nanos, NapiSettings, PollContext};

pub use abey_delivery::NapiChange;

use netlink_bindings::netdev::{self, NapiThreaded, QueueType};

use crate::netlink::{Netlink, NetlinkError};

/// A NAPI instance as the kernel reports it.
///
/// A setting is `None` if this kernel does not report it per NAPI instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Napi {
    /// The ID that sockets report as `SO_INCOMING_NAPI_ID`; unique in the whole machine.
    pub id: u32,
    /// The device it belongs to.
    pub ifindex: u32,
    /// Its interrupt, if it has one.
    pub irq: Option<u32>,
    /// The thread that polls it, if it is threaded.
    pub thread: Option<u32>,
    /// See [`NapiSettings::defer_hard_irqs`].
    pub defer_hard_irqs: Option<u32>,
    /// See [`NapiSettings::gro_flush_timeout`].
    pub gro_flush_timeout: Option<Nanos>,
    /// See [`NapiSettings::irq_suspend_timeout`].
    pub irq_suspend_timeout: Option<Nanos>,
    /// See [`NapiSettings::context`].
    pub context: Option<PollContext>,
}

impl Napi {
    /// Returns the settings, with the kernel's defaults for those that it does not report.
    pub fn settings(&self) -> NapiSettings {
        NapiSettings {
            defer_hard_irqs: self.defer_hard_irqs.unwrap_or(0),
            gro_flush_timeout: self.gro_flush_timeout.unwrap_or_default(),
            irq_suspend_timeout: self.irq_suspend_timeout.unwrap_or_default(),
            context: self.context.unwrap_or_default(),
            hold: None,
        }
    }
}

/// The longest time that fits the netlink attributes: 32 bits of nanoseconds, about 4.29 s.
pub const LONGEST_TIMEOUT: Nanos = Nanos::from_nanos(u32::MAX as u64);

/// Lists the NAPI instances of one device, or of every device of the namespace, by ID. That is the order in which a driver
/// registered them: queue 0 first.
///
/// # Errors
/// This kernel has no netdev netlink family, or it refuses.
pub fn napis(netlink: &mut Netlink, ifindex: Option<u32>) -> Result<Vec<Napi>, NetlinkError> {
    let mut request = netdev::Request::new().op_napi_get_dump();
    if let Some(ifindex) = ifindex {
        request.encode().push_ifindex(ifindex);
    }
    let mut found = netlink.dump("list NAPI instances", &request, |attrs| decode(&attrs))?;
    found.sort_unstable_by_key(|napi| (napi.ifindex, napi.id));
    Ok(found)
}

/// Reads the NAPI instance with this ID.
///
/// # Errors
/// This namespace has none with this ID, or the kernel refuses.
pub fn napi(netlink: &mut Netlink, id: u32) -> Result<Napi, NetlinkError> {
    let mut request = netdev::Request::new().op_napi_get_do();
    request.encode().push_id(id);
    let action = format!("find NAPI {id}");
    let mut found = netlink.dump(&action, &request, |attrs| decode(&attrs))?;
    found.pop().ok_or(NetlinkError::Refused { action, reason: "the kernel gave no answer".to_owned(), errno: None })
}

fn decode(attrs: &netdev::IterableNapi<'_>) -> Option<Napi> {
    let nanos = |n: u32| Nanos::from_nanos(u64::from(n));
    let context = attrs.get_threaded().ok().and_then(|value| {
        Some(match NapiThreaded::from_value(u64::from(value))? {
            NapiThreaded::Disabled => PollContext::Softirq,
            NapiThreaded::Enabled => PollContext::Thread,
            NapiThreaded::BusyPoll => PollContext::BusyThread,
        })
    });
    Some(Napi {
        id: attrs.get_id().ok()?,
        ifindex: attrs.get_ifindex().ok()?,
        irq: attrs.get_irq().ok(),
        thread: attrs.get_pid().ok(),
        defer_hard_irqs: attrs.get_defer_hard_irqs().ok(),
        gro_flush_timeout: attrs.get_gro_flush_timeout().ok().map(nanos),
        irq_suspend_timeout: attrs.get_irq_suspend_timeout().ok().map(nanos),
        context,
    })
}

/// Changes the settings of one NAPI instance. The kernel changes all of them or none.
///
/// # Errors
/// The instance does not exist, the caller lacks `CAP_NET_ADMIN`, or a value is out of range.
pub fn set_napi(netlink: &mut Netlink, id: u32, change: &NapiChange) -> Result<(), NetlinkError> {
    let action = format!("change the settings of NAPI {id}");
    let fit = |value: Option<Nanos>| match value {
        Some(nanos) if nanos > LONGEST_TIMEOUT => Err(NetlinkError::Refused {
            action: action.clone(),
            reason: format!("a timeout of {nanos} is too long: the longest is {LONGEST_TIMEOUT}"),
            errno: None,
        }),
        Some(nanos) => Ok(Some(nanos.as_nanos() as u32)),
        None => Ok(None),
    };
    let (flush, suspend) = (fit(change.gro_flush_timeout)?, fit(change.irq_suspend_timeout)?);
    let threaded = match change.context {
        None => None,
        Some(PollContext::Softirq) => Some(NapiThreaded::Disabled),
        Some(PollContext::Thread) => Some(NapiThreaded::Enabled),
        Some(PollContext::BusyThread) => Some(NapiThreaded::BusyPoll),
        Some(PollContext::Workqueue) => {
            let reason = "the Linux kernel has no work-queue polling: use the datapath or sim world".to_owned();
            return Err(NetlinkError::Refused { action, reason, errno: None });
        }
    };
    let mut request = netdev::Request::new().op_napi_set_do();
    let mut attrs = request.encode().push_id(id);
    if let Some(count) = change.defer_hard_irqs {
        attrs = attrs.push_defer_hard_irqs(count);
    }
    if let Some(nanos) = flush {
        attrs = attrs.push_gro_flush_timeout(nanos);
    }
    if let Some(nanos) = suspend {
        attrs = attrs.push_irq_suspend_timeout(nanos);
    }
    if let Some(threaded) = threaded {
        attrs = attrs.push_threaded(threaded as u32);
    }
    drop(attrs);
    netlink.change(&action, &request)
}

/// A receive queue and its NAPI instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueNapi {
    /// The index of the queue.
    pub queue: u32,
    /// The instance.
    pub napi: Option<u32>,
    /// Whether the driver reports it; otherwise the instances are assumed to be in the order of the queues.
    pub named: bool,
}

/// Returns the NAPI instance of each receive queue of a device.
///
/// For a driver that does not report the NAPI instances of its queues (veth), the instances are assumed to be in the order of
/// the queues.
///
/// # Errors
/// The kernel refuses.
pub fn rx_queues(netlink: &mut Netlink, ifindex: u32) -> Result<BTreeMap<u32, u32>, NetlinkError> {
    let links = queue_napis(netlink, ifindex)?;
    Ok(links.into_iter().filter_map(|link| Some((link.queue, link.napi?))).collect())
}

/// Lists the receive queues of a device, each with its NAPI instance as in [`rx_queues`].
///
/// # Errors
/// The kernel refuses.
pub fn queue_napis(netlink: &mut Netlink, ifindex: u32) -> Result<Vec<QueueNapi>, NetlinkError> {
    let mut request = netdev::Request::new().op_queue_get_dump();
    request.encode().push_ifindex(ifindex);
    let mut links = netlink.dump("list queues", &request, |attrs| {
        let receive = attrs.get_type().ok()? == QueueType::Rx as u32;
        let napi = attrs.get_napi_id().ok();
        receive.then(|| Some(QueueNapi { queue: attrs.get_id().ok()?, napi, named: napi.is_some() }))?
    })?;
    links.sort_unstable_by_key(|link| link.queue);
    if links.iter().all(|link| link.napi.is_none()) {
        let instances = napis(netlink, Some(ifindex))?;
        for (link, napi) in links.iter_mut().zip(instances) {
            link.napi = Some(napi.id);
        }
    }
    Ok(links)
}
