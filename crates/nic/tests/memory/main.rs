//! The shared-memory NIC between two processes: frames, the death of either end, and peers that do not behave.

mod peer;
mod users;

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use abey_nic::{Frame, LinkState, MemoryEnd, MemoryShape, Nic, OpenError, Options, QueuePair, open};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, accept, bind, connect, listen,
    send, sendmsg, socket,
};

use peer::Peer;

/// A limit that only a hang reaches.
const HANG_LIMIT: Duration = Duration::from_secs(120);

fn create(name: &str) -> Nic {
    let mut options = Options::default();
    options.end = MemoryEnd::Create;
    options.memory = MemoryShape { queues: 2, slots: 64, ..MemoryShape::default() };
    open(&format!("memory:{name}"), &options).expect("create")
}

fn attach(name: &str) -> Result<Nic, OpenError> {
    open(&format!("memory:{name}"), &Options::default())
}

/// A name that no other test and no other run uses.
fn unique(test: &str) -> String {
    format!("test-{test}-{}", std::process::id())
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + HANG_LIMIT;
    while !done() {
        assert!(Instant::now() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sleeps as a driver does: armed, until an interrupt.
fn sleep(queue: &mut dyn QueuePair) {
    if !queue.unmask() {
        let mut polled = [PollFd::new(queue.as_fd(), PollFlags::POLLIN)];
        poll(&mut polled, PollTimeout::from(200_u16)).expect("poll");
        queue.acknowledge().expect("acknowledge");
    }
    queue.mask();
}

/// UDP of IPv4; the port chooses the queue.
fn datagram(port: u16, length: usize) -> Frame {
    let mut bytes = vec![0; 12];
    bytes.extend([0x08, 0x00, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend(port.to_be_bytes());
    bytes.extend([0, 53, 0, 8, 0, 0]);
    bytes.resize(length.max(42), port as u8);
    Frame::from(&bytes[..])
}

/// Sends frames to a peer that echoes them and takes the echoes, on every queue.
fn exchange(queues: &mut [Box<dyn QueuePair>], frames: u16) {
    let mut into = Frame::burst(64, 1500);
    let end = Instant::now() + HANG_LIMIT;
    let (mut sent, mut got) = (0, 0);
    while got < frames {
        assert!(Instant::now() < end, "{got} of {frames} echoes: {:?}", queues[0].counters());
        if sent < frames {
            let batch: Vec<_> =
                (sent..frames.min(sent + 16)).map(|n| datagram(n, 42 + usize::from(n) % 1400)).collect();
            sent += queues[0].transmit(&batch).expect("transmit") as u16;
            queues[0].kick().expect("kick");
        }
        let mut idle = true;
        for queue in &mut *queues {
            let count = queue.receive(&mut into).expect("receive");
            for frame in &into[..count] {
                let port = u16::from_be_bytes([frame[34], frame[35]]);
                assert_eq!(**frame, *datagram(port, 42 + usize::from(port) % 1400));
            }
            got += count as u16;
            idle &= count == 0;
        }
        if idle {
            sleep(&mut queues[usize::from(got % 2)]);
        }
    }
    assert_eq!(got, frames);
}

#[test]
fn a_creator_outlives_its_peers() {
    let name = unique("creator");
    let mut nic = create(&name);
    let mut queues = nic.take_queues();
    assert_eq!(queues[0].link(), LinkState::Down);
    assert_eq!(queues[0].transmit(&[datagram(1, 60)]).expect("transmit"), 1);
    assert_eq!(queues[0].counters().drops.link_down, 1);
    for round in 0..3 {
        let peer = Peer::start("attach", &name);
        until("the link comes up", || queues[0].link() == LinkState::Up);
        exchange(&mut queues, 2_000);
        if round == 0 {
            let busy = attach(&name).expect_err("one peer at a time").to_string();
            assert!(busy.contains("already has a peer"), "{busy}");
        }
        peer.kill();
        until("the link goes down", || queues[0].link() == LinkState::Down);
        let before = queues[0].counters().drops.link_down;
        assert_eq!(queues[0].transmit(&[datagram(1, 60), datagram(2, 60)]).expect("transmit"), 2);
        assert_eq!(queues[0].counters().drops.link_down, before + 2);
    }
}

#[test]
fn an_attacher_outlives_its_creator() {
    let name = unique("attacher");
    let first = Peer::start("create", &name);
    let mut nic = None;
    until("the creator is there", || {
        nic = attach(&name).ok();
        nic.is_some()
    });
    let mut queues = nic.expect("attached").take_queues();
    exchange(&mut queues, 500);
    first.kill();
    until("the link goes down", || queues[1].link() == LinkState::Down);
    let second = Peer::start("create", &name);
    until("the link comes up again", || queues[1].link() == LinkState::Up);
    exchange(&mut queues, 500);
    second.kill();
}

#[test]
fn names_in_use_and_names_without_a_creator_have_errors() {
    let name = unique("names");
    let missing = attach(&name).expect_err("no creator").to_string();
    assert!(missing.contains(&format!("there is no memory:{name}")), "{missing}");
    let nic = create(&name);
    let mut options = Options::default();
    options.end = MemoryEnd::Create;
    let taken = open(&format!("memory:{name}"), &options).expect_err("the name is taken").to_string();
    assert!(taken.contains("in use already"), "{taken}");
    drop(nic);
    create(&name);
    for (wrong, why) in [("eth0", "write memory:NAME"), ("memory:", "1 to 64"), ("memory:a/b", "1 to 64")] {
        let message = open(wrong, &Options::default()).expect_err(wrong).to_string();
        assert!(message.contains(wrong) && message.contains(why), "{message}");
    }
    options.memory.queues = 32;
    let most = unique("most");
    let nic = open(&format!("memory:{most}"), &options).expect("create");
    assert_eq!(attach(&most).expect("attach").queues(), 32, "the shape is the creator's");
    drop(nic);
    options.memory.slots = 100;
    let message = open(&format!("memory:{name}"), &options).expect_err("100 slots").to_string();
    assert!(message.contains("100 slots"), "{message}");
}

#[test]
fn peers_that_talk_nonsense_are_let_go() {
    let name = unique("nonsense");
    let mut nic = create(&name);
    let mut queues = nic.take_queues();
    let user = nix::unistd::geteuid();
    let address = UnixAddr::new_abstract(format!("abey-nic/{user}/{name}").as_bytes()).expect("address");
    for message in [&b""[..], b"x", b"abeynic1", &[0xff; 4096]] {
        let raw = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).expect("socket");
        connect(raw.as_raw_fd(), &address).expect("connect");
        if !message.is_empty() {
            // It may have given up on the one before only just now, and then hangs up on us: as good.
            let _ = send(raw.as_raw_fd(), message, MsgFlags::MSG_NOSIGNAL);
        }
    }
    assert_eq!(queues[0].link(), LinkState::Down);
    let peer = Peer::start("attach", &name);
    until("an honest peer gets its turn", || queues[0].link() == LinkState::Up);
    exchange(&mut queues, 200);
    peer.kill();
}

/// What a creator sends that offers something else than memory and eventfds.
fn attach_to_a_liar(test: &str, memory: File, event: File) -> String {
    let name = unique(test);
    let user = nix::unistd::geteuid();
    let address = UnixAddr::new_abstract(format!("abey-nic/{user}/{name}").as_bytes()).expect("address");
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).expect("socket");
    bind(listener.as_raw_fd(), &address).expect("bind");
    listen(&listener, Backlog::new(1).expect("backlog")).expect("listen");
    let liar = std::thread::spawn(move || {
        let connection = accept(listener.as_raw_fd()).expect("accept");
        let mut offer = b"abeynic1".to_vec();
        for number in [1_u32, 64, 1500, 0] {
            offer.extend(number.to_le_bytes());
        }
        offer.extend([1; 40]);
        let descriptors = [memory.as_raw_fd(), event.as_raw_fd()];
        let control = [ControlMessage::ScmRights(&descriptors)];
        sendmsg::<()>(connection, &[IoSlice::new(&offer)], &control, MsgFlags::empty(), None).expect("send");
        nix::unistd::close(connection).expect("close");
    });
    let error = attach(&name).expect_err("a liar").to_string();
    liar.join().expect("the liar ends");
    error
}

#[test]
fn what_is_no_sealed_memory_or_no_eventfd_is_refused() {
    let event = || File::from(OwnedFd::from(nix::sys::eventfd::EventFd::new().expect("eventfd")));
    let memory = |seals| {
        let flags = MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_CLOEXEC;
        let memory = File::from(memfd_create("liar", flags).expect("memfd"));
        memory.set_len(2 * (512 + 64 * 1_536)).expect("length");
        fcntl(&memory, FcntlArg::F_ADD_SEALS(seals)).expect("seals");
        memory
    };
    let message = attach_to_a_liar("unsealed", memory(SealFlag::empty()), event());
    assert!(message.contains("wrong size or is not sealed"), "{message}");
    let small = memory(SealFlag::empty());
    small.set_len(4096).expect("length");
    fcntl(&small, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).expect("seals");
    let message = attach_to_a_liar("small", small, event());
    assert!(message.contains("wrong size or is not sealed"), "{message}");
    let zero = File::open("/dev/zero").expect("open");
    let message = attach_to_a_liar("event", memory(SealFlag::F_SEAL_SHRINK), zero);
    assert!(message.contains("not a shared-memory NIC of this version"), "{message}");
}

/// Descriptors stay the same over the life of a queue pair, so that they can be registered once.
#[test]
fn a_change_of_the_link_interrupts() {
    let name = unique("interrupt");
    let mut nic = create(&name);
    let mut queues = nic.take_queues();
    assert!(!queues[1].unmask());
    let descriptor = queues[1].as_fd().as_raw_fd();
    let other = attach(&name).expect("attach");
    until("an interrupt arrives", || queues[1].acknowledge().expect("acknowledge"));
    drop(other);
    until("another one arrives", || queues[1].acknowledge().expect("acknowledge"));
    assert_eq!(queues[1].as_fd().as_raw_fd(), descriptor);
}
