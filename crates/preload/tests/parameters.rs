//! The mode's parameters are set on every epoll instance and socket, and nothing else changes.

mod common;

use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use abey_linux::epoll;
use common::{guest, is_guest, library, preloaded, run, succeeds, succeeds_silently};
use rustix::thread::CapabilitySet;

const SUSPEND: (&str, &str) = ("ABEY_EPOLL", "0,64,1");
const NOTHING_PRINTED: (&str, &str) = ("ABEY_TOLD", abey_linux::library::NOTHING_PRINTED);
/// The variable with the parameters that a guest expects of its epoll instances, as `usecs,budget,prefer`.
const EXPECTED: &str = "PRELOAD_TEST_EXPECTED";

fn own(fd: libc::c_int) -> OwnedFd {
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: a new descriptor, which nothing else owns.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn new_epoll() -> OwnedFd {
    // SAFETY: takes no pointers.
    own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
}

fn parameters(epoll: &OwnedFd) -> String {
    let got = epoll::get(epoll.as_fd()).expect("parameters");
    format!("{},{},{}", got.usecs, got.budget, u8::from(got.prefer))
}

fn give_up_capability() {
    let mut sets = rustix::thread::capabilities(None).expect("capabilities are readable");
    sets.effective.remove(CapabilitySet::NET_ADMIN);
    rustix::thread::set_capabilities(None, sets).expect("a capability can be given up");
}

fn lacks_parameters() -> bool {
    let lacks = !epoll::supported().expect("the probe runs");
    if lacks {
        eprintln!("skipped: this kernel has no EPIOCSPARAMS");
    }
    lacks
}

#[test]
#[ignore = "a guest"]
fn guest_epoll() {
    if !is_guest("guest_epoll") {
        return;
    }
    let expected = std::env::var(EXPECTED).expect("an expectation");
    // SAFETY: takes no pointers; every thread has an errno.
    unsafe {
        *libc::__errno_location() = 77;
        let old = own(libc::epoll_create(1));
        assert_eq!(parameters(&old), expected);
        let (first, second) = (new_epoll(), new_epoll());
        assert_eq!(*libc::__errno_location(), 77, "errno is unchanged");
        assert_eq!([parameters(&first), parameters(&second)], [expected.clone(), expected.clone()]);
        assert_eq!(libc::fcntl(first.as_raw_fd(), libc::F_GETFD), libc::FD_CLOEXEC);
        assert_eq!(libc::epoll_create(0), -1);
        assert_eq!(*libc::__errno_location(), libc::EINVAL);

        let child = libc::fork();
        if child == 0 {
            let same = parameters(&first) == expected && parameters(&new_epoll()) == expected;
            libc::_exit(i32::from(!same));
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert_eq!(status, 0, "the forked child's instances");
    }
    // Once more after exec.
    if std::env::var_os("PRELOAD_TEST_AGAIN").is_none() {
        let mut again = std::process::Command::new(std::env::current_exe().expect("a path"));
        again.args(std::env::args_os().skip(1)).env("PRELOAD_TEST_AGAIN", "1");
        succeeds_silently(again);
    }
}

#[test]
fn every_epoll_instance_has_the_parameters_also_after_fork_and_exec() {
    if lacks_parameters() {
        return;
    }
    for (given, expected) in [("0,64,1", "0,64,1"), ("1000,8,0", "1000,8,0")] {
        succeeds_silently(guest("guest_epoll", &[("ABEY_EPOLL", given), (EXPECTED, expected)]));
    }
}

#[test]
fn a_process_can_be_excluded() {
    if lacks_parameters() {
        return;
    }
    let file = std::env::current_exe().expect("a path");
    let file = file.file_name().expect("a name").to_str().expect("UTF-8");
    let others = format!("sh,{file},cat");
    for (name, value) in [("ABEY_DISABLE", "1"), ("ABEY_SKIP", file), ("ABEY_SKIP", &others), ("ABEY_EPOLL", "")] {
        succeeds_silently(guest("guest_epoll", &[SUSPEND, (EXPECTED, "0,0,0"), (name, value)]));
    }
    succeeds_silently(guest("guest_epoll", &[SUSPEND, (EXPECTED, "0,64,1"), ("ABEY_SKIP", "sh,cat")]));
}

#[test]
#[ignore = "a guest"]
fn guest_without_capability() {
    if !is_guest("guest_without_capability") {
        return;
    }
    give_up_capability();
    assert_eq!(parameters(&new_epoll()), "0,0,0");
    new_epoll();
    // SAFETY: the child only makes an epoll instance and exits.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(i32::from(libc::epoll_create1(0) < 0));
        }
        let mut status = -1;
        libc::waitpid(child, &raw mut status, 0);
        assert_eq!(status, 0);
    }
    if std::env::var_os("PRELOAD_TEST_AGAIN").is_none() {
        let mut again = std::process::Command::new(std::env::current_exe().expect("a path"));
        again.args(std::env::args_os().skip(1)).env("PRELOAD_TEST_AGAIN", "1");
        assert!(again.status().expect("starts").success());
    }
}

