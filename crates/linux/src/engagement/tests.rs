use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use abey_delivery::{EpollBusyPoll, Mode};

use super::*;

const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1));

fn at(port: u16) -> SocketAddr {
    SocketAddr::new(OWN, port)
}

fn listener(port: u16) -> ServedSocket {
    ServedSocket { protocol: Protocol::Tcp, local: at(port), is_listener: true, busy_polls: false }
}

fn wait(call: WaitCall, sockets: &[ServedSocket]) -> Wait {
    Wait { call, epoll: None, ring_polls: false, sockets: sockets.to_vec() }
}

fn epoll(epoll: EpollParams, sockets: &[ServedSocket]) -> Wait {
    Wait { epoll: Some(epoll), ..wait(WaitCall::Epoll, sockets) }
}

fn facts(library: Library, waits: &[Wait]) -> ProcessFacts {
    let datapath = DatapathSockets::None;
    ProcessFacts { pid: 7, comm: "server".to_owned(), library, waits: waits.to_vec(), datapath }
}

fn datapath() -> Needs {
    Needs::Datapath { addresses: vec![OWN], device: Some(4) }
}

#[track_caller]
fn reason(needs: &Needs, facts: &ProcessFacts) -> Option<Reason> {
    judge(needs, facts).map(|found| found.reason)
}

const SET: EpollParams = EpollParams::Set(EpollBusyPoll { usecs: 0, budget: 64, prefer: true });
const ALL_CALLS: [WaitCall; 6] =
    [WaitCall::Epoll, WaitCall::Poll, WaitCall::Select, WaitCall::Accept, WaitCall::Receive, WaitCall::IoUring];

#[test]
fn a_process_that_waits_for_nothing_is_not_judged() {
    for needs in [datapath(), Needs::Epoll, Needs::SocketBusyPoll, Needs::Library] {
        assert_eq!(judge(&needs, &facts(Library::Static, &[])), None, "a master of workers");
        assert_eq!(judge(&needs, &facts(Library::Static, &[wait(WaitCall::IoUring, &[])])), None, "of files only");
    }
}

#[test]
fn epoll_modes_need_waits_in_epoll_on_an_instance_with_parameters() {
    let one = [listener(80)];
    let of = |wait| reason(&Needs::Epoll, &facts(Library::Loaded, &[wait]));
    assert_eq!(of(epoll(SET, &one)), None);
    assert_eq!(of(epoll(EpollParams::Unset, &one)), Some(Reason::NoParameters));
    assert_eq!(of(epoll(EpollParams::Unset, &[])), None, "an instance without sockets that count");
    for call in [WaitCall::Poll, WaitCall::Select, WaitCall::Accept, WaitCall::Receive] {
        assert_eq!(of(wait(call, &one)), Some(Reason::NoEpoll), "{call:?}");
    }
    assert_eq!(of(wait(WaitCall::IoUring, &one)), Some(Reason::IoUring));
    assert_eq!(of(Wait { ring_polls: true, ..wait(WaitCall::IoUring, &one) }), None);
}

#[test]
fn every_wait_of_a_process_is_judged() {
    let connection = ServedSocket { is_listener: false, ..listener(80) };
    let waits = [epoll(SET, &[listener(80)]), wait(WaitCall::Receive, std::slice::from_ref(&connection))];
    let found = judge(&Needs::Epoll, &facts(Library::Loaded, &waits)).expect("a thread for each connection");
    assert_eq!((found.reason, found.socket, found.call), (Reason::NoEpoll, connection, WaitCall::Receive));
}

#[test]
fn a_program_without_the_library_is_called_so_unless_its_way_of_waiting_is_the_obstacle() {
    let one = [listener(80)];
    let missing = Some(Reason::NoLibrary(Library::Static));
    let of = |needs: &Needs, wait| reason(needs, &facts(Library::Static, &[wait]));
    assert_eq!(of(&Needs::Epoll, epoll(EpollParams::Unset, &one)), missing);
    assert_eq!(of(&Needs::Epoll, epoll(SET, &one)), None, "it has set the parameters itself");
    assert_eq!(of(&Needs::Epoll, wait(WaitCall::Poll, &one)), Some(Reason::NoEpoll));
    assert_eq!(of(&datapath(), epoll(EpollParams::Unset, &one)), missing);
    assert_eq!(of(&datapath(), wait(WaitCall::IoUring, &one)), Some(Reason::IoUring));
    assert_eq!(of(&Needs::Library, wait(WaitCall::Accept, &one)), missing);
    assert_eq!(reason(&Needs::Library, &facts(Library::Loaded, &[wait(WaitCall::Accept, &one)])), None);
}

#[test]
fn a_blocking_receive_needs_busy_polling_sockets() {
    let busy = ServedSocket { busy_polls: true, ..listener(80) };
    for call in ALL_CALLS {
        let of = |library, socket: &ServedSocket| {
            reason(&Needs::SocketBusyPoll, &facts(library, &[wait(call, std::slice::from_ref(socket))]))
        };
        assert_eq!(of(Library::Loaded, &busy), None);
        assert_eq!(of(Library::Loaded, &listener(80)), Some(Reason::NoSocketBusyPoll));
        assert_eq!(of(Library::Missing, &listener(80)), Some(Reason::NoLibrary(Library::Missing)));
    }
}

