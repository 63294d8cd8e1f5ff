//! What an off-path attacker learns from the number of answers to his own packets: nothing (CVE-2016-5696 for
//! challenge ACKs, CVE-2020-25705 for ICMP errors and resets).

use abey_tcpip::{Frames, Instant, SocketId, Stack};

use super::common::{
    SECOND,
    script::{OWN, Script, Seg, seg},
    settings, stack,
};

/// Ports of the connection that is attacked, and of the attacker's own.
const VICTIM: u16 = 4000;
const ATTACKER: u16 = 4001;

/// Accepts a connection from `port`. Returns the initial sequence number of this host.
fn open(script: &mut Script, listener: SocketId, port: u16) -> Option<u32> {
    script.ports.1 = port;
    script.inject(&seg("S", 0, 0).options(1000, None, true));
    script.expect_one();
    script.inject(&seg("A", 1, 1));
    script.stack.accept(listener).unwrap();
    script.initial
}

/// Delivers `segment` `times` times. Returns the number of answers.
fn answers(script: &mut Script, segment: &Seg, times: usize) -> usize {
    let frame = script.build(segment);
    let mut out = Frames::default();
    for _ in 0..times {
        script.stack.handle_frame(script.at(), &frame);
        while script.stack.poll_transmit_burst(script.at(), &mut out, 64) > 0 {}
    }
    out.frames.len()
}

/// Sends `guess` to the victim's connection once a second, and then provokes challenge ACKs on the attacker's own
/// connection. Returns how many there are in each second.
fn challenges_seen(seed: u64, guess_port: u16, guess: &Seg) -> Vec<usize> {
    let mut script = Script::with_seed(seed, |_| ());
    let listener = script.stack.listen("0.0.0.0:80".parse().unwrap(), 8).unwrap();
    let initials = [VICTIM, ATTACKER].map(|port| open(&mut script, listener, port));
    (0..7)
        .map(|_| {
            script.now += SECOND;
            (script.ports.1, script.initial) = (guess_port, initials[0]);
            answers(&mut script, guess, 30);
            (script.ports.1, script.initial) = (ATTACKER, initials[1]);
            answers(&mut script, &seg("R", 100, 0), 1005)
        })
        .collect()
}

/// The attacker sees the same challenge ACKs whether a guess is inside the victim's window or not, and whether the
/// connection exists or not. Their number is not exact either.
#[test]
fn challenge_acks_reveal_nothing_about_another_connection() {
    let mut first = Vec::new();
    for seed in 0..4 {
        let outside = challenges_seen(seed, VICTIM, &seg("R", 1_000_000, 0));
        for guess in [seg("R", 100, 0), seg("S", 100, 0), seg("A", 1, 0x4000_0000), seg("PA", 1, 50_000).data(10)] {
            assert_eq!(challenges_seen(seed, VICTIM, &guess), outside, "{guess:?}");
        }
        assert_eq!(challenges_seen(seed, VICTIM + 100, &seg("R", 100, 0)), outside, "no such connection");
        let total: usize = outside.iter().sum();
        assert!((10..=30).contains(&total), "about ten in five seconds: {outside:?}");
        first.push(outside[0]);
    }
    assert!(first.iter().any(|&count| count != first[0]), "the budget is random: {first:?}");
}

/// A connection that was attacked has a budget again after five seconds.
#[test]
fn a_connection_answers_again_after_its_budget_was_used_up() {
    let mut script = Script::new(|_| ());
    script.accepted_with_sack();
    for _ in 0..3 {
        let answered = answers(&mut script, &seg("S", 100, 0), 100);
        assert!((5..=15).contains(&answered), "{answered}");
        script.now += 5 * SECOND;
    }
}