#[test]
fn a_failure_is_printed_once_per_tree_of_processes_and_the_program_continues() {
    if lacks_parameters() {
        return;
    }
    let variables = [("ABEY_EPOLL", "0,65,1"), ("ABEY_MODE", "suspend20"), NOTHING_PRINTED];
    let errors = succeeds(guest("guest_without_capability", &variables));
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.starts_with("libabey.so: mode suspend20: an epoll busy-poll budget of 65 packets"), "{errors}");
}

#[test]
fn a_failure_stops_a_strict_program_with_status_3() {
    if lacks_parameters() {
        return;
    }
    let variables = [("ABEY_EPOLL", "0,65,1"), ("ABEY_STRICT", "1")];
    let output = run(guest("guest_without_capability", &variables));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

#[test]
#[ignore = "a guest"]
fn guest_sockets() {
    if !is_guest("guest_sockets") {
        return;
    }
    let expected = std::env::var(EXPECTED).expect("an expectation").parse::<i32>().expect("a number");
    let busy_poll = |fd: libc::c_int| {
        let (mut value, mut length) = (-1, size_of::<i32>() as libc::socklen_t);
        // SAFETY: both pointers are to live values of the sizes given.
        unsafe {
            let value = (&raw mut value).cast();
            assert_eq!(libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_BUSY_POLL, value, &raw mut length), 0);
        }
        value
    };
    let udp = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let client = std::net::TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let (accepted, _) = listener.accept().expect("a connection");
    for fd in [udp.as_raw_fd(), listener.as_raw_fd(), client.as_raw_fd(), accepted.as_raw_fd()] {
        assert_eq!(busy_poll(fd), expected);
    }
    std::os::unix::net::UnixDatagram::unbound().expect("other families work");
}

#[test]
fn every_ip_socket_busy_polls() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: SO_BUSY_POLL needs CAP_NET_ADMIN");
        return;
    }
    succeeds_silently(guest("guest_sockets", &[("ABEY_SOCKET_BUSY_POLL", "50us"), (EXPECTED, "50")]));
    succeeds_silently(guest("guest_sockets", &[SUSPEND, (EXPECTED, "0")]));
}

#[test]
fn invalid_variables_are_reported_once() {
    for (name, value, part) in [
        ("ABEY_SKIPP", "sh", "there is no variable ABEY_SKIPP: did you mean ABEY_SKIP?"),
        ("ABEY_EPOLL", "64", "ABEY_EPOLL=64 is not usable: write microseconds"),
        ("ABEY_ZERO_TIMEOUT", "1", "ABEY_ZERO_TIMEOUT=1 is not usable: write poll"),
    ] {
        let script = || ["-c", "/bin/true; /bin/true; exec /bin/true"];
        let mut command = preloaded("/bin/sh", &[(name, value), NOTHING_PRINTED]);
        command.args(script());
        let errors = succeeds(command);
        assert!(errors.starts_with(&format!("libabey.so: {part}")), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");

        let mut strict = preloaded("/bin/sh", &[(name, value), NOTHING_PRINTED, ("ABEY_STRICT", "1")]);
        strict.args(script());
        let output = run(strict);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(part), "{output:?}");
    }
}

