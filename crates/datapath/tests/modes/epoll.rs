//! The semantics of epoll: level, edge, one-shot, RDHUP, exclusive, several shards, several threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use abey_datapath::{Epoll, EpollError, Event, Interest, Runtime, Shutdown, TcpListener, TcpStream, UdpSocket};

use crate::support::{HANG_LIMIT, at, connect, eventually, every_mode, mode, pair};

/// Returns both ends of a connection, the client's and the server's, which is non-blocking.
fn connection(client: &Runtime, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let there = connect(client, listener.local_addr().expect("bound"));
    let (here, _) = listener.accept().expect("a connection");
    here.set_nonblocking(true);
    (there, here)
}

fn listener(server: &Runtime) -> TcpListener {
    let listener = TcpListener::bind(server, at(9)).expect("a listener");
    listener.set_timeout(Some(HANG_LIMIT));
    listener
}

/// Returns the events of a wait, of which there must be some.
fn wait(epoll: &Epoll) -> Vec<Event> {
    let mut events = Vec::new();
    epoll.wait(&mut events, 16, Some(HANG_LIMIT)).expect("a wait");
    assert!(!events.is_empty(), "the wait was in vain");
    events
}

fn nothing(epoll: &Epoll) -> bool {
    let mut events = Vec::new();
    epoll.wait(&mut events, 16, Some(Duration::from_millis(5))).expect("a wait") == 0
}

fn read(stream: &TcpStream, count: usize) {
    stream.read_exact(&mut vec![0; count]).expect("there");
}

#[test]
fn level_edge_and_one_shot_in_every_mode() {
    for mode in every_mode() {
        let (client, server) = pair(mode, 1);
        let listener = listener(&server);
        let (there, here) = connection(&client, &listener);
        let epoll = server.epoll();

        epoll.add(&here, 1, Interest::IN).expect("new");
        assert!(nothing(&epoll), "{mode}");
        there.write_all(b"abcd").expect("written");
        assert!(wait(&epoll)[0].is_readable());
        read(&here, 2);
        assert!(wait(&epoll)[0].is_readable(), "{mode}: level-triggered, and half is left");
        read(&here, 2);
        assert!(nothing(&epoll), "{mode}");

        epoll.modify(&here, 2, Interest::IN | Interest::EDGE).expect("in");
        there.write_all(b"ab").expect("written");
        let events = wait(&epoll);
        assert_eq!((events[0].token, events[0].is_readable()), (2, true), "{mode}");
        assert!(nothing(&epoll), "{mode}: edge-triggered, and nothing has happened");
        there.write_all(b"cd").expect("written");
        assert_eq!(wait(&epoll).len(), 1, "{mode}: new data is an edge, read or not");
        read(&here, 4);

        epoll.modify(&here, 3, Interest::IN | Interest::ONESHOT).expect("in");
        there.write_all(b"a").expect("written");
        assert_eq!(wait(&epoll)[0].token, 3);
        there.write_all(b"b").expect("written");
        assert!(nothing(&epoll), "{mode}: one shot was fired");
        epoll.modify(&here, 4, Interest::IN | Interest::ONESHOT).expect("in");
        assert_eq!(wait(&epoll)[0].token, 4, "{mode}: rearmed, and the data is still there");
    }
}

#[test]
fn the_end_of_the_stream_is_reported_as_requested_in_every_mode() {
    for mode in every_mode() {
        let (client, server) = pair(mode, 1);
        let listener = listener(&server);
        let (there, here) = connection(&client, &listener);
        let epoll = server.epoll();
        epoll.add(&here, 1, Interest::RDHUP | Interest::EDGE).expect("new");
        there.shutdown(Shutdown::Write).expect("open");
        let event = wait(&epoll)[0];
        assert!(event.is_read_closed() && !event.is_readable() && !event.is_hung_up(), "{mode}: {event:?}");
        epoll.modify(&here, 1, Interest::IN).expect("in");
        let event = wait(&epoll)[0];
        assert!(event.is_readable() && !event.is_read_closed(), "{mode}: {event:?}");
        assert_eq!(here.read(&mut [0; 1]).expect("the end"), 0);
        here.shutdown(Shutdown::Write).expect("open");
        eventually("both directions are over", || wait(&epoll)[0].is_hung_up());
    }
}

#[test]
fn room_to_write_is_reported_after_a_refused_write() {
    let (client, server) = pair(mode("base"), 1);
    let listener = listener(&server);
    let (there, here) = connection(&client, &listener);
    let epoll = server.epoll();
    epoll.add(&here, 1, Interest::OUT).expect("new");
    assert!(wait(&epoll)[0].is_writable());
    let mut written = 0;
    while let Ok(count) = here.write(&[7; 64 << 10]) {
        written += count;
    }
    assert!(nothing(&epoll), "full");
    let reader = std::thread::spawn(move || read(&there, written));
    assert!(wait(&epoll)[0].is_writable());
    reader.join().expect("all was read");
}

