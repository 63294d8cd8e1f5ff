//! Two stacks over an impaired wire: all data arrives, both sides close cleanly, and no state is left behind.
//!
//! The applications are edge-triggered: they use a socket only after an event, and then until it would block. A lost
//! edge therefore stalls the connection. `ABEY_SEED` repeats the run of one seed; `ABEY_SEEDS` sets the number of
//! runs.

mod common;

use std::{collections::HashMap, net::SocketAddr};

use abey_tcpip::{CongestionControl, Counters, Instant, IoError, Readiness, Shutdown, SocketId, Stack};
use common::{Impairment, MICROSECOND, MILLISECOND, Network, SECOND, Wire, byte, random_seed, settings, stack};
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

    fn write(&mut self, host: &mut Stack, now: Instant, id: SocketId) {
        while !self.finished_writing {
            if self.sent == self.to_send {
                host.shutdown(now, id, Shutdown::Write).unwrap();
                self.finished_writing = true;
                return;
            }
            let chunk = (self.to_send - self.sent).min(3000);
            let bytes: Vec<u8> = (self.sent..self.sent + chunk).map(|offset| byte(self.stream, offset)).collect();
            match host.write(id, &bytes) {
                Ok(taken) => self.sent += taken as u64,
                Err(IoError::WouldBlock) => return,
                Err(error) => panic!("{self:?}: {error}"),
            }
        }
    }

    fn read(&mut self, host: &mut Stack, now: Instant, id: SocketId, buffer: &mut [u8]) {
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
                        return;
                    }
                }
                Err(IoError::WouldBlock) => return,
                Err(error) => panic!("{self:?}: {error}"),
            }
        }
    }
}

struct Run {
    hard: bool,
    network: Network,
    peers: [HashMap<SocketId, Peer>; 2],
    listener: SocketId,
    sizes: Vec<(u64, u64)>,
    opened: HashMap<SocketAddr, usize>,
    closed: usize,
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
            settings.retries = 30;
            settings.orphan_retries = 30;
            settings.syn_retries = 30;
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
        Self { hard, network, peers, listener, sizes, opened: HashMap::new(), closed: 0 }
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
                if event.edges.intersects(Readiness::READABLE | Readiness::READ_CLOSED) {
                    match peer.read_delay {
                        Some(wait) => _ = peer.reads_at.get_or_insert(now.0 + wait),
                        None => peer.read(host, now, event.socket, buffer),
                    }
                }
                if event.edges.contains(Readiness::WRITABLE) {
                    peer.write(host, now, event.socket);
                }
                self.close_if_finished(side, event.socket);
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
                peer.read(&mut self.network.hosts[side], Instant(now), id, buffer);
                self.close_if_finished(side, id);
            }
        }
    }

    fn close_if_finished(&mut self, side: usize, id: SocketId) {
        if self.peers[side].get(&id).is_some_and(|peer| peer.finished_reading && peer.finished_writing) {
            self.network.hosts[side].close(self.network.at(), id).unwrap();
            self.peers[side].remove(&id);
            self.closed += 1;
        }
    }

    fn is_over(&self) -> bool {
        self.closed == 2 * self.sizes.len()
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

fn run(seed: u64, hard: bool) -> Counters {
    let mut run = Run::new(seed, hard);
    let mut random = random_seed(seed ^ 0xabe7);
    run.open(&mut random);
    let mut buffer = vec![0; 1 << 16];
    let limit = run.network.now + 4 * 3600 * SECOND * scale();
    while !run.is_over() {
        run.handle_events(&mut buffer);
        if run.is_over() {
            break;
        }
        assert!(run.network.step(limit), "stuck: {:?} {:?}", run.peers, run.network.hosts.map(|host| *host.counters()));
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
    let mut total = *run.network.hosts[0].counters();
    total.add(run.network.hosts[1].counters());
    total
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
fn run_all(hard: bool) -> Counters {
    if let Some(seed) = std::env::var("ABEY_SEED").ok().and_then(|text| text.parse().ok()) {
        return run(seed, hard);
    }
    let total = std::sync::Mutex::new(Counters::default());
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
                        Ok(counters) => total.lock().unwrap().add(&counters),
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
        check_coverage(&total);
    }
}

/// One direction loses acknowledgements or data only, there are outages of seconds, hosts pause, and applications
/// read slowly in small amounts.
#[test]
fn all_data_arrives_when_one_direction_is_impaired() {
    let total = run_all(true);
    assert!(total.tcp_timeouts > 0 && total.tcp_window_probes > 0);
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
