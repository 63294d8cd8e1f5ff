//! The control socket: status and changes while traffic flows, and the isolation of the runtime from its clients.

#[allow(dead_code, reason = "the tests of the modes use the rest")]
#[path = "modes/support.rs"]
mod support;

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use abey_datapath::Runtime;
use abey_datapath::control::{
    Answer, Change, Client, ControlError, Latencies, MAX_CLIENTS, MAX_REQUEST, RefusalKind, Reply, Role, Server,
    find_in, statuses,
};
use abey_datapath::handover::Question;
use abey_delivery::{EpollBusyPoll, Mode, Nanos, PollContext};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect as connect_unix, recv, send,
    socket_with,
};
use support::{EchoServer, HANG_LIMIT, connect, eventually, every_mode, mode, pair, round_trip};
use tempfile::TempDir;

/// A runtime with a control socket in a directory of its own.
fn served(runtime: &Runtime) -> (Server, TempDir) {
    let directory = tempfile::tempdir().expect("a directory");
    let server = runtime.serve_control_in(directory.path()).expect("served");
    (server, directory)
}

fn only(directory: &Path) -> Client {
    let mut found = find_in(directory).expect("readable");
    assert_eq!(found.len(), 1, "{found:?}");
    found.pop().expect("one").expect("reachable")
}

fn raw(server: &Server) -> UnixStream {
    let stream = UnixStream::connect(server.path()).expect("connected");
    stream.set_read_timeout(Some(HANG_LIMIT)).expect("set");
    stream
}

/// Sends raw bytes, and reads one answer.
fn ask(stream: &UnixStream, request: &[u8]) -> Answer {
    let mut writer = stream;
    writer.write_all(request).expect("written");
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).expect("answered");
    serde_json::from_str::<Reply>(&line).expect("an answer").answer
}

fn refused(answer: Answer) -> RefusalKind {
    match answer {
        Answer::Refused(refusal) => refusal.kind,
        other => panic!("not refused: {other:?}"),
    }
}

