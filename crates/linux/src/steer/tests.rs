use super::*;
use proptest::prelude::*;

/// What a filter can see of a packet.
#[derive(Clone, Debug)]
struct Packet {
    queue_mapping: u32,
    device_type: u32,
    /// From the IP header on.
    bytes: Vec<u8>,
}

fn packet(queue_mapping: u32, source: SocketAddr) -> Packet {
    let bytes = match source {
        SocketAddr::V4(v4) => {
            let mut bytes = vec![0x46; 24];
            bytes[12..16].copy_from_slice(&v4.ip().octets());
            bytes
        }
        SocketAddr::V6(v6) => {
            let mut bytes = vec![0x60; 40];
            bytes[8..24].copy_from_slice(&v6.ip().octets());
            bytes
        }
    };
    let bytes = [bytes, source.port().to_be_bytes().to_vec()].concat();
    Packet { queue_mapping, device_type: libc::ARPHRD_ETHER.into(), bytes }
}

/// Runs a classic BPF program as the kernel defines it: as much of it as the filters use.
fn run(program: &[sock_filter], packet: &Packet) -> u32 {
    let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; 16]);
    let fetch = |offset: u32, length: usize| {
        if offset == (libc::SKF_AD_OFF + libc::SKF_AD_QUEUE) as u32 {
            return packet.queue_mapping;
        }
        if offset == (libc::SKF_AD_OFF + libc::SKF_AD_HATYPE) as u32 {
            return packet.device_type;
        }
        let start = offset.checked_sub(libc::SKF_NET_OFF as u32).expect("a load from the IP header") as usize;
        packet.bytes[start..start + length].iter().fold(0, |value, byte| value << 8 | u32::from(*byte))
    };
    let mut at = 0;
    loop {
        let sock_filter { code, jt, jf, k } = program[at];
        at += 1;
        let code = u32::from(code);
        let size = match code & 0x18 {
            libc::BPF_H => 2,
            libc::BPF_B => 1,
            _ => 4,
        };
        let operand = if code & libc::BPF_X != 0 { x } else { k };
        match (code & 0x07, code & 0xe0) {
            (libc::BPF_LD, libc::BPF_ABS) => a = fetch(k, size),
            (libc::BPF_LD, libc::BPF_IND) => a = fetch(k.wrapping_add(x), size),
            (libc::BPF_LD, libc::BPF_MEM) => a = memory[k as usize],
            (libc::BPF_LDX, libc::BPF_MEM) => x = memory[k as usize],
            (libc::BPF_LDX, libc::BPF_MSH) => x = 4 * (fetch(k, 1) & 0xf),
            (libc::BPF_ST, _) => memory[k as usize] = a,
            (libc::BPF_ALU, _) => {
                a = match code & 0xf0 {
                    libc::BPF_ADD => a.wrapping_add(operand),
                    libc::BPF_SUB => a.wrapping_sub(operand),
                    libc::BPF_MUL => a.wrapping_mul(operand),
                    libc::BPF_MOD => a % operand,
                    libc::BPF_RSH => a >> operand,
                    other => panic!("no such operation: {other:#x}"),
                }
            }
            (libc::BPF_JMP, _) => {
                at += match code & 0xf0 {
                    libc::BPF_JA => k as usize,
                    libc::BPF_JEQ => usize::from(if a == operand { jt } else { jf }),
                    libc::BPF_JGE => usize::from(if a >= operand { jt } else { jf }),
                    other => panic!("no such jump: {other:#x}"),
                }
            }
            (libc::BPF_RET, _) => return if code & 0x10 != 0 { a } else { k },
            other => panic!("no such instruction: {other:?}"),
        }
    }
}

fn some(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).expect("not zero")
}

proptest! {
    #[test]
    fn every_queue_gets_its_worker(
        workers in 1..100u32,
        queues in 1..100u32,
        known: bool,
        recorded: bool,
        queue in 0..100u32,
        source: SocketAddr,
    ) {
        let known = known || workers <= queues;
        let code = program(some(workers), known.then(|| some(queues)));
        // As a NIC's driver records it, or as veth leaves it.
        let mapping = queue % queues + u32::from(recorded);
        let worker = run(&code, &packet(mapping, source));
        prop_assert!(worker < workers);
        if known && workers > queues {
            prop_assert_eq!(worker % queues, mapping % queues);
        } else {
            prop_assert_eq!(worker, mapping % workers);
        }
    }

    #[test]
    fn a_packet_of_the_loopback_device_gets_no_worker(workers in 1..100u32, queues in 0..100u32, source: SocketAddr) {
        let code = program(some(workers), NonZeroU32::new(queues));
        let loopback = Packet { device_type: libc::ARPHRD_LOOPBACK.into(), ..packet(0, source) };
        prop_assert_eq!(run(&code, &loopback), NO_WORKER);
    }

    #[test]
    fn every_worker_of_a_shared_queue_is_used(
        workers in 2..24u32,
        queues in 1..8u32,
        ip: std::net::IpAddr,
        first in 1024..30_000u16,
        even: bool,
    ) {
        // The ports of one client, as a kernel hands them out: in a row, or every other one.
        let (workers, step) = (workers.max(queues + 1), if even { 2 } else { 1 });
        let code = program(some(workers), Some(some(queues)));
        let mut connections = vec![0u32; workers as usize];
        let total = 1_000 * workers;
        for n in 0..total {
            let source = SocketAddr::new(ip, first.wrapping_add((n / queues) as u16 * step));
            connections[run(&code, &packet(n % queues, source)) as usize] += 1;
        }
        for (worker, count) in (0u32..).zip(connections) {
            let queue = worker % queues;
            let sharers = workers / queues + u32::from(queue < workers % queues);
            let fair = total / queues / sharers;
            prop_assert!((fair / 2..=2 * fair).contains(&count), "worker {} got {}, fair is {}", worker, count, fair);
        }
    }
}

#[test]
fn listeners_are_counted_by_address_and_not_past_the_first_connection() {
    let table = "  sl  local_address rem_address   st tx_queue rx_queue\n\
        \x20  0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000\n\
        \x20  1: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000\n\
        \x20  2: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000\n\
        \x20  3: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000\n\
        \x20  4: 0100007F:1F90 0100007F:8000 01 00000000:00000000 00:00000000\n\
        \x20  5: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000\n";
    assert_eq!(count_in_table(table.as_bytes(), "0100007F:1F90").expect("readable"), 2);
    assert_eq!(count_in_table("".as_bytes(), "0100007F:1F90").expect("readable"), 0);
}

#[test]
fn the_tables_notation_is_the_machines() {
    use std::net::TcpListener;
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let Ok(listener) = TcpListener::bind(address) else {
            eprintln!("skipped: cannot bind {address}");
            continue;
        };
        assert_eq!(count_listeners(listener.local_addr().expect("an address")).expect("a table"), 1, "{address}");
    }
}
