//! The status of a runtime, collected into a document.

use std::collections::BTreeMap;

use abey_delivery::{Mode, Nanos, NapiId};
use abey_nic::{Counters, Drops, LinkState};
use rustix::time::{ClockId, clock_gettime};

use super::cpu::by_context;
use super::status::{Epoll, MAX_EPOLLS, Queue, Role, Shard, Status, Thread};
use crate::epoll::EpollView;
use crate::runtime::state::RuntimeState;
use crate::shard::ShardView;
use crate::threads::{ThreadRole, ThreadStats};

/// Returns the status.
pub(super) fn status(state: &RuntimeState) -> Status {
    let host = &state.host;
    let waits = host.wait_settings();
    let views: Vec<ShardView> = host.shards().iter().map(|shard| shard.view()).collect();
    let modes: Vec<_> = views.iter().map(|view| abey_delivery::mode_of(&waits.with(view.settings))).collect();
    let name = |mode: &Option<Mode>| mode.map(|mode| mode.to_string());
    let is_same = modes.iter().all(|mode| *mode == modes[0]);
    let mut stack = abey_tcpip::Counters::default();
    views.iter().for_each(|view| stack.add(&view.stack));
    let (epolls, epoll_count) = epolls(state);
    let threads: Vec<_> = state.threads.stats().into_iter().map(|stats| (stats.clone(), role(stats.role))).collect();
    let shards = host.shards().iter().zip(views).zip(&modes);
    Status {
        pid: std::process::id(),
        program: std::fs::read_to_string("/proc/self/comm").unwrap_or_default().trim_end().to_owned(),
        abey: env!("CARGO_PKG_VERSION").to_owned(),
        nic: host.config.device.clone(),
        addresses: host.config.addresses.iter().map(|(address, prefix)| format!("{address}/{prefix}")).collect(),
        uptime_ns: host.clock().now().as_nanos(),
        mode: if is_same { modes.first().and_then(name) } else { None },
        busy_poll: waits.epoll,
        max_wait_ns: waits.max_wait.map(Nanos::as_nanos),
        socket_busy_poll_ns: waits.socket_busy_poll.map(Nanos::as_nanos),
        shards: shards
            .map(|((shard, view), mode)| shard_document(shard.id.get(), shard.index.0, name(mode), view))
            .collect(),
        stack: owned(stack.iter()),
        epolls,
        epoll_count,
        contexts: by_context(&threads),
        threads: threads.into_iter().map(|(stats, role)| thread_document(stats, role)).collect(),
        process_cpu_ns: process_cpu(),
    }
}

/// Returns the epolls, those in use first, up to [`MAX_EPOLLS`], and their number.
fn epolls(state: &RuntimeState) -> (Vec<Epoll>, usize) {
    let mut views: Vec<EpollView> = state.epolls().iter().map(|queue| queue.view()).collect();
    let count = views.len();
    views.sort_by_key(|view| view.sockets == 0 && view.sleeping == 0);
    views.truncate(MAX_EPOLLS);
    let document = |view: EpollView| Epoll {
        busy_poll: view.busy_poll,
        sockets: view.sockets,
        napis: view.napis.into_iter().map(NapiId::get).collect(),
        sleeping: view.sleeping,
    };
    (views.into_iter().map(document).collect(), count)
}

fn shard_document(napi: u32, queue: u32, mode: Option<String>, view: ShardView) -> Shard {
    Shard {
        napi,
        queue,
        mode,
        settings: view.settings,
        masked: view.masked,
        counters: owned(view.counters.iter()),
        sockets: view.census.sockets,
        time_waits: view.census.time_waits,
        held: view.census.held,
        nic: Queue {
            up: view.link == LinkState::Up,
            mtu: view.mtu,
            counters: nic_counters(&view.nic),
            drops: drops(&view.nic.drops),
            warning: view.warning.map(|warning| warning.to_string()),
        },
        failed: view.failed.map(|failed| failed.to_string()),
    }
}

fn owned<'a>(counters: impl Iterator<Item = (&'a str, u64)>) -> BTreeMap<String, u64> {
    counters.map(|(name, count)| (name.to_owned(), count)).collect()
}

fn nic_counters(counters: &Counters) -> BTreeMap<String, u64> {
    let Counters {
        received,
        received_bytes,
        transmitted,
        transmitted_bytes,
        back_pressure,
        partial_checksums,
        drops: _,
        interrupts,
        interrupts_raised,
        interrupts_suppressed,
        system_calls,
    } = *counters;
    let always = [
        ("received", received),
        ("received_bytes", received_bytes),
        ("transmitted", transmitted),
        ("transmitted_bytes", transmitted_bytes),
        ("back_pressure", back_pressure),
        ("partial_checksums", partial_checksums),
        ("system_calls", system_calls),
    ];
    let some = [
        ("interrupts", interrupts),
        ("interrupts_raised", interrupts_raised),
        ("interrupts_suppressed", interrupts_suppressed),
    ];
    let some = some.into_iter().filter_map(|(name, count)| Some((name, count?)));
    owned(always.into_iter().chain(some))
}

fn drops(drops: &Drops) -> BTreeMap<String, u64> {
    let Drops { link_down, transmit_length, transmit_checksum, receive_length, buffer, ring_index, kernel, impairment } =
        *drops;
    let all = [
        ("link_down", link_down),
        ("transmit_length", transmit_length),
        ("transmit_checksum", transmit_checksum),
        ("receive_length", receive_length),
        ("buffer", buffer),
        ("ring_index", ring_index),
        ("kernel", kernel),
        ("impairment", impairment),
    ];
    owned(all.into_iter())
}

fn role(role: ThreadRole) -> Role {
    match role {
        ThreadRole::Service(_) => Role::Service,
        ThreadRole::Worker => Role::Worker,
        ThreadRole::Control => Role::Control,
        ThreadRole::HandOver => Role::Handover,
        ThreadRole::Kernel => Role::Kernel,
    }
}

fn thread_document(stats: ThreadStats, role: Role) -> Thread {
    let napi = match stats.role {
        ThreadRole::Service(napi) => Some(napi.get()),
        _ => None,
    };
    Thread { tid: stats.tid, name: stats.name, role, napi, cpu_ns: stats.cpu_ns, cpus: stats.cpus }
}

fn process_cpu() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
