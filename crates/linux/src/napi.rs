//! NAPI instances of a namespace: which there are, their settings, and changing them.
//!
//! Source: Linux `Documentation/networking/napi.rst` and `Documentation/netlink/specs/netdev.yaml`.

use std::collections::BTreeMap;

use abey_delivery::{Nanos, NapiSettings, PollContext};
use netlink_bindings::netdev::{self, NapiThreaded, QueueType};

use crate::netlink::{Netlink, NetlinkError};

/// A NAPI instance as the kernel reports it.
///
/// A setting is `None` where this kernel does not report it per NAPI instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Napi {
    /// The ID that sockets report as `SO_INCOMING_NAPI_ID`; unique in the whole machine.
    pub id: u32,
    /// The device it belongs to.
    pub ifindex: u32,
    /// Its interrupt, where it has one.
    pub irq: Option<u32>,
    /// The thread that polls it, where it is threaded.
    pub thread: Option<u32>,
    /// See [`NapiSettings::defer_hard_irqs`].
    pub defer_hard_irqs: Option<u32>,
    /// See [`NapiSettings::gro_flush_timeout`].
    pub gro_flush_timeout: Option<Nanos>,
    /// See [`NapiSettings::irq_suspend_timeout`].
    pub irq_suspend_timeout: Option<Nanos>,
    /// Who polls.
    pub context: Option<PollContext>,
}

impl Napi {
    /// The settings, with the kernel's default for what it does not report.
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

/// Which settings of one NAPI instance to change; `None` leaves one alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NapiChange {
    /// See [`NapiSettings::defer_hard_irqs`].
    pub defer_hard_irqs: Option<u32>,
    /// See [`NapiSettings::gro_flush_timeout`].
    pub gro_flush_timeout: Option<Nanos>,
    /// See [`NapiSettings::irq_suspend_timeout`].
    pub irq_suspend_timeout: Option<Nanos>,
    /// Who shall poll.
    pub context: Option<PollContext>,
}

impl NapiChange {
    /// What leads from `old` to `new`: only what differs, so that a setting this kernel lacks is not touched in vain.
    pub fn between(old: &NapiSettings, new: &NapiSettings) -> Self {
        fn differs<T: PartialEq + Copy>(old: T, new: T) -> Option<T> {
            (old != new).then_some(new)
        }
        Self {
            defer_hard_irqs: differs(old.defer_hard_irqs, new.defer_hard_irqs),
            gro_flush_timeout: differs(old.gro_flush_timeout, new.gro_flush_timeout),
            irq_suspend_timeout: differs(old.irq_suspend_timeout, new.irq_suspend_timeout),
            context: differs(old.context, new.context),
        }
    }

    /// `old` with the change made.
    pub fn applied_to(&self, old: &NapiSettings) -> NapiSettings {
        NapiSettings {
            defer_hard_irqs: self.defer_hard_irqs.unwrap_or(old.defer_hard_irqs),
            gro_flush_timeout: self.gro_flush_timeout.unwrap_or(old.gro_flush_timeout),
            irq_suspend_timeout: self.irq_suspend_timeout.unwrap_or(old.irq_suspend_timeout),
            context: self.context.unwrap_or(old.context),
            hold: old.hold,
        }
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The longest time that fits the netlink attributes: 32 bits of nanoseconds, about 4.29 s.
pub const LONGEST_TIMEOUT: Nanos = Nanos::from_nanos(u32::MAX as u64);

/// The NAPI instances of one device, or of every device of the namespace, in the order of their IDs, which is the
/// order in which a driver registered them: queue 0 first.
///
/// # Errors
/// When this kernel has no netdev netlink family, or it refuses.
pub fn napis(netlink: &mut Netlink, ifindex: Option<u32>) -> Result<Vec<Napi>, NetlinkError> {
    let mut request = netdev::Request::new().op_napi_get_dump();
    if let Some(ifindex) = ifindex {
        request.encode().push_ifindex(ifindex);
    }
    let mut found = netlink.dump("list NAPI instances", &request, |attrs| decode(&attrs))?;
    found.sort_unstable_by_key(|napi| (napi.ifindex, napi.id));
    Ok(found)
}

/// The NAPI instance with this ID.
///
/// # Errors
/// When this namespace has none with this ID, or the kernel refuses.
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

/// Changes the settings of one NAPI instance. The kernel takes all of them or none.
///
/// # Errors
/// When the instance is gone, the caller lacks `CAP_NET_ADMIN`, or a value does not fit.
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

/// A receive queue, and the NAPI instance that serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueNapi {
    /// The queue's number.
    pub queue: u32,
    /// The instance.
    pub napi: Option<u32>,
    /// Whether the driver named it; else instances are taken to have been registered in the order of the queues.
    pub named: bool,
}

/// Which NAPI instance serves which receive queue of a device.
///
/// Drivers that name the NAPI of a queue are believed; for those that do not (veth), instances are taken to have been
/// registered in the order of the queues.
///
/// # Errors
/// When the kernel refuses.
pub fn rx_queues(netlink: &mut Netlink, ifindex: u32) -> Result<BTreeMap<u32, u32>, NetlinkError> {
    let links = queue_napis(netlink, ifindex)?;
    Ok(links.into_iter().filter_map(|link| Some((link.queue, link.napi?))).collect())
}

/// The receive queues of a device by number, each with the NAPI instance that serves it, as [`rx_queues`] finds it.
///
/// # Errors
/// When the kernel refuses.
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
