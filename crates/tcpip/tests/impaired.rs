//! Two stacks over an impaired wire: all data arrives, both sides close cleanly, and no state is left behind.
//!
//! Where the wire ends a connection by a rule of TCP's, the run is repeated with a record of its segments, and a judge
//! checks that the rule applied.
//!
//! The applications are edge-triggered: they use a socket only after an event, and then until it would block. A lost
//! edge therefore stalls the connection. `ABEY_SEED` repeats the run of one seed; `ABEY_SEEDS` sets the number of
//! runs.

mod common;
mod judge;

use std::{collections::HashMap, net::SocketAddr};

use abey_tcpip::{
    CongestionControl, Counters, EcnMode, Instant, IoError, Readiness, Shutdown, SocketError, SocketId, Stack,
};
use common::{
    Impairment, MICROSECOND, MILLISECOND, Mangling, Network, SECOND, Wire, byte, random_seed,
    record::{Connection, Record},
    settings, stack,
};
use judge::{Cause, End, Judge, RETRIES};
use rand::{Rng, RngExt};

/// Application at one end of a connection. The client's streams have even numbers, the server's odd ones.
#[derive(Debug)]
struct Peer {
    stream: u64,
    to_send: u64,
    sent: u64,
    to_receive: u64,
    received: u64,
    finished_writing: bool,
    finished_reading: bool,
    /// Delay of a read after its event, in nanoseconds.
    read_delay: Option<u64>,
    /// Time of the next delayed read.
    reads_at: Option<u64>,
    /// Maximum bytes of one read, which is followed by another delay.
    max_read: Option<usize>,
}

impl Peer {
    fn new(stream: u64, to_send: u64, to_receive: u64) -> Self {
        let read_delay = (stream % 5 == 3).then_some(700 * MILLISECOND);
        Self {
            stream,
            to_send,
            sent: 0,
            to_receive,
            received: 0,
            finished_writing: false,
            finished_reading: false,
            read_delay,
            reads_at: None,
            max_read: None,
        }
    }

    /// Writes until it would block. Fails if the connection has ended.
    fn write(&mut self, host: &mut Stack, now: Instant, id: SocketId) -> Result<(), SocketError> {
        while !self.finished_writing {
            if let Some(error) = host.take_error(id).unwrap() {
                return Err(error);
            }
            if self.sent == self.to_send {
                host.shutdown(now, id, Shutdown::Write).unwrap();
                self.finished_writing = true;
                break;
            }
            let chunk = (self.to_send - self.sent).min(3000);
            let bytes: Vec<u8> = (self.sent..self.sent + chunk).map(|offset| byte(self.stream, offset)).collect();
            match host.write(id, &bytes) {
                Ok(taken) => self.sent += taken as u64,
                Err(IoError::WouldBlock) => break,
                Err(error) => panic!("{self:?}: {error}"),
            }
        }
        Ok(())
    }

    /// Reads until it would block. Fails if the connection has ended.
    fn read(&mut self, host: &mut Stack, now: Instant, id: SocketId, buffer: &mut [u8]) -> Result<(), SocketError> {
        let most = self.max_read.unwrap_or(buffer.len());
        while !self.finished_reading {
            match host.read(id, &mut buffer[..most]) {
                Ok(0) => {
                    assert_eq!(self.received, self.to_receive, "the stream ended early: {self:?}");
                    self.finished_reading = true;
                }
                Ok(len) => {
                    for &read in &buffer[..len] {
                        assert_eq!(read, byte(self.stream ^ 1, self.received), "at {}", self.received);
                        self.received += 1;
                    }
                    if self.max_read.is_some() {
                        self.reads_at = self.read_delay.map(|wait| now.0 + wait);
                        break;
                    }
                }
                Err(IoError::WouldBlock) => break,
                Err(IoError::Network(error)) => return Err(error),
                Err(error) => panic!("{self:?}: {error}"),
            }
        }
        Ok(())
    }
}

struct Run {
    hard: bool,
    network: Network,
    peers: [HashMap<SocketId, Peer>; 2],
    listener: SocketId,
    sizes: Vec<(u64, u64)>,
    opened: HashMap<SocketAddr, usize>,
    accepted: Vec<Connection>,
    /// Ends of connections whose applications had not finished.
    ends: Vec<End>,
}

