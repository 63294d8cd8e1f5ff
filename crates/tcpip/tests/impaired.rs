//! Two stacks over an impaired wire: what is sent is received, both sides close cleanly, and nothing is left behind.
//!
//! The applications are edge triggered: they touch a socket only when an event says so, and then until it would block, so a
//! lost edge is a connection that never ends. A run is repeated exactly by its seed (`ABEY_SEED`); `ABEY_SEEDS` runs more.

mod common;

use std::{collections::HashMap, net::SocketAddr};

use abey_tcpip::{CongestionControl, Counters, Instant, IoError, Readiness, Shutdown, SocketId, Stack};
use common::{Impairment, MICROSECOND, MILLISECOND, SECOND, Wire, World, byte, random_seed, settings, stack};
use rand::{Rng, RngExt};

/// One side of a connection. Stream numbers: what the client sends is even, what the server sends odd.
#[derive(Debug)]
struct Peer {
    stream: u64,
    to_send: u64,
    sent: u64,
    to_receive: u64,
    received: u64,
    finished_writing: bool,
    finished_reading: bool,
    /// Reads only so long after it was told that there is something.
    lazy: Option<u64>,
    /// Reads not before.
    reads_at: Option<u64>,
    /// Reads so much at most, and then waits again.
    bite: Option<usize>,
}

