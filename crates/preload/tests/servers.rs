//! Unmodified servers start, serve, and have the mode's parameters on their epoll instances.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use abey_linux::epoll;
use common::{has, preloaded, run};

const STRICT_SUSPEND: [(&str, &str); 3] =
    [("ABEY_EPOLL", "0,64,1"), ("ABEY_STRICT", "1"), ("ABEY_ZERO_TIMEOUT", "poll")];

/// A server that is killed when the test ends.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // SAFETY: takes no pointers; the child was not waited for, so its process ID is still valid.
        unsafe { libc::kill(self.0.id() as i32, libc::SIGTERM) };
        let _ = self.0.wait();
    }
}

fn start(mut command: Command) -> Server {
    Server(command.stdout(Stdio::null()).spawn().expect("the server starts"))
}

fn lacks_root_or_kernel() -> bool {
    let lacks = !rustix::process::geteuid().is_root() || !epoll::supported().expect("the probe runs");
    if lacks {
        eprintln!("skipped: needs root, to read the server's epoll instances, and a kernel with EPIOCSPARAMS");
    }
    lacks
}

/// Returns a free port of a loopback address that only one test uses, since tests run at the same time.
fn free_port(own: &str) -> SocketAddr {
    TcpListener::bind((own, 0)).and_then(|listener| listener.local_addr()).expect("a free port")
}

/// Waits until the server listens, sends a request, and returns the first part of the answer.
fn ask(address: SocketAddr, request: &str) -> String {
    let deadline = Instant::now() + Duration::from_secs(120);
    let mut stream = loop {
        match TcpStream::connect(address) {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < deadline, "the server does not listen: {error}"),
        }
        thread::sleep(Duration::from_millis(10));
    };
    stream.set_read_timeout(Some(Duration::from_secs(120))).expect("set");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = [0; 512];
    let length = stream.read(&mut answer).expect("an answer");
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

/// Returns the parameters of every epoll instance of a process.
fn parameters_of(pid: u32) -> Vec<(u32, u16, bool)> {
    // SAFETY: takes no pointers; the returned descriptor is checked and owned.
    let process = unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0) as i32;
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd)
    };
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors");
    let instances = entries
        .filter_map(Result::ok)
        .filter(|entry| fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str() == "anon_inode:[eventpoll]"));
    let parameters = instances.map(|entry| {
        let number: i32 = entry.file_name().to_str().and_then(|name| name.parse().ok()).expect("a number");
        // SAFETY: takes no pointers; the returned descriptor is checked and owned.
        let instance = unsafe {
            use std::os::fd::AsRawFd;
            let fd = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) as i32;
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd)
        };
        let got = epoll::get(instance.as_fd()).expect("parameters");
        (got.usecs, got.budget, got.prefer)
    });
    parameters.collect()
}

fn assert_all_suspend(pid: u32) {
    let parameters = parameters_of(pid);
    assert!(!parameters.is_empty() && parameters.iter().all(|one| *one == (0, 64, true)), "{parameters:?}");
}

#[test]
fn memcached() {
    if lacks_root_or_kernel() || !has("memcached") {
        return;
    }
    let address = free_port("127.0.0.4");
    let mut command = preloaded("memcached", &STRICT_SUSPEND);
    command.args(["-u", "root", "-l", "127.0.0.4", "-t", "2", "-p", &address.port().to_string()]);
    let server = start(command);
    assert!(ask(address, "version\r\n").starts_with("VERSION "));
    assert_all_suspend(server.0.id());
}

#[test]
fn nginx_with_a_listener_per_worker() {
    if lacks_root_or_kernel() || !has("nginx") {
        return;
    }
    let (address, directory) = (free_port("127.0.0.5"), tempfile::tempdir().expect("a directory"));
    let path = directory.path().display();
    let configuration = directory.path().join("nginx.conf");
    fs::write(
        &configuration,
        format!(
            "daemon off; user root; worker_processes 2; pid {path}/pid; error_log {path}/errors;\n\
             events {{ use epoll; }}\n\
             http {{ access_log off; client_body_temp_path {path}/body; proxy_temp_path {path}/proxy;\n\
             fastcgi_temp_path {path}/fastcgi; uwsgi_temp_path {path}/uwsgi; scgi_temp_path {path}/scgi;\n\
             server {{ listen {address} reuseport; location / {{ return 200 'served\\n'; }} }} }}\n"
        ),
    )
    .expect("a configuration");
    let mut command = preloaded("nginx", &[&STRICT_SUSPEND[..], &[("ABEY_STEER", "queues:2")]].concat());
    command.arg("-e").arg(directory.path().join("errors")).arg("-c").arg(&configuration);
    let server = start(command);
    for _ in 0..16 {
        let answer = ask(address, "GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    let pid = server.0.id();
    let workers = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("its workers");
    let workers: Vec<u32> = workers.split_whitespace().map(|pid| pid.parse().expect("a number")).collect();
    assert_eq!(workers.len(), 2);
    workers.into_iter().for_each(assert_all_suspend);
}

#[test]
fn pythons_epoll() {
    if lacks_root_or_kernel() || !has("python3") {
        return;
    }
    // The number is that of EPIOCGPARAMS.
    const PROGRAM: &str = "import fcntl, select, struct\n\
        epoll = select.epoll()\n\
        print(*struct.unpack('=IHBB', fcntl.ioctl(epoll.fileno(), 0x80088a02, bytes(8))), epoll.poll(0), epoll.poll(0.01))\n";
    let mut command = preloaded("python3", &STRICT_SUSPEND);
    command.args(["-c", PROGRAM]);
    let output = run(command);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0 64 1 0 [] []\n", "{output:?}");
}