impl Run {
    /// Derives all parameters of the run from the seed.
    fn new(seed: u64, hard: bool) -> Self {
        let mut random = random_seed(seed);
        let slow = random.random_bool(0.3);
        let impairment = Impairment {
            delay: random.random_range(0..20) * MILLISECOND / 2 + 10 * MICROSECOND,
            jitter: if random.random_bool(0.5) { random.random_range(1..5) * MILLISECOND } else { 0 },
            loss: [0.0, 0.01, 0.05, 0.15][random.random_range(0..if scale() > 1 { 2 } else { 4 })],
            duplication: [0.0, 0.02][random.random_range(0..2)],
            corruption: [0.0, 0.02][random.random_range(0..2)],
            per_byte: if slow { 800 } else { 0 },
            queue: 30_000,
            marking: [0.0, 0.01, 0.2][random.random_range(0..3)],
            mangling: [Mangling::None; 7]
                .into_iter()
                .chain([Mangling::Clear, Mangling::SetCe, Mangling::Random])
                .nth(random.random_range(0..10))
                .unwrap_or_default(),
            ..Impairment::default()
        };
        let host = |last: u8, random: &mut dyn Rng| {
            let mut settings = settings(last);
            settings.mtu = [1280, 1500, 9000][random.random_range(0..3)];
            settings.receive_buffer = [2048, 20_000, 128 << 10][random.random_range(0..3)];
            settings.receive_buffer_limit = settings.receive_buffer * [1, 16][random.random_range(0..2)];
            settings.send_buffer = [4096, 1 << 20][random.random_range(0..2)];
            settings.sack = random.random_bool(0.8);
            settings.timestamps = random.random_bool(0.8);
            settings.retries = RETRIES;
            settings.orphan_retries = RETRIES;
            settings.syn_retries = RETRIES;
            settings.ecn =
                [EcnMode::Off, EcnMode::Passive, EcnMode::Active, EcnMode::Active][random.random_range(0..4)];
            if random.random_bool(0.2) {
                settings.congestion_control = CongestionControl::Reno;
            }
            stack(settings, seed * 7 + u64::from(last))
        };
        let hosts = [host(1, &mut random), host(2, &mut random)];
        let mut network = Network::new(hosts, impairment, seed);
        if hard {
            network.pause = [0, 3 * SECOND][random.random_range(0..2)];
            for wire in &mut network.wires {
                impair_selectively(&mut wire.impairment, &mut random);
            }
        }
        if impairment.loss > 0.01 || hard {
            // Three solicitations in a row would be lost too often, so the neighbours are configured.
            for (side, peer) in [(0, 2_u8), (1, 1)] {
                for address in [[10, 0, 0, peer].into(), [0xfd00, 0, 0, 0, 0, 0, 0, peer.into()].into()] {
                    network.hosts[side].insert_neighbor(Instant(0), address, [2, 0, 0, 0, 0, peer]);
                }
            }
        }
        let count = random.random_range(1..6);
        let sizes: Vec<(u64, u64)> = (0..count)
            .map(|_| {
                let mut size =
                    || scale() * [0, 1, 5_000, 100_000][random.random_range(0..4)] + random.random_range(0..3000);
                (size(), size())
            })
            .collect();
        // With a backlog of 1, some connections start with a SYN cookie.
        let backlog = [1, 64][random.random_range(0..2)];
        let listener = network.hosts[1].listen("[::]:80".parse().unwrap(), backlog).unwrap();
        let peers = [HashMap::new(), HashMap::new()];
        Self { hard, network, peers, listener, sizes, opened: HashMap::new(), accepted: Vec::new(), ends: Vec::new() }
    }

    /// Creates one end of a connection. In a hard run every second reader reads slowly in small amounts.
    fn peer(&self, stream: u64, to_send: u64, to_receive: u64) -> Peer {
        let mut peer = Peer::new(stream, to_send, to_receive);
        if self.hard && stream % 2 == self.network.now % 2 {
            (peer.read_delay, peer.max_read) = (Some(3 * MILLISECOND), Some(700));
        }
        peer
    }