#[test]
fn a_non_blocking_connect_becomes_writable_or_fails() {
    let (client, server) = pair(mode("suspend20"), 2);
    let listener = listener(&server);
    let epoll = client.epoll();
    for shard in 0..2 {
        let stream = TcpStream::connect_nonblocking(&client, at(9), Some(shard)).expect("begun");
        assert_eq!(stream.incoming_napi_id(), client.napi_ids()[shard]);
        epoll.add(&stream, 1, Interest::OUT).expect("new");
        assert!(wait(&epoll)[0].is_writable());
        assert_eq!(stream.take_error().expect("open"), None);
        let (accepted, peer) = listener.accept().expect("a connection");
        assert_eq!(peer, stream.local_addr().expect("open"));
        // With a symmetric key both ends are in shards of the same index.
        assert_eq!(accepted.incoming_napi_id(), server.napi_ids()[shard], "steered to the wanted shard");
    }
    let refused = TcpStream::connect_nonblocking(&client, at(10), None).expect("begun");
    epoll.add(&refused, 2, Interest::OUT).expect("new");
    let event = wait(&epoll)[0];
    assert!(event.is_error() && event.is_hung_up(), "{event:?}");
    assert_eq!(refused.take_error().expect("open"), Some(abey_datapath::SocketError::Refused));
    assert!(matches!(TcpStream::connect(&client, at(10)), Err(abey_datapath::OpenError::Network(_))));
}

#[test]
fn one_epoll_has_sockets_of_several_shards_and_reuse_port_listeners_have_one_each() {
    let (client, server) = pair(mode("suspend20"), 2);
    let listeners = [0, 1].map(|shard| TcpListener::bind_reuse_port(&server, at(9), shard).expect("a listener"));
    let epoll = server.epoll();
    for (token, listener) in listeners.iter().enumerate() {
        listener.set_nonblocking(true);
        epoll.add(listener, token as u64, Interest::IN).expect("new");
    }
    for shard in [0, 1, 1, 0] {
        let stream = TcpStream::connect_nonblocking(&client, at(9), Some(shard)).expect("begun");
        assert_eq!(wait(&epoll)[0].token, shard as u64, "the listener of the shard where it arrives");
        let (accepted, _) = listeners[shard].accept().expect("a connection");
        assert_eq!(accepted.incoming_napi_id(), server.napi_ids()[shard]);
        drop(stream);
    }
}

#[test]
fn an_exclusive_listener_wakes_one_epoll() {
    let (client, server) = pair(mode("base"), 1);
    let listener = listener(&server);
    // A thread that does not sleep yet is notified too, so on a busy machine several connections may be necessary.
    eventually("not all epolls are woken", || woken_of_three(&client, &server, &listener) < 3);
}

/// Returns how many of three threads a connection wakes. Each waits in an epoll of its own for the listener alone.
fn woken_of_three(client: &Runtime, server: &Runtime, listener: &TcpListener) -> usize {
    const CONNECTION: u64 = 1;
    let woken = AtomicUsize::new(0);
    let end = UdpSocket::bind(server, at(8)).expect("bound");
    let ender = UdpSocket::bind(client, "10.0.0.1:0".parse().expect("an address")).expect("bound");
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let epoll = server.epoll();
                let exclusive = Interest::IN | Interest::EDGE | Interest::EXCLUSIVE;
                epoll.add(listener, CONNECTION, exclusive).expect("new");
                epoll.add(&end, 2, Interest::IN).expect("new");
                let is_reported = wait(&epoll).iter().any(|event| event.token == CONNECTION);
                woken.fetch_add(usize::from(is_reported), Ordering::Relaxed);
            });
        }
        // Time for the threads to fall asleep.
        std::thread::sleep(Duration::from_millis(50));
        let connected = connect(client, at(9));
        eventually("one is woken", || woken.load(Ordering::Relaxed) > 0);
        // The others wait until they are woken.
        ender.send_to(b"end", Some(at(8))).expect("sent");
        drop(connected);
    });
    listener.accept().expect("the connection");
    woken.into_inner()
}

#[test]
fn a_socket_that_was_emptied_does_not_displace_another() {
    let (client, server) = pair(mode("base"), 1);
    let sockets = [8, 9].map(|port| UdpSocket::bind(&server, at(port)).expect("bound"));
    let there = UdpSocket::bind(&client, "10.0.0.1:0".parse().expect("an address")).expect("bound");
    let epoll = server.epoll();
    for (token, socket) in sockets.iter().enumerate() {
        epoll.add(socket, token as u64, Interest::IN).expect("new");
    }
    there.send_to(b"a", Some(at(8))).expect("sent");
    assert_eq!(wait(&epoll)[0].token, 0);
    sockets[0].recv_from(&mut [0; 8]).expect("there");
    there.send_to(b"b", Some(at(9))).expect("sent");
    eventually("it arrives", || sockets[1].readiness().contains(abey_datapath::Readiness::READABLE));
    let mut events = Vec::new();
    assert_eq!(epoll.wait(&mut events, 1, Some(Duration::ZERO)).expect("a wait"), 1, "the first has nothing any more");
    assert_eq!(events[0].token, 1);
}