impl Peer {
    fn new(stream: u64, to_send: u64, to_receive: u64) -> Self {
        let lazy = (stream % 5 == 3).then_some(700 * MILLISECOND);
        Self {
            stream,
            to_send,
            sent: 0,
            to_receive,
            received: 0,
            finished_writing: false,
            finished_reading: false,
            lazy,
            reads_at: None,
            bite: None,
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
        let most = self.bite.unwrap_or(buffer.len());
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
                    if self.bite.is_some() {
                        self.reads_at = self.lazy.map(|wait| now.0 + wait);
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
    world: World,
    peers: [HashMap<SocketId, Peer>; 2],
    listener: SocketId,
    sizes: Vec<(u64, u64)>,
    opened: HashMap<SocketAddr, usize>,
    closed: usize,
}

impl Run {
    /// Everything about the run follows from the seed.
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
        let mut world = World::new(hosts, impairment, seed);
        if hard {
            world.pause = [0, 3 * SECOND][random.random_range(0..2)];
            for wire in &mut world.wires {
                single_out(&mut wire.impairment, &mut random);
            }
        }
        if impairment.loss > 0.01 || hard {
            // Three questions in a row are lost too often: the neighbours are known.
            for (side, peer) in [(0, 2_u8), (1, 1)] {
                for address in [[10, 0, 0, peer].into(), [0xfd00, 0, 0, 0, 0, 0, 0, peer.into()].into()] {
                    world.hosts[side].insert_neighbor(Instant(0), address, [2, 0, 0, 0, 0, peer]);
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
        // Sometimes the backlog overflows, so that some connections begin with a cookie.
        let backlog = [1, 64][random.random_range(0..2)];
        let listener = world.hosts[1].listen("[::]:80".parse().unwrap(), backlog).unwrap();
        let peers = [HashMap::new(), HashMap::new()];
        Self { hard, world, peers, listener, sizes, opened: HashMap::new(), closed: 0 }
    }

    /// One side of connection `number`. In a hard run every second reader takes little bites.
    fn peer(&self, stream: u64, to_send: u64, to_receive: u64) -> Peer {
        let mut peer = Peer::new(stream, to_send, to_receive);
        if self.hard && stream % 2 == self.world.now % 2 {
            (peer.lazy, peer.bite) = (Some(3 * MILLISECOND), Some(700));
        }
        peer
    }

    fn open(&mut self, random: &mut impl Rng) {
        for (number, &(up, down)) in self.sizes.clone().iter().enumerate() {
            let v6 = random.random_bool(0.5);
            let remote = if v6 { "[fd00::2]:80" } else { "10.0.0.2:80" }.parse().unwrap();
            let now = self.world.at();
            let id = self.world.hosts[0].connect(now, remote).unwrap();
            self.world.hosts[0].set_nodelay(id, random.random_bool(0.5)).unwrap();
            let address = self.world.hosts[0].local_addr(id).unwrap();
            self.opened.insert(address, number);
            let peer = self.peer(number as u64 * 2, up, down);
            self.peers[0].insert(id, peer);
        }
    }

    fn accept(&mut self) {
        while let Ok(id) = self.world.hosts[1].accept(self.listener) {
            let address = self.world.hosts[1].peer_addr(id).unwrap();
            let Some(number) = self.opened.remove(&address) else {
                // A cookie is good for two minutes: a late copy of the first segment opens the connection once more.
                let now = self.world.at();
                self.world.hosts[1].abort(now, id).unwrap();
                continue;
            };
            let (up, down) = self.sizes[number];
            let peer = self.peer(number as u64 * 2 + 1, down, up);
            self.peers[1].insert(id, peer);
        }
    }

    /// The applications: what events say, and nothing else.
    fn react(&mut self, buffer: &mut [u8]) {
        let now = self.world.at();
        for side in 0..2 {
            while let Some(event) = self.world.hosts[side].poll_event() {
                if event.socket == self.listener && side == 1 {
                    self.accept();
                    continue;
                }
                let host = &mut self.world.hosts[side];
                let Some(peer) = self.peers[side].get_mut(&event.socket) else { continue };
                if event.edges.intersects(Readiness::READABLE | Readiness::READ_CLOSED) {
                    match peer.lazy {
                        Some(wait) => _ = peer.reads_at.get_or_insert(now.0 + wait),
                        None => peer.read(host, now, event.socket, buffer),
                    }
                }
                if event.edges.contains(Readiness::WRITABLE) {
                    peer.write(host, now, event.socket);
                }
                self.close_if_finished(side, event.socket);
            }
            self.wake_lazy_readers(side, buffer);
        }
        let alarms = self.peers.iter().flat_map(|peers| peers.values().filter_map(|peer| peer.reads_at));
        self.world.alarm = alarms.min();
    }

    fn wake_lazy_readers(&mut self, side: usize, buffer: &mut [u8]) {
        let now = self.world.now;
        let due = |peer: &Peer| peer.reads_at.is_some_and(|at| at <= now);
        let ids: Vec<_> = self.peers[side].iter().filter(|(_, peer)| due(peer)).map(|(id, _)| *id).collect();
        for id in ids {
            if let Some(peer) = self.peers[side].get_mut(&id) {
                peer.reads_at = None;
                peer.read(&mut self.world.hosts[side], Instant(now), id, buffer);
                self.close_if_finished(side, id);
            }
        }
    }

    fn close_if_finished(&mut self, side: usize, id: SocketId) {
        if self.peers[side].get(&id).is_some_and(|peer| peer.finished_reading && peer.finished_writing) {
            self.world.hosts[side].close(self.world.at(), id).unwrap();
            self.peers[side].remove(&id);
            self.closed += 1;
        }
    }

    fn is_over(&self) -> bool {
        self.closed == 2 * self.sizes.len()
    }
}

/// One direction only loses acknowledgements, or only data, or everything for seconds at a time.
fn single_out(impairment: &mut Impairment, random: &mut impl Rng) {
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
    let limit = run.world.now + 4 * 3600 * SECOND * scale();
    while !run.is_over() {
        run.react(&mut buffer);
        if run.is_over() {
            break;
        }
        assert!(run.world.step(limit), "stuck: {:?} {:?}", run.peers, run.world.hosts.map(|host| *host.counters()));
    }
    run.world.alarm = None;
    // Long after, nothing remembers any of it.
    run.world.run(3600 * SECOND);
    for (side, host) in run.world.hosts.iter().enumerate() {
        assert_eq!(host.socket_count(), side, "sockets are left: {host:?}");
        assert_eq!(
            (host.flow_count(), host.timer_count(), host.time_wait_count()),
            (0, 0, 0),
            "flows or timers are left"
        );
        assert_eq!(host.poll_timeout(), None);
    }
    check_counters(&run.world, hard);
    let mut total = *run.world.hosts[0].counters();
    total.add(run.world.hosts[1].counters());
    total
}

/// Every frame is accounted for.
fn check_counters(world: &World, hard: bool) {
    for side in 0..2 {
        let (sender, receiver) = (world.hosts[side].counters(), world.hosts[1 - side].counters());
        let wire = &world.wires[side];
        assert_eq!(receiver.frames_received, wire.delivered);
        assert!(wire.longest <= world.hosts[side].frame_capacity());
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
        assert!(dropped <= wire.corrupted, "more was dropped than was corrupted: {receiver:?}");
        assert_eq!(sender.control_queue_drops, 0);
        let clean = |wire: &Wire| wire.lost == 0 && wire.corrupted == 0 && wire.impairment.jitter == 0;
        if !hard && world.wires.iter().all(clean) && receiver.tcp_listen_overflows + sender.tcp_listen_overflows == 0 {
            assert_eq!(sender.tcp_timeouts, 0, "nothing was lost, but a timer went off: {sender:?} {receiver:?}");
        }
    }
}

/// `ABEY_SCALE` makes the transfers longer.
fn scale() -> u64 {
    std::env::var("ABEY_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

fn seeds() -> u64 {
    std::env::var("ABEY_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1000)
}

/// All seeds, on all processors; what they counted together.
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
fn what_is_sent_is_received_for_every_seed() {
    let total = run_all(false);
    if std::env::var_os("ABEY_SEED").is_none() {
        check_coverage(&total);
    }
}

/// Acknowledgements, or data, of one direction only are lost; nothing comes through for seconds; hosts stand still;
/// applications read in little bites.
#[test]
fn what_is_sent_is_received_when_one_direction_suffers() {
    let total = run_all(true);
    assert!(total.tcp_timeouts > 0 && total.tcp_window_probes > 0);
}

/// The runs together did everything there is to do: a mechanism that never ran was not tested.
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
        assert!(value > 0 || !ran.contains(&name), "{name} never happened");
    }
    if std::env::var_os("ABEY_TRACE").is_some() {
        eprintln!("{total:#?}");
    }
}