    fn open(&mut self, random: &mut impl Rng) {
        for (number, &(up, down)) in self.sizes.clone().iter().enumerate() {
            let v6 = random.random_bool(0.5);
            let remote = if v6 { "[fd00::2]:80" } else { "10.0.0.2:80" }.parse().unwrap();
            let now = self.network.at();
            let id = self.network.hosts[0].connect(now, remote).unwrap();
            self.network.hosts[0].set_nodelay(id, random.random_bool(0.5)).unwrap();
            let address = self.network.hosts[0].local_addr(id).unwrap();
            self.opened.insert(address, number);
            let peer = self.peer(number as u64 * 2, up, down);
            self.peers[0].insert(id, peer);
        }
    }

    fn accept(&mut self) {
        while let Ok(id) = self.network.hosts[1].accept(self.listener) {
            let address = self.network.hosts[1].peer_addr(id).unwrap();
            let Some(number) = self.opened.remove(&address) else {
                // A SYN cookie is valid for two minutes, so a late copy of the first segment opens the connection
                // again.
                let now = self.network.at();
                self.network.hosts[1].abort(now, id).unwrap();
                continue;
            };
            self.accepted.push((address.is_ipv6(), address.port()));
            let (up, down) = self.sizes[number];
            let peer = self.peer(number as u64 * 2 + 1, down, up);
            self.peers[1].insert(id, peer);
        }
    }

    /// Runs the applications on the pending events.
    fn handle_events(&mut self, buffer: &mut [u8]) {
        let now = self.network.at();
        for side in 0..2 {
            while let Some(event) = self.network.hosts[side].poll_event() {
                if event.socket == self.listener && side == 1 {
                    self.accept();
                    continue;
                }
                let host = &mut self.network.hosts[side];
                let Some(peer) = self.peers[side].get_mut(&event.socket) else { continue };
                let mut result = Ok(());
                if event.edges.intersects(Readiness::READABLE | Readiness::READ_CLOSED) {
                    match peer.read_delay {
                        Some(wait) => _ = peer.reads_at.get_or_insert(now.0 + wait),
                        None => result = peer.read(host, now, event.socket, buffer),
                    }
                }
                if event.edges.contains(Readiness::WRITABLE) {
                    result = result.and_then(|()| peer.write(host, now, event.socket));
                }
                self.close_if_finished(side, event.socket, result);
            }
            self.run_delayed_reads(side, buffer);
        }
        let read_times = self.peers.iter().flat_map(|peers| peers.values().filter_map(|peer| peer.reads_at));
        self.network.alarm = read_times.min();
    }

    fn run_delayed_reads(&mut self, side: usize, buffer: &mut [u8]) {
        let now = self.network.now;
        let due = |peer: &Peer| peer.reads_at.is_some_and(|at| at <= now);
        let ids: Vec<_> = self.peers[side].iter().filter(|(_, peer)| due(peer)).map(|(id, _)| *id).collect();
        for id in ids {
            if let Some(peer) = self.peers[side].get_mut(&id) {
                peer.reads_at = None;
                let result = peer.read(&mut self.network.hosts[side], Instant(now), id, buffer);
                self.close_if_finished(side, id, result);
            }
        }
    }

    /// Closes a socket whose application has finished, or whose connection has ended.
    fn close_if_finished(&mut self, side: usize, id: SocketId, result: Result<(), SocketError>) {
        let Some(peer) = self.peers[side].get(&id) else { return };
        if let Err(error) = result {
            self.end(side, id, Cause::Error(error));
        } else if peer.finished_reading && peer.finished_writing {
            self.network.hosts[side].close(self.network.at(), id).unwrap();
            self.peers[side].remove(&id);
        }
    }

    /// Records that the connection of socket `id` has ended, and closes the socket.
    fn end(&mut self, side: usize, id: SocketId, cause: Cause) {
        let now = self.network.at();
        let host = &mut self.network.hosts[side];
        let address = if side == 0 { host.local_addr(id) } else { host.peer_addr(id) }.unwrap();
        let connection = (address.is_ipv6(), address.port());
        self.ends.push(End { connection, side, at: now.0, cause });
        host.abort(now, id).unwrap();
        self.peers[side].remove(&id);
    }

