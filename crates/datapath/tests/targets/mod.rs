//! The fuzz target of this crate: what either end of a control socket sends. It runs in `cargo test` on changed inputs, and under
//! a coverage-guided fuzzer in `fuzz/`.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::OnceLock;

use abey_datapath::Runtime;
use abey_datapath::control::{Query, Reply, Request, Server, find_in};
use abey_nic::{MemoryShape, QueuePair};

/// A request to a datapath if the first byte is even, otherwise the answer of one.
pub(crate) fn control(data: &[u8]) {
    match data.split_first() {
        Some((first, request)) if first % 2 == 0 => to_datapath(request),
        Some((_, answer)) => to_client(answer),
        None => {}
    }
}

/// The datapath answers with valid lines or closes the connection, and answers the next client.
fn to_datapath(request: &[u8]) {
    static SERVED: OnceLock<(Runtime, Server, tempfile::TempDir)> = OnceLock::new();
    let (_, server, _) = SERVED.get_or_init(|| {
        let (queues, _) = abey_nic::pair(MemoryShape { slots: 64, ..MemoryShape::default() }).expect("a pair");
        let queues = queues.into_iter().map(|queue| Box::new(queue) as Box<dyn QueuePair>).collect();
        let runtime = Runtime::builder().queues("memory:fuzz", [2, 0, 0, 0, 0, 1], queues, None);
        let runtime = runtime.address([10, 0, 0, 1].into(), 24).build().expect("a runtime");
        let directory = tempfile::tempdir().expect("a directory");
        let server = runtime.serve_control_in(directory.path()).expect("served");
        (runtime, server, directory)
    });
    let mut stream = UnixStream::connect(server.path()).expect("connected");
    // The datapath may have closed the connection before the end of a long request.
    let _ = stream.write_all(request);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answers = Vec::new();
    let _ = stream.read_to_end(&mut answers);
    for line in answers.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
        serde_json::from_slice::<Reply>(line).expect("a valid answer");
    }
    let mut next = UnixStream::connect(server.path()).expect("connected");
    let status = serde_json::to_string(&Request::new(Query::Status)).expect("JSON");
    writeln!(next, "{status}").expect("written");
    let mut line = String::new();
    BufReader::new(next).read_line(&mut line).expect("an answer");
    serde_json::from_str::<Reply>(&line).expect("a valid answer");
}

/// The client returns what it was answered, or one line that can be printed.
fn to_client(answer: &[u8]) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join(format!("{}-0.sock", std::process::id()));
    let listener = UnixListener::bind(path).expect("bound");
    let client = find_in(directory.path()).expect("readable").pop().expect("one").expect("reached");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (stream, _) = listener.accept().expect("a connection");
            BufReader::new(&stream).read_line(&mut String::new()).expect("a request");
            // The client may have refused the beginning already.
            let _ = (&stream).write_all(answer);
        });
        let error = match client.sockets(10) {
            Ok(pages) => {
                assert!(!serde_json::to_string(&pages).expect("JSON").contains(char::is_control));
                return;
            }
            Err(error) => error.to_string(),
        };
        assert!(!error.is_empty() && !error.contains(char::is_control), "{error:?}");
    });
}