#[test]
#[ignore = "a guest"]
fn guest_daemon() {
    if !is_guest("guest_daemon") {
        return;
    }
    give_up_capability();
    let file = tempfile::tempfile().expect("a file");
    // SAFETY: standard error now is a file of the program's own, as after a daemon closed it.
    assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), libc::STDERR_FILENO) }, libc::STDERR_FILENO);
    assert_eq!(parameters(&new_epoll()), "0,0,0");
    assert_eq!(file.metadata().expect("facts").len(), 0);
}

#[test]
fn nothing_is_printed_to_a_file_that_replaced_standard_error() {
    if !lacks_parameters() {
        succeeds_silently(guest("guest_daemon", &[("ABEY_EPOLL", "0,65,1")]));
    }
}

#[test]
fn a_program_without_epoll_is_unchanged() {
    let everything = [
        SUSPEND,
        ("ABEY_MAX_WAIT", "1ms"),
        ("ABEY_SOCKET_BUSY_POLL", "50us"),
        ("ABEY_ZERO_TIMEOUT", "poll"),
        ("ABEY_STEER", "queues:2"),
        ("ABEY_STRICT", "1"),
    ];
    succeeds_silently(preloaded("/bin/true", &everything));
    let plain = run({
        let mut ls = std::process::Command::new("/bin/ls");
        ls.arg("/");
        ls
    });
    let mut ls = preloaded("/bin/ls", &everything);
    ls.arg("/");
    assert_eq!(run(ls), plain);
}

#[test]
fn executing_the_library_prints_its_version() {
    let output = run(std::process::Command::new(library()));
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("libabey.so {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
}

#[test]
fn the_library_exports_the_interposed_calls_and_its_entry() {
    let mut nm = std::process::Command::new("nm");
    let Ok(output) = nm.args(["-D", "--defined-only", "--format=posix"]).arg(library()).output() else {
        eprintln!("skipped: nm is not installed");
        return;
    };
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let mut names: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
    names.sort_unstable();
    let epoll = ["epoll_create", "epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_pwait2", "epoll_wait"];
    let sockets =
        ["accept", "accept4", "bind", "connect", "getpeername", "getsockname", "listen", "shutdown", "socket"];
    let numbers = ["close", "close_range", "closefrom", "dup", "dup2", "dup3"];
    let others = ["eventfd", "socketpair", "syscall", "timerfd_create"];
    let programs = [
        "_Exit",
        "_exit",
        "execl",
        "execle",
        "execlp",
        "execv",
        "execve",
        "execveat",
        "execvp",
        "execvpe",
        "fexecve",
        "posix_spawn",
        "posix_spawn_file_actions_adddup2",
        "posix_spawnp",
    ];
    let options = ["fcntl", "fcntl64", "getsockopt", "ioctl", "setsockopt"];
    let reading = [
        &["__read", "__read_chk", "__recv_chk", "__recvfrom_chk", "preadv2", "preadv64v2", "read", "readv", "recv"][..],
        &["recvfrom", "recvmmsg", "recvmsg"],
    ]
    .concat();
    let writing = [
        &["__send", "__write", "pwritev2", "pwritev64v2", "send", "sendfile", "sendfile64", "sendmmsg", "sendmsg"][..],
        &["sendto", "splice", "write", "writev"],
    ]
    .concat();
    let streams = ["__dprintf_chk", "__vdprintf_chk", "dprintf", "fdopen", "fileno", "fileno_unlocked", "vdprintf"];
    let waits = ["__poll_chk", "__ppoll_chk", "poll", "ppoll", "pselect", "select"];
    let signals = [
        "__sysv_signal",
        "bsd_signal",
        "pthread_cancel",
        "sigaction",
        "siginterrupt",
        "signal",
        "sigset",
        "sysv_signal",
    ];
    let limits = ["prctl", "setrlimit", "setrlimit64"];
    let groups: [&[&str]; 13] = [
        &["abey_library_entry"],
        &epoll,
        &sockets,
        &numbers,
        &others,
        &programs,
        &options,
        &reading,
        &writing,
        &streams,
        &waits,
        &signals,
        &limits,
    ];
    let mut expected = groups.concat();
    expected.sort_unstable();
    assert_eq!(names, expected);
}