    /// Runs until all applications have finished, or nothing is left to happen.
    fn finish(&mut self) {
        let mut buffer = vec![0; 1 << 16];
        let limit = self.network.now + 4 * 3600 * SECOND * scale();
        loop {
            self.handle_events(&mut buffer);
            let active = self.peers.iter().any(|peers| !peers.is_empty());
            if !active && self.ends.is_empty() {
                return;
            }
            if self.network.step(limit) {
                continue;
            }
            assert!(
                self.network.next().is_none(),
                "not over after hours: {:?} {:?}",
                self.peers,
                self.network.hosts.each_ref().map(|host| *host.counters())
            );
            if !active {
                return;
            }
            for side in 0..2 {
                for id in self.peers[side].keys().copied().collect::<Vec<_>>() {
                    self.end(side, id, Cause::Waits);
                }
            }
        }
    }

    /// Checks that a rule of TCP's explains each connection that ended early.
    fn judge(&self) {
        let records = self.network.wires.each_ref().map(|wire| wire.segments.as_ref().expect("a recorded run"));
        let judge = Judge { records, overflows: &self.network.overflows, accepted: &self.accepted };
        for end in &self.ends {
            if let Err(why) = judge.explain(end) {
                panic!("no rule of TCP's explains {end:?}: {why}");
            }
        }
    }
}

/// Impairs one direction: losses of acknowledgements or of data only, or outages of seconds.
fn impair_selectively(impairment: &mut Impairment, random: &mut impl Rng) {
    match random.random_range(0..5) {
        0 => impairment.loss_of_acks = [0.1, 0.4][random.random_range(0..2)],
        1 => impairment.loss_of_data = 0.3,
        2 => impairment.outage = 5 * SECOND,
        3 => (impairment.loss_of_acks, impairment.outage) = (0.5, SECOND),
        _ => {}
    }
}

/// Sums of all runs.
#[derive(Clone, Copy, Debug, Default)]
struct Total {
    counters: Counters,
    /// Connections that a rule of TCP's ended.
    ends: u64,
}

fn run(seed: u64, hard: bool) -> Total {
    let start = |recorded: bool| {
        let mut run = Run::new(seed, hard);
        for wire in &mut run.network.wires {
            wire.segments = recorded.then(Record::default);
        }
        run.open(&mut random_seed(seed ^ 0xabe7));
        run.finish();
        run
    };
    let mut run = start(false);
    if !run.ends.is_empty() {
        start(true).judge();
    }
    run.network.alarm = None;
    // Much later, no state may be left.
    run.network.run(3600 * SECOND);
    for (side, host) in run.network.hosts.iter().enumerate() {
        assert_eq!(host.socket_count(), side, "sockets remain: {host:?}");
        assert_eq!(
            (host.flow_count(), host.timer_count(), host.time_wait_count()),
            (0, 0, 0),
            "flows or timers remain"
        );
        assert_eq!(host.poll_timeout(), None);
    }
    check_counters(&run.network, hard);
    let mut counters = *run.network.hosts[0].counters();
    counters.add(run.network.hosts[1].counters());
    Total { counters, ends: run.ends.len() as u64 }
}

/// Checks that each frame is counted once.
fn check_counters(network: &Network, hard: bool) {
    for side in 0..2 {
        let (sender, receiver) = (network.hosts[side].counters(), network.hosts[1 - side].counters());
        let wire = &network.wires[side];
        assert_eq!(receiver.frames_received, wire.delivered);
        assert!(wire.longest <= network.hosts[side].frame_capacity());
        let dropped = receiver.ip_in_header_errors
            + receiver.ip_in_checksum_errors
            + receiver.ip_in_address_errors
            + receiver.ip_in_martians
            + receiver.ip_in_unknown_protocols
            + receiver.ip_reassembly_failures
            + receiver.tcp_in_errors
            + receiver.tcp_in_checksum_errors
            + receiver.icmp_in_errors
            + receiver.neighbor_in_errors;
        assert!(dropped <= wire.corrupted, "more frames were dropped than corrupted: {receiver:?}");
        assert_eq!(sender.control_queue_drops, 0);
        let clean = |wire: &Wire| wire.lost == 0 && wire.corrupted == 0 && wire.impairment.jitter == 0;
        if !hard && network.wires.iter().all(clean) && receiver.tcp_listen_overflows + sender.tcp_listen_overflows == 0
        {
            assert_eq!(sender.tcp_timeouts, 0, "a timeout without a loss: {sender:?} {receiver:?}");
        }
    }
}