/// As in the kernel, an event that a thread took and did not read is reported to the others.
#[test]
fn unread_data_wakes_another_sleeping_thread_in_every_mode() {
    for mode in every_mode() {
        let (client, server) = pair(mode, 1);
        let here = UdpSocket::bind(&server, at(8)).expect("bound");
        let there = UdpSocket::bind(&client, "10.0.0.1:0".parse().expect("an address")).expect("bound");
        let epoll = server.epoll();
        epoll.add(&here, 1, Interest::IN).expect("new");
        std::thread::scope(|scope| {
            let waits = [0, 1, 2].map(|_| scope.spawn(|| assert_eq!(wait(&epoll)[0].token, 1, "{mode}")));
            // Time for the threads to fall asleep.
            std::thread::sleep(Duration::from_millis(20));
            there.send_to(b"a", Some(at(8))).expect("sent");
            waits.into_iter().for_each(|wait| wait.join().expect("woken"));
        });
    }
}

#[test]
fn misuse_is_an_error() {
    let (client, server) = pair(mode("base"), 1);
    let listener = listener(&server);
    let epoll = server.epoll();
    assert!(matches!(epoll.modify(&listener, 1, Interest::IN), Err(EpollError::NotAdded)));
    assert!(matches!(epoll.remove(&listener), Err(EpollError::NotAdded)));
    epoll.add(&listener, 1, Interest::IN).expect("new");
    assert!(matches!(epoll.add(&listener, 1, Interest::IN), Err(EpollError::AlreadyAdded)));
    assert!(matches!(client.epoll().add(&listener, 1, Interest::IN), Err(EpollError::OtherRuntime)));
    assert!(matches!(epoll.wait(&mut Vec::new(), 0, None), Err(EpollError::NoRoom)));
    drop(listener);
    assert!(epoll.is_empty(), "closing takes a socket out");
    let waiter = std::thread::spawn(move || epoll.wait(&mut Vec::new(), 1, None).map(|_| ()));
    drop(server);
    assert!(matches!(waiter.join().expect("joined"), Err(EpollError::RuntimeDropped)));
}

#[test]
fn datagrams_go_both_ways_in_every_mode() {
    for mode in every_mode() {
        let (client, server) = pair(mode, 2);
        let here = UdpSocket::bind(&server, at(53)).expect("bound");
        let there = UdpSocket::bind(&client, "10.0.0.1:0".parse().expect("an address")).expect("bound");
        for socket in [&here, &there] {
            socket.set_timeout(Some(HANG_LIMIT));
        }
        let mut buffer = [0; 64];
        for number in 0..20_u8 {
            there.send_to(&[number], Some(at(53))).expect("sent");
            let (count, peer, _) = here.recv_from(&mut buffer).expect("received");
            assert_eq!((&buffer[..count], peer), (&[number][..], there.local_addr().expect("bound")), "{mode}");
            here.send_to(&[number, number], Some(peer)).expect("sent");
            assert_eq!(there.recv_from(&mut buffer).expect("received").0, 2, "{mode}");
        }
    }
}

#[test]
fn an_epoll_with_only_a_listener_polls_no_queue() {
    let (client, server) = pair(mode("fullbusy"), 1);
    let listener = listener(&server);
    let epoll = server.epoll();
    epoll.add(&listener, 1, Interest::IN).expect("new");
    assert!(nothing(&epoll));
    let there = std::thread::scope(|scope| {
        let there = scope.spawn(|| connect(&client, at(9)));
        assert_eq!(wait(&epoll)[0].token, 1);
        there.join().expect("connected")
    });
    let counters = server.counters(None);
    assert_eq!(
        (counters.busy_polls, counters.driven_sleeps),
        (0, 0),
        "as in the kernel, a listener is on no NAPI instance"
    );
    let (here, _) = listener.accept().expect("a connection");
    epoll.add(&here, 2, Interest::IN).expect("new");
    there.write_all(b"a").expect("written");
    assert_eq!(wait(&epoll)[0].token, 2);
    assert!(server.counters(None).busy_polls > 0, "a connection is");
}

#[test]
fn an_answer_is_sent_although_the_program_does_not_wait_again() {
    let (client, server) = pair(mode("suspend20"), 1);
    let listener = listener(&server);
    let ends = [connection(&client, &listener), connection(&client, &listener)];
    let epoll = server.epoll();
    for (token, (there, here)) in ends.iter().enumerate() {
        epoll.add(here, token as u64, Interest::IN).expect("new");
        there.write_all(b"question").expect("written");
    }
    // Both have a request, and one wait reports both. The program answers one and does something else.
    eventually("both are reported", || wait(&epoll).len() == 2);
    ends[0].1.write_all(b"answer").expect("written");
    read(&ends[0].0, 6);
}
