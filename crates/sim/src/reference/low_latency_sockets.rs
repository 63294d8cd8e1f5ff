//! Socket busy polling (2013): netperf's round trips between two equal hosts.

use abey_delivery::{Mode, Nanos};
use serde::Deserialize;

use super::{Figure, Figures, Row};
use crate::profile::{Cost, InputError, Profile};
use crate::scenario::{Load, Responder, Scenario};

const TABLE: &str = include_str!("../../../../data/reference/low-latency-sockets-netperf.csv");

/// Effective delay of the drivers' adaptive moderation in a ping-pong; fitted to the first interrupt row.
const ADAPTIVE_USECS: u64 = 27;
/// Time from an interrupt to its first instruction with C-states; fitted to the interrupt row with C-states.
const C_STATE_EXIT_NS: u64 = 10_500;
/// Instructions of a distribution's kernel, in percent of the stripped one; fitted to the interrupt row with
/// `rx_usecs` 0.
const TYPICAL_PERCENT: u64 = 133;
/// Instructions that a UDP packet saves compared with a TCP segment; fitted to the same rows.
const UDP_SAVES_INSTRUCTIONS: u64 = 1_450;
/// Busy-poll time of a receive (the kernel document's example).
const BUSY_POLL: Nanos = Nanos::from_micros(50);

#[derive(Clone, Debug, Deserialize)]
struct TableRow {
    kernel: String,
    config: String,
    c_states: String,
    rx_usecs: String,
    tcp_rr_per_s: f64,
    udp_rr_per_s: f64,
}

/// The study: eight rows.
#[derive(Debug, Default)]
pub struct LowLatencySockets;

impl LowLatencySockets {
    /// Name on the command line.
    pub const NAME: &str = "low-latency-sockets";

    /// Profile of the study.
    pub const PROFILE: &str = "e5-2680";

    /// Predicts every row.
    ///
    /// # Errors
    /// If the profile cannot be used.
    pub fn predict(&self, profile: &Profile, seed: u64) -> Result<Vec<Row>, InputError> {
        super::read::<TableRow>(TABLE).iter().map(|row| predict(profile, row, seed)).collect()
    }
}

fn predict(profile: &Profile, row: &TableRow, seed: u64) -> Result<Row, InputError> {
    let mode = if row.kernel == "busy-poll" { Mode::SockBusy(BUSY_POLL) } else { Mode::Base };
    let scenario = Scenario {
        responder: Responder::RoundTrip,
        queues: 2,
        connections: 1,
        warmup: Nanos::from_millis(5),
        duration: Nanos::from_millis(200),
        seed,
        ..Scenario::new(mode, Load::Closed)
    };
    let rate = |udp| crate::run(&host(profile, row, udp), &scenario).map(|outcome| outcome.qps);
    let figures = Figures(vec![
        ("tcp_rr_per_s", Figure { published: Some(row.tcp_rr_per_s), predicted: rate(false)? }),
        ("udp_rr_per_s", Figure { published: Some(row.udp_rr_per_s), predicted: rate(true)? }),
    ]);
    let load = format!("{}, C-states {}, rx-usecs {}", row.config, row.c_states, row.rx_usecs);
    let fitted = row.kernel == "interrupt" || row.rx_usecs == "100";
    Ok(Row { mode: row.kernel.clone(), load, fitted, figures })
}

/// Returns the host with the setup of a row.
fn host(profile: &Profile, row: &TableRow, udp: bool) -> Profile {
    let mut host = profile.clone();
    if udp {
        host.server.request.instructions = host.server.request.instructions.saturating_sub(UDP_SAVES_INSTRUCTIONS);
    }
    if row.config == "typical" {
        for cost in software(&mut host) {
            cost.instructions = cost.instructions * TYPICAL_PERCENT / 100;
        }
    }
    if row.c_states == "on" {
        host.idle.exit_ns = C_STATE_EXIT_NS;
    }
    host.nic.rx_usecs = row.rx_usecs.parse().unwrap_or(ADAPTIVE_USECS);
    host
}

fn software(host: &mut Profile) -> [&mut Cost; 9] {
    [
        &mut host.interrupt.nic,
        &mut host.softirq.enter,
        &mut host.softirq.poll,
        &mut host.softirq.request,
        &mut host.thread.wake,
        &mut host.epoll.wait,
        &mut host.epoll.event,
        &mut host.busy_poll.end,
        &mut host.server.request,
    ]
}