/// Returns the factor of the transfer sizes, from `ABEY_SCALE`.
fn scale() -> u64 {
    std::env::var("ABEY_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

fn seeds() -> u64 {
    std::env::var("ABEY_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1000)
}

/// Runs all seeds on all CPUs. Returns the sums of their counters.
fn run_all(hard: bool) -> Total {
    if let Some(seed) = std::env::var("ABEY_SEED").ok().and_then(|text| text.parse().ok()) {
        return run(seed, hard);
    }
    let total = std::sync::Mutex::new(Total::default());
    let next = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if seed >= seeds() {
                        return;
                    }
                    match std::panic::catch_unwind(|| run(seed, hard)) {
                        Ok(one) => {
                            let mut total = total.lock().unwrap();
                            total.counters.add(&one.counters);
                            total.ends += one.ends;
                        }
                        Err(panic) => {
                            next.store(u64::MAX / 2, std::sync::atomic::Ordering::Relaxed);
                            eprintln!("seed {seed} failed: run it alone with ABEY_SEED={seed}");
                            std::panic::resume_unwind(panic);
                        }
                    }
                }
            });
        }
    });
    total.into_inner().unwrap()
}

#[test]
fn all_data_arrives_for_every_seed() {
    let total = run_all(false);
    if std::env::var_os("ABEY_SEED").is_none() {
        check_coverage(&total.counters);
        check_ends(total.ends);
    }
}

/// One direction loses acknowledgements or data only, there are outages of seconds, hosts pause, and applications
/// read slowly in small amounts.
#[test]
fn all_data_arrives_when_one_direction_is_impaired() {
    let total = run_all(true);
    if std::env::var_os("ABEY_SEED").is_none() {
        let counters = total.counters;
        assert!(counters.tcp_timeouts > 0 && counters.tcp_window_probes > 0);
        check_ends(total.ends);
    }
}

/// Checks that rules of TCP's ended few connections: one in a thousand runs, and some by chance.
fn check_ends(ends: u64) {
    eprintln!("rules of TCP's ended {ends} sides of connections");
    assert!(ends <= 4 + seeds() / 500, "rules of TCP's ended {ends} sides of connections");
}

/// Checks that each mechanism ran at least once in all runs together; otherwise it would be untested.
fn check_coverage(total: &Counters) {
    let ran = [
        "TcpExtTCPTimeouts",
        "TcpExtTCPSackRecovery",
        "TcpExtTCPRenoRecovery",
        "TcpExtTCPLossProbes",
        "TcpExtTCPLossProbeRecovery",
        "TcpExtTCPDSACKRecv",
        "TcpExtTCPDSACKOldSent",
        "TcpExtTCPOFOQueue",
        "TcpExtTCPRcvCoalesce",
        "TcpExtSyncookiesSent",
        "TcpExtSyncookiesRecv",
        "TcpExtListenOverflows",
        "TcpExtDelayedACKs",
        "TcpExtTCPWinProbe",
        "TcpExtTW",
        "IpExtInNoECTPkts",
        "IpExtInECT1Pkts",
        "IpExtInECT0Pkts",
        "IpExtInCEPkts",
        "TcpEcnConnections",
        "TcpEcnFallbacks",
        "TcpEcnReductions",
        "TcpInCsumErrors",
        "IpInCsumErrors",
    ];
    for (name, value) in total.iter() {
        assert!(value > 0 || !ran.contains(&name), "{name} stayed zero");
    }
    if std::env::var_os("ABEY_TRACE").is_some() {
        eprintln!("{total:#?}");
    }
}