/// Builds a packet to the host's port `port` from 10.0.0.`source`: a UDP datagram, or a TCP segment with ACK.
fn probe(source: u8, tcp: bool, port: u16) -> Vec<u8> {
    let mut payload = vec![0x30, 0x39];
    payload.extend(port.to_be_bytes());
    if tcp {
        payload.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
    } else {
        payload.extend([0, 8, 0, 0]);
    }
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, source, 8, 0, 0x45, 0];
    frame.extend((20 + payload.len() as u16).to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, if tcp { 6 } else { 17 }, 0, 0, 10, 0, 0, source]);
    frame.extend(OWN);
    frame.extend(payload);
    smoltcp::wire::Ipv4Packet::new_unchecked(&mut frame[14..]).fill_checksum();
    frame
}

/// Returns the number of replies to `count` probes from `source` to closed ports, and to `ports` before them.
fn replies(host: &mut Stack, source: u8, tcp: bool, ports: impl Iterator<Item = u16>) -> usize {
    let mut out = Frames::default();
    for port in ports {
        host.handle_frame(Instant(1000 * SECOND), &probe(source, tcp, port));
        while host.poll_transmit_burst(Instant(1000 * SECOND), &mut out, 64) > 0 {}
    }
    out.frames.len()
}

/// Sends `forged` probes in the name of 10.0.0.9, of which one finds port 1000 open if `open` is set. Returns how many
/// replies the attacker sees afterwards at his `addresses`, each of which sends thirty probes.
fn replies_seen(seed: u64, tcp: bool, open: bool, forged: u16, addresses: u8) -> usize {
    let mut own = settings(2);
    (own.icmp_rate, own.reset_rate) = (100, 100);
    own.offloads.receive_verified = true;
    let mut host = stack(own, seed);
    for last in (9..10).chain(20..20 + addresses) {
        host.insert_neighbor(Instant(0), [10, 0, 0, last].into(), [2, 0, 0, 0, 0, last]);
    }
    let at = std::net::SocketAddr::from(([0, 0, 0, 0], if open { 1000 } else { 999 }));
    host.bind(at).unwrap();
    // An open TCP port answers an ACK, but a connection of 10.0.0.9 does not.
    let skipped = u16::from(tcp && open);
    replies(&mut host, 9, tcp, 1000 + skipped..1000 + forged);
    (20..20 + addresses).map(|last| replies(&mut host, last, tcp, 5000..5030)).sum()
}

/// A client that finds a closed port is refused at once, also a thousand times in a second.
#[test]
fn connections_to_closed_ports_are_refused_each_time() {
    let mut script = Script::new(|_| ());
    for port in 0..1500 {
        script.ports = (81, 10_000 + port);
        script.inject(&seg("S", 0, 0));
        assert_eq!(script.expect_one().flags, "RA", "connection {port}");
    }
}

/// Returns the share of right answers of the best rule "more than n replies mean one of the two cases".
fn best_guess(cases: [Vec<usize>; 2]) -> f64 {
    let most = cases.iter().flatten().copied().max().unwrap_or(0);
    let total = cases.iter().map(Vec::len).sum::<usize>() as f64;
    (0..=most)
        .map(|limit| {
            let above = cases.each_ref().map(|case| case.iter().filter(|&&count| count > limit).count());
            let right = above[0] + cases[1].len() - above[1];
            (right as f64 / total).max(1.0 - right as f64 / total)
        })
        .fold(0.0, f64::max)
}

/// The number of the attacker's replies does not depend on whether a forged probe found an open port.
#[test]
fn replies_reveal_nothing_about_probes_in_the_name_of_others() {
    for tcp in [false, true] {
        // With one address, and with more forged probes than one address may cause replies: exactly.
        for seed in 0..20 {
            for (forged, addresses) in [(20, 1), (200, 1), (200, 8)] {
                assert_eq!(
                    replies_seen(seed, tcp, true, forged, addresses),
                    replies_seen(seed, tcp, false, forged, addresses),
                    "seed {seed}, {forged} probes"
                );
            }
        }
        // With enough addresses to use up the host's replies: nothing beyond chance.
        let cases = [true, false].map(|open| {
            let first = if open { 1000 } else { 2000 };
            (first..first + 200).map(|seed| replies_seen(seed, tcp, open, 10, 8)).collect()
        });
        let right = best_guess(cases);
        assert!(right < 0.6, "{right} of the guesses are right");
    }
}
