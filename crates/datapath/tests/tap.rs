//! A runtime on a TAP device against the kernel's own TCP, both ways, in a namespace of the test's own.

use std::io::{Read, Write};
use std::process::Command;
use std::time::Duration;

use abey_datapath::{Error, Interest, Runtime, Shutdown, TcpListener, TcpStream};

const PATIENCE: Duration = Duration::from_secs(60);

fn ip(words: &str) {
    let output = Command::new("ip").args(words.split(' ')).output().expect("ip runs");
    assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
}

fn in_namespace(test: impl FnOnce() + Send) {
    if !nix::unistd::geteuid().is_root() || Command::new("ip").arg("-V").output().is_err() {
        eprintln!("skipped: needs root and the `ip` program to make a network namespace");
        return;
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("a namespace");
            test();
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Echoes one connection over epoll, until its end.
fn echo(runtime: &Runtime, listener: &TcpListener) -> Result<usize, Error> {
    let (stream, _) = listener.accept()?;
    stream.set_nonblocking(true);
    let epoll = runtime.epoll();
    epoll.add(&stream, 1, Interest::IN).expect("new");
    let (mut events, mut buffer, mut total) = (Vec::new(), vec![0; 64 << 10], 0);
    loop {
        assert_eq!(epoll.wait(&mut events, 1, Some(PATIENCE)).expect("a wait"), 1);
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(total),
            Ok(count) => {
                stream.set_nonblocking(false);
                stream.write_all(&buffer[..count])?;
                stream.set_nonblocking(true);
                total += count;
            }
            Err(error) if error.is_would_block() => {}
            Err(error) => return Err(error),
        }
    }
}

#[test]
fn the_kernel_is_client_and_server() {
    in_namespace(|| {
        for mode in ["base", "defer50", "napibusy", "fullbusy", "suspend20", "threaded", "workqueue", "hold50"] {
            let runtime = Runtime::builder()
                .nic("tap:abdp0", abey_nic::Options::default())
                .address([10, 8, 0, 2].into(), 24)
                .mode(mode.parse().expect("a mode"))
                .build()
                .expect("a runtime");
            ip("addr add 10.8.0.1/24 dev abdp0");
            ip("link set abdp0 up");
            client(&runtime, mode);
            server(&runtime, mode);
        }
    });
}

/// The kernel connects, makes round trips, and sends bulk data which comes back.
fn client(runtime: &Runtime, mode: &str) {
    const BULK: usize = 4 << 20;
    let listener = TcpListener::bind(runtime, ([10, 8, 0, 2], 7).into()).expect("a listener");
    listener.set_timeout(Some(PATIENCE));
    let data: Vec<u8> = (0..BULK).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| echo(runtime, &listener));
        let mut kernel = std::net::TcpStream::connect("10.8.0.2:7").expect("connected");
        kernel.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        kernel.set_nodelay(true).expect("open");
        for number in 0..100_u64 {
            kernel.write_all(&number.to_le_bytes()).expect("written");
            let mut answer = [0; 8];
            kernel.read_exact(&mut answer).expect("answered");
            assert_eq!(u64::from_le_bytes(answer), number, "{mode}");
        }
        let mut sender = kernel.try_clone().expect("cloned");
        let sent = &data;
        scope.spawn(move || {
            sender.write_all(sent).expect("written");
            sender.shutdown(std::net::Shutdown::Write).expect("open");
        });
        let mut back = Vec::new();
        kernel.read_to_end(&mut back).expect("all");
        assert!(back == data, "{mode}: bit-exact");
        assert_eq!(echo.join().expect("joined").expect("echoed"), BULK + 800, "{mode}");
    });
}

/// We connect to the kernel.
fn server(runtime: &Runtime, mode: &str) {
    let kernel = std::net::TcpListener::bind("10.8.0.1:9").expect("bound");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = kernel.accept().expect("a connection");
            let mut request = Vec::new();
            stream.read_to_end(&mut request).expect("a request");
            stream.write_all(&request).expect("written");
        });
        let address = ([10, 8, 0, 1], 9).into();
        let stream = TcpStream::connect_timeout(runtime, address, Some(PATIENCE)).expect("connected");
        stream.set_timeout(Some(PATIENCE));
        stream.write_all(b"from user space").expect("written");
        stream.shutdown(Shutdown::Write).expect("open");
        let mut answer = Vec::new();
        (&stream).read_to_end(&mut answer).expect("an answer");
        assert_eq!(answer, b"from user space", "{mode}");
    });
}
