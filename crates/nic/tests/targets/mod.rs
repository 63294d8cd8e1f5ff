//! Fuzz targets of this crate: what another process sends to the broker, to a process of the program, and to either end of a
//! shared-memory NIC. They run in `cargo test` on changed inputs, and under a coverage-guided fuzzer in `fuzz/`.

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

use abey_nic::broker::{Reply, Request};
use abey_nic::{MemoryEnd, MemoryShape, Nic, Options, open};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, accept, bind, connect, listen, recv, sendmsg, socket_with,
};

/// A datagram of the broker's protocol: parsing does not panic, and what was accepted is what is sent.
pub(crate) fn broker(data: &[u8]) {
    if let Some(request) = Request::parse(data) {
        assert_eq!(Request::parse(&request.to_bytes()), Some(request));
    }
    if let Some(reply) = Reply::parse(data) {
        assert_eq!(Reply::parse(&reply.to_bytes()), Some(reply));
    }
}

/// A message of the handshake. The first byte selects the end that receives it, and the number and kind of descriptors.
pub(crate) fn handshake(data: &[u8]) {
    let (first, message) = data.split_first().map_or((0, data), |(first, rest)| (*first, rest));
    let descriptors: Vec<OwnedFd> = (0..first >> 4 & 3).map(|_| descriptor(first >> 6)).collect();
    if first & 1 == 0 { to_creator(message, &descriptors) } else { to_attacher(message, &descriptors) }
}

fn descriptor(kind: u8) -> OwnedFd {
    match kind {
        0 => eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd"),
        1 => File::open("/dev/zero").expect("a file").into(),
        2 => socket(),
        _ => rustix::fs::memfd_create("fuzz", rustix::fs::MemfdFlags::CLOEXEC).expect("memory"),
    }
}

fn socket() -> OwnedFd {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket")
}

fn address(name: &str) -> SocketAddrUnix {
    let user = rustix::process::geteuid().as_raw();
    SocketAddrUnix::new_abstract_name(format!("abey-nic/{user}/{name}").as_bytes()).expect("a name")
}

fn send(socket: &OwnedFd, message: &[u8], descriptors: &[OwnedFd]) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let passed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    if !passed.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&passed)));
    }
    // A message that is too long for the socket is refused.
    let _ = sendmsg(socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL);
}

/// The creator survives it: the next peer gets an offer.
fn to_creator(message: &[u8], descriptors: &[OwnedFd]) {
    static CREATOR: OnceLock<(String, std::sync::Mutex<Nic>)> = OnceLock::new();
    let (name, _) = CREATOR.get_or_init(|| {
        let name = format!("fuzz-creator-{}", std::process::id());
        let mut options = Options::default();
        options.end = MemoryEnd::Create;
        options.memory = MemoryShape { slots: 64, ..MemoryShape::default() };
        let nic = open(&format!("memory:{name}"), &options).expect("created");
        (name, std::sync::Mutex::new(nic))
    });
    let peer = socket();
    connect(&peer, &address(name)).expect("connected");
    send(&peer, message, descriptors);
    drop(peer);
    let next = socket();
    connect(&next, &address(name)).expect("connected");
    let (offered, _) = recv(&next, &mut [0; 256][..], RecvFlags::empty()).expect("a message");
    // While the creator has not noticed that the last peer has ended, it refuses the next one.
    assert!(offered == 64 || offered == 8, "{offered} bytes");
}

/// The attacher returns an error, or is attached to the memory that it was offered.
fn to_attacher(message: &[u8], descriptors: &[OwnedFd]) {
    let name = format!("fuzz-attacher-{}", std::process::id());
    let listener = socket();
    bind(&listener, &address(&name)).expect("bound");
    listen(&listener, 1).expect("listening");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let connection = accept(&listener).expect("a connection");
            send(&connection, message, descriptors);
        });
        if let Err(error) = open(&format!("memory:{name}"), &Options::default()) {
            let error = error.to_string();
            assert!(!error.is_empty() && !error.contains(char::is_control), "{error:?}");
        }
    });
}