fn is_closed(mut stream: &UnixStream) -> bool {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn a_status_is_the_runtimes() {
    let (client, server) = pair(mode("suspend20"), 2);
    let (control, directory) = served(&server);
    let echo = EchoServer::start(&server, 7);
    let stream = connect(&client, echo.address);
    for number in 0..50 {
        round_trip(&stream, number);
    }
    let asked = only(directory.path());
    assert_eq!(asked.pid(), std::process::id());
    let status = asked.status().expect("answered");
    assert_eq!((status.nic.as_str(), status.mode.as_deref()), ("server", Some("suspend20")));
    assert_eq!(status.shards.iter().map(|shard| shard.napi).collect::<Vec<_>>(), server.napi_ids());
    assert!(status.shards.iter().all(|shard| shard.settings == mode("suspend20").settings().napi));
    assert_eq!(status.busy_poll, Some(EpollBusyPoll { usecs: 0, budget: 64, prefer: true }));
    let sum = |name: &str| status.shards.iter().map(|shard| shard.counters[name]).sum::<u64>();
    assert!(sum("packets") >= 50 && sum("suspensions") > 0, "{status:?}");
    let packets = server.counters(None).packets;
    assert!(sum("packets") <= packets && status.stack["FramesReceived"] <= packets, "counters only grow: {status:?}");
    assert!(status.shards.iter().map(|shard| shard.nic.counters["received"]).sum::<u64>() <= packets);
    // A listener in each shard, which is one entry of its epoll, and the connection.
    assert_eq!(status.shards.iter().map(|shard| shard.held).sum::<usize>(), 3);
    // It polls the queue of the connection, and none for the listener.
    assert_eq!((status.epoll_count, status.epolls[0].sockets, status.epolls[0].napis.len()), (1, 2, 1));
    assert_eq!(status.addresses[0], "10.0.0.2/24");
    let of = |role| status.threads.iter().filter(move |thread| thread.role == role);
    assert_eq!((of(Role::Service).count(), of(Role::Worker).count(), of(Role::Control).count()), (2, 1, 1));
    for (thread, napi) in of(Role::Service).zip(server.napi_ids()) {
        assert_eq!((thread.napi, thread.name.as_str()), (Some(napi), format!("napi/server-{napi}").as_str()));
        assert!(Path::new(&format!("/proc/self/task/{}", thread.tid)).exists() && thread.cpus.is_some());
    }
    let known: u64 = status.threads.iter().filter_map(|thread| thread.cpu_ns).sum();
    assert!(status.process_cpu_ns >= known && status.process_cpu_ns > 0, "{status:?}");
    drop(control);
    assert!(find_in(directory.path()).expect("readable").is_empty());
    assert_eq!(fs::read_dir(directory.path()).expect("readable").count(), 0);
}

#[test]
fn modes_are_set_while_traffic_flows() {
    let (client, server) = pair(mode("base"), 1);
    let (_control, directory) = served(&server);
    let echo = EchoServer::start(&server, 7);
    let stream = connect(&client, echo.address);
    let asked = only(directory.path());
    let mut before: Mode = mode("base");
    for mode in every_mode() {
        let change = Change { all: Some(mode.settings()), ..Change::default() };
        let dry = Change { dry_run: true, ..change.clone() };
        let foreseen = asked.set(dry).expect("possible");
        assert_eq!(asked.status().expect("answered").mode, Some(before.to_string()), "a dry run changes nothing");
        assert_eq!(asked.set(change.clone()).expect("possible"), foreseen, "{mode}");
        assert_eq!(foreseen.is_empty(), before == mode, "{foreseen:?}");
        assert_eq!(asked.status().expect("answered").mode, Some(mode.to_string()));
        assert!(asked.set(change).expect("possible").is_empty(), "{mode} twice");
        for number in 0..20 {
            round_trip(&stream, number);
        }
        before = mode;
    }
}

#[test]
fn one_instance_and_one_setting_are_changed_all_or_nothing() {
    let (_client, server) = pair(mode("suspend20"), 2);
    let (_control, directory) = served(&server);
    let (asked, ids) = (only(directory.path()), server.napi_ids());
    let flush = |ns| Change { napis: Some(vec![ids[1]]), gro_flush_timeout_ns: Some(ns), ..Change::default() };
    let changes = asked.set(flush(50_000)).expect("possible");
    let changes: Vec<_> =
        changes.iter().map(|one| (one.napi, one.setting.as_str(), one.before.as_str(), one.after.as_str())).collect();
    assert_eq!(changes, [(Some(ids[1]), "gro-flush-timeout", "20us", "50us")]);
    let status = asked.status().expect("answered");
    let modes: Vec<_> = status.shards.iter().map(|shard| shard.mode.as_deref()).collect();
    assert_eq!((status.mode, modes), (None, vec![Some("suspend20"), Some("suspend50")]));
    let impossible = [
        flush(30_000_000_000),
        Change { defer_hard_irqs: Some(u32::MAX), ..Change::default() },
        Change { napis: Some(vec![ids[0], 99]), threaded: Some(PollContext::BusyThread), ..Change::default() },
        Change { napis: Some(vec![]), threaded: Some(PollContext::BusyThread), ..Change::default() },
        Change::default(),
    ];
    for change in impossible {
        let error = asked.set(change.clone()).expect_err("impossible");
        assert!(
            matches!(&error, ControlError::Refused(why) if why.kind == RefusalKind::Impossible),
            "{change:?}: {error}"
        );
    }
    assert_eq!(server.settings(ids[0]).expect("there"), mode("suspend20").settings().napi);
    assert_eq!(server.settings(ids[1]).expect("there"), mode("suspend50").settings().napi);
}

#[test]
fn an_invalid_request_is_refused_and_ends_the_connection() {
    let (_client, server) = pair(mode("base"), 1);
    let (control, _directory) = served(&server);
    let wrong: [&[u8]; 8] = [
        b"\n",
        b"GET / HTTP/1.1\n",
        b"{}\n",
        b"{\"version\":2,\"request\":\"status\"}\n",
        b"{\"version\":1,\"request\":\"reboot\"}\n",
        b"{\"version\":1,\"request\":{\"set\":{\"warp\":9}}}\n",
        b"\xff\xfe\0\n",
        b"{\"version\":1,\"request\":\"status\"}\n{\"version\":1,\"request\":\"status\"}\n",
    ];
    for request in wrong {
        let stream = raw(&control);
        assert_eq!(refused(ask(&stream, request)), RefusalKind::Malformed, "{request:?}");
        assert!(is_closed(&stream), "{request:?}");
    }
    let stream = raw(&control);
    assert_eq!(refused(ask(&stream, &vec![b'['; MAX_REQUEST])), RefusalKind::Malformed);
    // Deep nesting does not crash the thread.
    let deep = [vec![b'['; MAX_REQUEST - 2], vec![b'\n']].concat();
    assert_eq!(refused(ask(&raw(&control), &deep)), RefusalKind::Malformed);
    // A request may come in pieces, and several may come in sequence.
    let stream = raw(&control);
    (&stream).write_all(b"{\"version\":1,").expect("written");
    assert!(matches!(ask(&stream, b"\"request\":\"status\"}\n"), Answer::Status(_)));
    assert!(matches!(ask(&stream, b"{\"version\":1,\"request\":\"status\"}\n"), Answer::Status(_)));
}

#[test]
fn idle_and_unresponsive_clients_do_not_block_others() {
    let (client, server) = pair(mode("base"), 1);
    let (control, directory) = served(&server);
    let echo = EchoServer::start(&server, 7);
    let stream = connect(&client, echo.address);
    let silent: Vec<UnixStream> = (0..3 * MAX_CLIENTS).map(|_| raw(&control)).collect();
    // It sends requests and reads no answer, until the socket's buffer is full.
    let deaf = raw(&control);
    deaf.set_nonblocking(true).expect("set");
    let mut asked = 0;
    for number in 0..2000 {
        asked += usize::from((&deaf).write_all(b"{\"version\":1,\"request\":\"status\"}\n").is_ok());
        if number % 100 == 0 {
            round_trip(&stream, number);
            let status = only(directory.path()).status().expect("answered");
            assert!(status.shards[0].counters["packets"] > 0);
        }
    }
    assert!(asked > 0);
    let closed = silent.iter().filter(|stream| is_gone(stream)).count();
    assert!(closed >= 2 * MAX_CLIENTS, "{closed} of {} were turned out", silent.len());
}

fn is_gone(stream: &UnixStream) -> bool {
    stream.set_nonblocking(true).expect("set");
    !matches!((&mut &*stream).read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn the_thread_sleeps_without_requests() {
    let (_client, server) = pair(mode("suspend20"), 1);
    let (_control, directory) = served(&server);
    let asked = only(directory.path());
    let status = asked.status().expect("answered");
    let thread = status.threads.iter().find(|thread| thread.role == Role::Control).expect("a thread");
    let switches = || {
        let text = fs::read_to_string(format!("/proc/self/task/{}/status", thread.tid)).expect("there");
        let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:").map(str::trim));
        line.expect("a count").parse::<u64>().expect("a number")
    };
    // The thread may not sleep again yet.
    eventually("the thread sleeps on", || {
        let before = switches();
        std::thread::sleep(std::time::Duration::from_millis(300));
        switches() == before
    });
}

#[test]
fn stale_sockets_are_removed_and_names_are_unique() {
    let (client, server) = pair(mode("base"), 1);
    let (first, directory) = served(&server);
    let dead = directory.path().join("4000000-0.sock");
    drop(UnixListener::bind(&dead).expect("bound"));
    // A stale socket with the ID of this process, which was reused, and files that are no control sockets.
    let ours = directory.path().join(format!("{}-1.sock", std::process::id()));
    drop(UnixListener::bind(&ours).expect("bound"));
    for other in ["4000000-1.sock", "notes.txt"] {
        fs::write(directory.path().join(other), "mine").expect("written");
    }
    let second = client.serve_control_in(directory.path()).expect("served");
    assert_eq!(second.path(), ours);
    let found = find_in(directory.path()).expect("readable");
    let nics: Vec<String> =
        found.into_iter().map(|one| one.expect("reachable").status().expect("answered").nic).collect();
    assert_eq!(nics, ["server", "client"]);
    assert!(!dead.exists());
    drop((first, second));
    assert_eq!(fs::read_dir(directory.path()).expect("readable").count(), 2, "files of others stay");
}

#[test]
fn silent_sockets_delay_the_answers_of_others_by_one_time_limit_together() {
    // One after the other these would take longer than the limit of hanging tests.
    const SILENT: u32 = 100;
    let (_client, server) = pair(mode("base"), 1);
    let (_control, directory) = served(&server);
    let silent: Vec<UnixListener> = (0..SILENT)
        .map(|number| UnixListener::bind(directory.path().join(format!("1-{number}.sock"))).expect("bound"))
        .collect();
    let clients: Vec<Client> =
        find_in(directory.path()).expect("readable").into_iter().map(|one| one.expect("connected")).collect();
    let since = std::time::Instant::now();
    let (answered, without): (Vec<_>, Vec<_>) =
        statuses(clients).into_iter().map(|(_, status)| status).partition(Result::is_ok);
    assert!(since.elapsed() < HANG_LIMIT, "one after the other");
    assert_eq!(answered.len(), 1);
    assert_eq!(without.len(), silent.len());
    assert!(without.iter().all(|one| matches!(one, Err(ControlError::Silent { .. }))), "{without:?}");
}

#[test]
fn a_socket_with_a_full_backlog_is_silent_at_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("1-0.sock");
    let _listener = UnixListener::bind(&path).expect("bound");
    let waiting = || {
        let socket = rustix::net::socket_with(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            rustix::net::SocketFlags::NONBLOCK,
            None,
        );
        let socket = socket.expect("a socket");
        let address = rustix::net::SocketAddrUnix::new(&path).expect("short");
        rustix::net::connect(&socket, &address).is_ok().then_some(socket)
    };
    let backlog: Vec<_> = std::iter::from_fn(waiting).take(100_000).collect();
    let found = find_in(directory.path()).expect("readable");
    assert!(matches!(&found[..], [Err(one)] if matches!(one.error, ControlError::Silent { .. })), "{found:?}");
    drop(backlog);
}

#[test]
fn a_directory_or_a_socket_of_another_user_is_refused() {
    let (_client, server) = pair(mode("base"), 1);
    let (control, directory) = served(&server);
    let bits = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!(bits(control.path()), 0o600);
    let below = directory.path().join("below");
    drop(server.serve_control_in(&below).expect("made on the way"));
    assert_eq!(bits(&below), 0o700);
    fs::set_permissions(&below, Permissions::from_mode(0o777)).expect("set");
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(directory.path(), &link).expect("linked");
    let file = directory.path().join("file");
    fs::write(&file, "").expect("written");
    for wrong in [&below, &link, &file] {
        let error = server.serve_control_in(wrong).expect_err("refused");
        assert!(matches!(error, ControlError::Directory { .. }), "{error}");
    }
    assert!(find_in(&directory.path().join("nothing")).expect("no datapaths").is_empty());
}

#[test]
fn a_dropped_runtime_refuses_requests() {
    let (_client, server) = pair(mode("base"), 1);
    let (control, directory) = served(&server);
    let asked = only(directory.path());
    drop(server);
    let error = asked.status().expect_err("the runtime was dropped");
    assert!(matches!(&error, ControlError::Refused(why) if why.kind == RefusalKind::Gone), "{error}");
    drop(control);
    assert!(matches!(asked.status(), Err(ControlError::Gone { .. })));
}

#[test]
fn latencies_are_measured_after_the_first_query_and_only_at_the_answering_end() {
    let (client, server) = pair(mode("suspend20"), 1);
    let echo = EchoServer::start(&server, 7);
    let stream = connect(&client, echo.address);
    let ends = [&server, &client].map(|runtime| {
        let (control, directory) = served(runtime);
        (only(directory.path()), control, directory)
    });
    let trips = |numbers: std::ops::Range<u64>| numbers.for_each(|number| round_trip(&stream, number));
    trips(0..20);
    let watch = Nanos::from_millis(60_000);
    let ask = |end: usize| ends[end].0.latency(watch).expect("answered");
    let (before, opened) = (ask(0), ask(1));
    assert!(before.iter().chain(&opened).all(|page| page.requests == 0 && page.answered.is_empty()), "{before:?}");
    trips(20..60);
    // An answer is recorded after it is written, and the client may receive it before.
    eventually("40 answers", || Latencies::between(&before, &ask(0)).count == 40);
    let between = Latencies::between(&before, &ask(0));
    let (least, most) = (between.quantile(0.0).expect("some"), between.quantile(1.0).expect("some"));
    assert!(Nanos::ZERO < least && least <= most, "{between:?}");
    assert_eq!(Latencies::between(&opened, &ask(1)).count, 0, "the end that asks answers nothing");
}

fn answered(_: Question, _: Option<OwnedFd>) -> std::io::Result<Option<OwnedFd>> {
    Ok(None)
}

/// The socket for requests of child processes, to which any user can connect as well. Before: each connection without a request
/// kept every request waiting for a second.
#[test]
fn connections_without_a_request_do_not_delay_those_of_children() {
    let (client, _server) = pair(mode("base"), 1);
    let requests = client.serve_hand_overs(Some(answered)).expect("served");
    let name = format!("@abey-handover/{}/", std::process::id());
    let all = fs::read_to_string("/proc/net/unix").expect("readable");
    let name = all.split_whitespace().find(|word| word.starts_with(&name)).expect("it listens");
    let address = SocketAddrUnix::new_abstract_name(&name.as_bytes()[1..]).expect("a name");
    let stranger = || {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let socket = socket.expect("a socket");
        connect_unix(&socket, &address).expect("connected");
        socket
    };
    let strangers: Vec<OwnedFd> = (0..200).map(|_| stranger()).collect();
    let open = || {
        let is_open = |one: &&OwnedFd| recv(one, &mut [0; 8][..], RecvFlags::DONTWAIT) == Err(Errno::AGAIN);
        strangers.iter().filter(is_open).count()
    };
    let file = fs::File::open("/dev/null").expect("a file");
    let question = Question { kind: 0, object: 0 };
    let asked = requests.address().ask(question, file.as_fd()).expect("answered");
    assert!(asked.is_none());
    eventually("the oldest are closed", || open() <= 64);
    // The server may have closed it already.
    let _ = send(&strangers[199], b"{}", SendFlags::NOSIGNAL);
    eventually("the others are closed", || open() == 0);
}