#[test]
fn a_datapath_serves_its_ports_however_the_threads_wait() {
    for call in ALL_CALLS {
        let mut facts = facts(Library::Loaded, &[wait(call, &[listener(80)])]);
        assert_ne!(reason(&datapath(), &facts), None, "{call:?}");
        for (port, served) in [(80, true), (81, false)] {
            facts.datapath = DatapathSockets::Listening(vec![(Protocol::Tcp, at(port))]);
            assert_eq!(reason(&datapath(), &facts).is_none(), served, "{call:?}");
        }
        facts.datapath = DatapathSockets::Listening(vec![(Protocol::Udp, at(80))]);
        assert_ne!(reason(&datapath(), &facts), None, "of another protocol");
        facts.datapath = DatapathSockets::Unknown;
        assert_eq!(reason(&datapath(), &facts), None, "what cannot be read is not judged");
    }
    let any = DatapathSockets::Listening(vec![(Protocol::Tcp, "0.0.0.0:80".parse().expect("an address"))]);
    assert!(any.serve(Protocol::Tcp, at(80)) && !any.serve(Protocol::Tcp, at(81)));
}

#[test]
fn connections_of_the_kernel_that_another_process_accepted_are_reported_as_such() {
    let connection = ServedSocket { is_listener: false, ..listener(80) };
    let of =
        |library| reason(&datapath(), &facts(library, &[wait(WaitCall::Receive, std::slice::from_ref(&connection))]));
    assert_eq!(of(Library::Loaded), Some(Reason::Accepted));
    assert_eq!(of(Library::Static), Some(Reason::NoLibrary(Library::Static)));
    for (library, is_handed_over) in [(Library::Loaded, true), (Library::Static, false)] {
        let waits = [wait(WaitCall::Receive, std::slice::from_ref(&connection))];
        let found = judge(&datapath(), &facts(library, &waits)).expect("the kernel's");
        assert_eq!(found.is_handed_over(), is_handed_over, "{found}");
    }
}

#[test]
fn sockets_that_the_mode_cannot_reach_do_not_concern_it() {
    let on = |text: &str| Listener {
        protocol: Protocol::Tcp,
        local: text.parse().expect("an address"),
        v6_only: false,
        device: None,
    };
    let nic = datapath();
    for (text, kernel, own) in [
        ("198.18.0.1:80", true, true),
        ("198.18.0.9:80", true, false),
        ("0.0.0.0:80", true, true),
        ("[::]:80", true, true),
        ("127.0.0.1:80", false, false),
        ("[::1]:80", false, false),
    ] {
        assert_eq!((Needs::Epoll.concern(&on(text)), nic.concern(&on(text))), (kernel, own), "{text}");
    }
    assert!(!nic.concern(&Listener { v6_only: true, ..on("[::]:80") }), "the NIC has no IPv6 address");
    for (device, own) in [(4, true), (5, false)] {
        assert_eq!(nic.concern(&Listener { device: Some(device), ..on("0.0.0.0:80") }), own);
    }
    assert!(!Needs::Epoll.concern(&Listener { device: Some(1), ..on("0.0.0.0:80") }), "loopback");
}

#[test]
fn a_mode_needs_what_the_library_would_do() {
    let of = |mode: &str| {
        let mode: Mode = mode.parse().expect("a mode");
        Needs::of_kernel(&LibraryConfig::new(Some(mode), &mode.settings()))
    };
    for mode in ["base", "defer50", "threaded", "threaded-busy"] {
        assert_eq!(of(mode), None, "{mode}");
    }
    for mode in ["napibusy", "fullbusy", "suspend20"] {
        assert_eq!(of(mode), Some(Needs::Epoll), "{mode}");
    }
    assert_eq!(of("sockbusy50"), Some(Needs::SocketBusyPoll));
    let steered = LibraryConfig { steering: Some(Default::default()), ..LibraryConfig::default() };
    assert_eq!(Needs::of_kernel(&steered), Some(Needs::Library));
}

#[test]
fn sentences_name_the_socket_and_end_with_what_to_do() {
    let told = |needs: &Needs, library, wait| judge(needs, &facts(library, &[wait])).expect("not engaged").to_string();
    let one = [listener(80)];
    assert_eq!(
        told(&Needs::Epoll, Library::Loaded, wait(WaitCall::Select, &one)),
        "server (pid 7): it waits for TCP 198.18.0.1:80 in select, and the kernel busy polls in epoll_wait only: use a \
         mode that needs nothing of the program, such as defer50"
    );
    assert_eq!(
        told(&datapath(), Library::Static, epoll(EpollParams::Unset, &one)),
        "server (pid 7): it is statically linked, so libabey.so is not in it, and the kernel serves TCP 198.18.0.1:80: \
         use --world linux"
    );
    assert_eq!(
        told(&datapath(), Library::Loaded, epoll(EpollParams::Unset, &one)),
        "server (pid 7): it waits for TCP 198.18.0.1:80 in epoll_wait past the C library (as Go does), or on a socket \
         that another program opened, so the kernel accepts: use --world linux"
    );
    assert_eq!(
        told(&datapath(), Library::Privileged, epoll(EpollParams::Unset, &one)),
        "server (pid 7): it gains privileges when it starts, so libabey.so does nothing in it, and the kernel serves \
         TCP 198.18.0.1:80: start it as a user who has them"
    );
    let mut causes = std::collections::BTreeSet::new();
    for needs in [datapath(), Needs::Epoll, Needs::SocketBusyPoll, Needs::Library] {
        for library in [Library::Loaded, Library::Static, Library::Privileged, Library::Missing] {
            for call in ALL_CALLS {
                let wait = Wait { epoll: Some(EpollParams::Unset), ..wait(call, &one) };
                let found = judge(&needs, &facts(library, &[wait]));
                causes.extend(found.map(|found| found.cause()));
            }
        }
    }
    for cause in causes {
        assert!(cause.contains("198.18.0.1:80") && cause.contains(": ") && !cause.contains('\n'), "{cause}");
    }
}
