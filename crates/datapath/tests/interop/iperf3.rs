//! The server side of iperf3's protocol, for one TCP stream in one direction.
//!
//! On the control connection the client sends a cookie that identifies it, and the server sends one byte for each state of
//! the test. Parameters and results are JSON documents after their length (32 bits, big-endian). The measured stream is a
//! second connection, which begins with the same cookie.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use abey_datapath::{Error, TcpListener, TcpStream};
use serde_json::{Value, json};

use crate::common::HANG_LIMIT;

const TEST_START: u8 = 1;
const TEST_RUNNING: u8 = 2;
const TEST_END: u8 = 4;
const PARAM_EXCHANGE: u8 = 9;
const CREATE_STREAMS: u8 = 10;
const EXCHANGE_RESULTS: u8 = 13;
const DISPLAY_RESULTS: u8 = 14;
const IPERF_DONE: u8 = 16;

/// Letters and a zero byte.
const COOKIE: usize = 37;

/// Serves one test.
pub(crate) fn serve(control: &TcpStream, listener: &TcpListener) {
    let mut cookie = [0; COOKIE];
    control.read_exact(&mut cookie).expect("a cookie");
    say(control, PARAM_EXCHANGE);
    let parameters = read_document(control);
    let reverse = parameters["reverse"].as_bool().unwrap_or(false);
    say(control, CREATE_STREAMS);
    let stream = accept(listener, &cookie);
    say(control, TEST_START);
    say(control, TEST_RUNNING);
    let started = Instant::now();
    let (over, bytes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| if reverse { send(&stream, &over, &bytes) } else { receive(&stream, &over, &bytes) });
        assert_eq!(hear(control), TEST_END);
        over.store(true, Ordering::Relaxed);
    });
    // A client that receives reads whole blocks, or until the end.
    drop(stream);
    say(control, EXCHANGE_RESULTS);
    read_document(control);
    let stream = json!({
        "id": 1, "bytes": bytes.into_inner(), "retransmits": -1, "jitter": 0, "errors": 0, "packets": 0,
        "start_time": 0, "end_time": started.elapsed().as_secs_f64(),
    });
    let results = json!({
        "cpu_util_total": 0, "cpu_util_user": 0, "cpu_util_system": 0, "sender_has_retransmits": 0, "streams": [stream],
    });
    write_document(control, &results);
    say(control, DISPLAY_RESULTS);
    assert_eq!(hear(control), IPERF_DONE);
}

fn accept(listener: &TcpListener, cookie: &[u8]) -> TcpStream {
    let until = Instant::now() + HANG_LIMIT;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_timeout(Some(HANG_LIMIT));
                let mut its = [0; COOKIE];
                stream.read_exact(&mut its).expect("a cookie");
                assert_eq!(its, cookie);
                stream.set_timeout(Some(Duration::from_millis(50)));
                return stream;
            }
            Err(Error::TimedOut) => assert!(Instant::now() < until, "no stream"),
            Err(error) => panic!("accept: {error}"),
        }
    }
}

fn send(stream: &TcpStream, over: &AtomicBool, bytes: &AtomicU64) {
    let block = vec![0x61; 128 << 10];
    while !over.load(Ordering::Relaxed) {
        match stream.write(&block) {
            Ok(count) => drop(bytes.fetch_add(count as u64, Ordering::Relaxed)),
            Err(Error::TimedOut) => {}
            Err(error) => panic!("write: {error}"),
        }
    }
}

fn receive(stream: &TcpStream, over: &AtomicBool, bytes: &AtomicU64) {
    let mut buffer = vec![0; 128 << 10];
    while !over.load(Ordering::Relaxed) {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => drop(bytes.fetch_add(count as u64, Ordering::Relaxed)),
            Err(Error::TimedOut) => {}
            Err(error) => panic!("read: {error}"),
        }
    }
}

fn say(control: &TcpStream, state: u8) {
    control.write_all(&[state]).expect("written");
}

fn hear(control: &TcpStream) -> u8 {
    let mut state = [0];
    control.read_exact(&mut state).expect("a state");
    state[0]
}

fn read_document(control: &TcpStream) -> Value {
    let mut length = [0; 4];
    control.read_exact(&mut length).expect("a length");
    let mut text = vec![0; u32::from_be_bytes(length).min(1 << 20) as usize];
    control.read_exact(&mut text).expect("a document");
    serde_json::from_slice(&text).expect("JSON")
}

fn write_document(control: &TcpStream, document: &Value) {
    let text = document.to_string();
    control.write_all(&(text.len() as u32).to_be_bytes()).expect("written");
    control.write_all(text.as_bytes()).expect("written");
}
