//! `abey run`: programs that forbid themselves system calls, or have little of something, go on in the kernel where the datapath
//! cannot. None is killed by a call of the library's.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use crate::common::{Running, TestBed, await_that, has};
use crate::xdp::{accepted_by_kernel, connect, start, testbed};
use abey_testbed::spawn::SpawnExt;
use nix::libc;

const PORT: u16 = 80;

/// The test network, and a directory with the program that is compiled from `sandboxed.c`.
struct Bed {
    testbed: TestBed,
    directory: tempfile::TempDir,
}

impl Bed {
    /// Makes the bed, or prints why it cannot.
    fn new() -> Option<Self> {
        if !has("cc") {
            return None;
        }
        let (testbed, directory) = (testbed(1)?, tempfile::tempdir().expect("a directory"));
        let source = directory.path().join("sandboxed.c");
        fs::write(&source, include_str!("sandboxed.c")).expect("written");
        let program = directory.path().join("sandboxed");
        let compiled =
            Command::new("cc").arg("-D_GNU_SOURCE").arg("-o").args([&program, &source]).output().expect("cc");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        Some(Self { testbed, directory })
    }

    /// Starts the program with the system calls that its action is for.
    fn start(&self, options: &[&str], when: &str, action: &str, calls: &[libc::c_long]) -> Running {
        let numbers: Vec<String> = calls.iter().map(ToString::to_string).collect();
        let numbers: Vec<&str> = numbers.iter().map(String::as_str).collect();
        self.start_with(options, when, &[&[action], &numbers[..]].concat())
    }

    fn start_with(&self, options: &[&str], when: &str, action: &[&str]) -> Running {
        let program = self.directory.path().join("sandboxed");
        let port = PORT.to_string();
        let words = [&[program.to_str().expect("a path"), &port, when], action].concat();
        start(&self.testbed, "suspend20", options, &words)
    }

    /// Connects when the program listens.
    fn connect(&self, program: &mut Running) -> TcpStream {
        let mut stream = None;
        await_that("the program does not listen", || {
            assert!(!program.has_ended(), "it has ended: {}", program.errors_so_far());
            stream = connect(&self.testbed, PORT).ok();
            stream.is_some()
        });
        stream.expect("connected")
    }
}

#[track_caller]
fn exchange(stream: &mut TcpStream, program: &Running) {
    for text in [b"a", b"b", b"c"] {
        let mut answer = [0];
        stream.write_all(text).expect("written");
        stream.read_exact(&mut answer).unwrap_or_else(|error| panic!("{error}: {}", program.errors_so_far()));
        assert_eq!(&answer, text);
    }
}

/// What a server that forbids itself new sockets and threads has in its list.
const SOCKETS_AND_THREADS: [libc::c_long; 3] = [libc::SYS_socket, libc::SYS_clone3, libc::SYS_clone];
const THREADS: [libc::c_long; 2] = [libc::SYS_clone3, libc::SYS_clone];
const LINE: &str = "the program's seccomp filter forbids ";

#[test]
fn a_program_that_forbids_itself_sockets_goes_on_in_the_kernel() {
    let Some(bed) = Bed::new() else { return };
    for action in ["kill", "errno"] {
        let mut program = bed.start(&[], "listen", action, &SOCKETS_AND_THREADS);
        let before = accepted_by_kernel(&bed.testbed);
        let mut streams = [bed.connect(&mut program), bed.connect(&mut program)];
        streams.iter_mut().for_each(|stream| exchange(stream, &program));
        assert!(accepted_by_kernel(&bed.testbed) >= before + 2, "{action}");
        let errors = program.terminate().errors;
        let lines: Vec<_> = errors.lines().filter(|line| line.contains("libabey.so")).collect();
        assert!(lines.len() == 1 && lines[0].contains(LINE) && lines[0].contains("socket"), "{errors}");
    }
}

#[test]
fn a_program_that_forbids_itself_threads_has_its_datapath_before() {
    let Some(bed) = Bed::new() else { return };
    for action in ["kill", "errno"] {
        let mut program = bed.start(&["--strict"], "listen", action, &THREADS);
        await_that("the datapath does not come", || {
            assert!(!program.has_ended(), "{}", program.errors_so_far());
            !bed.testbed.datapaths().is_empty()
        });
        let before = accepted_by_kernel(&bed.testbed);
        let mut streams = [bed.connect(&mut program), bed.connect(&mut program)];
        streams.iter_mut().for_each(|stream| exchange(stream, &program));
        assert_eq!(accepted_by_kernel(&bed.testbed), before, "{action}");
        assert_eq!(program.terminate().errors, "");
    }
}

/// What an echo server over the datapath calls, beside its own calls, until it is ended: the list in
/// `interpose/sandbox/calls.rs`, and what the program itself needs.
const IN_USE: [libc::c_long; 38] = [
    libc::SYS_socket,
    libc::SYS_bind,
    libc::SYS_accept4,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_close,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_ppoll,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_ctl,
    libc::SYS_timerfd_settime,
    libc::SYS_eventfd2,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_prctl,
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_exit_group,
    libc::SYS_exit,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
];

#[test]
fn a_program_that_allows_itself_what_the_datapath_calls_stays_there() {
    let Some(bed) = Bed::new() else { return };
    let mut program = bed.start(&["--strict"], "listen", "only", &IN_USE);
    await_that("the datapath does not come", || {
        assert!(!program.has_ended(), "{}", program.errors_so_far());
        !bed.testbed.datapaths().is_empty()
    });
    let before = accepted_by_kernel(&bed.testbed);
    for _ in 0..20 {
        let mut streams = [bed.connect(&mut program), bed.connect(&mut program)];
        streams.iter_mut().for_each(|stream| exchange(stream, &program));
    }
    assert_eq!(accepted_by_kernel(&bed.testbed), before);
    assert_eq!(program.terminate().errors, "");
}

#[test]
fn a_program_that_allows_itself_only_its_own_calls_goes_on_in_the_kernel() {
    let Some(bed) = Bed::new() else { return };
    let own = [libc::SYS_epoll_ctl, libc::SYS_epoll_wait, libc::SYS_accept4, libc::SYS_read, libc::SYS_write];
    let others = [libc::SYS_close, libc::SYS_exit_group];
    for when in ["listen", "accept"] {
        let mut program = bed.start(&[], when, "only", &[&own[..], &others].concat());
        let mut first = bed.connect(&mut program);
        exchange(&mut first, &program);
        let mut second = bed.connect(&mut program);
        exchange(&mut second, &program);
        exchange(&mut first, &program);
        drop(first);
        exchange(&mut second, &program);
        assert!(!program.has_ended(), "{when}");
        let errors = program.terminate().errors;
        assert!(errors.contains(LINE), "{when}: {errors}");
    }
}

#[test]
fn a_connection_moves_to_the_kernel_before_the_program_forbids_itself_what_it_needs() {
    let Some(bed) = Bed::new() else { return };
    let mut program = bed.start(&[], "accept", "kill", &SOCKETS_AND_THREADS);
    let mut first = bed.connect(&mut program);
    exchange(&mut first, &program);
    let mut second = bed.connect(&mut program);
    exchange(&mut second, &program);
    exchange(&mut first, &program);
    assert!(program.terminate().errors.contains(LINE));
}

#[test]
fn a_sandboxed_child_serves_the_connection_that_its_parent_accepted() {
    let Some(bed) = Bed::new() else { return };
    for (action, calls) in [
        ("kill", &SOCKETS_AND_THREADS[..]),
        ("only", &[libc::SYS_read, libc::SYS_write, libc::SYS_close, libc::SYS_exit_group]),
    ] {
        let mut program = bed.start(&[], "child", action, calls);
        for _ in 0..5 {
            exchange(&mut bed.connect(&mut program), &program);
        }
        assert!(!program.has_ended(), "{action}: {}", program.errors_so_far());
        program.terminate();
    }
}

#[test]
fn a_filter_that_a_launcher_installs_is_known_to_what_it_executes() {
    let Some(bed) = Bed::new() else { return };
    for calls in [&[libc::SYS_eventfd2][..], &THREADS] {
        let mut program = bed.start(&[], "exec", "kill", calls);
        exchange(&mut bed.connect(&mut program), &program);
        assert!(bed.testbed.datapaths().is_empty());
        assert!(program.terminate().errors.contains(LINE), "{calls:?}");
    }
}

#[test]
fn the_modes_parameters_are_left_out_where_the_program_forbids_them() {
    let Some(bed) = Bed::new() else { return };
    let program = bed.directory.path().join("sandboxed");
    let (program, ioctl) = (program.to_str().expect("a path"), libc::SYS_ioctl.to_string());
    let words = [program, "80", "exec", "kill", &ioctl];
    let mut run = Running::start(bed.testbed.run_mode("suspend20", &words));
    exchange(&mut bed.connect(&mut run), &run);
    let errors = run.terminate().errors;
    assert!(errors.contains("forbids ioctl, which sets the mode's parameters"), "{errors}");
}

/// What a program does to itself, and whether its datapath can still begin.
const RESTRICTIONS: [(&[&str], bool); 9] = [
    (&["prctl", "38", "1"], true), // PR_SET_NO_NEW_PRIVS
    (&["prctl", "4", "0"], true),  // PR_SET_DUMPABLE
    (&["chroot", "/var/empty"], true),
    (&["limit", "8", "0"], true),        // RLIMIT_MEMLOCK: the broker has pinned the memory
    (&["limit", "7", "9"], false),       // RLIMIT_NOFILE
    (&["limit", "6", "0"], true),        // RLIMIT_NPROC, which root is exempt from
    (&["limit", "1", "0"], true),        // RLIMIT_FSIZE
    (&["limit", "9", "1000000"], false), // RLIMIT_AS
    (&["landlock", "0"], false),
];

#[test]
fn a_program_that_has_little_left_is_served_by_the_kernel_at_least() {
    let Some(bed) = Bed::new() else { return };
    fs::create_dir_all("/var/empty").expect("a directory");
    for (action, can_begin) in RESTRICTIONS {
        let options: &[&str] = if can_begin { &["--strict"] } else { &[] };
        let mut program = bed.start_with(options, "listen", action);
        if can_begin {
            // The kernel accepts until the datapath listens. Under chroot, `abey status` does not find the process.
            await_that(&format!("{action:?}: the datapath does not come"), || {
                let before = accepted_by_kernel(&bed.testbed);
                exchange(&mut bed.connect(&mut program), &program);
                accepted_by_kernel(&bed.testbed) == before
            });
        }
        let mut streams = [bed.connect(&mut program), bed.connect(&mut program)];
        streams.iter_mut().for_each(|stream| exchange(stream, &program));
        assert!(!program.has_ended(), "{action:?}: {}", program.errors_so_far());
        let errors = program.terminate().errors;
        if can_begin {
            assert_eq!(errors, "", "{action:?}");
        } else if !errors.contains("no landlock") {
            assert!(errors.contains("libabey.so: ") || errors.contains("abey: "), "{action:?}: {errors}");
        }
    }
}

#[test]
fn vsftpd_with_its_chroot_and_its_limit_of_address_space_serves_files() {
    // Its own seccomp filter ends its sessions on current systems, with and without Abey.
    if !has("vsftpd") || !has("curl") {
        return;
    }
    let (Some(testbed), directory) = (testbed(1), tempfile::tempdir().expect("a directory")) else { return };
    let path = |name: &str| directory.path().join(name).to_str().expect("a path").to_owned();
    fs::create_dir(path("root")).expect("created");
    fs::create_dir(path("empty")).expect("created");
    fs::write(path("root/file"), "from vsftpd").expect("written");
    let everyone = |name: &str| {
        fs::set_permissions(path(name), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("allowed");
    };
    ["", "root", "empty"].into_iter().for_each(everyone);
    let settings = format!(
        "listen=YES\nlisten_port=21\nbackground=NO\nanonymous_enable=YES\nlocal_enable=NO\nanon_root={}\n\
         secure_chroot_dir={}\nseccomp_sandbox=NO\nxferlog_enable=NO\n",
        path("root"),
        path("empty")
    );
    fs::write(path("vsftpd.conf"), settings).expect("written");
    let mut program = start(&testbed, "suspend20", &[], &["vsftpd", &path("vsftpd.conf")]);
    await_that("it does not listen", || {
        assert!(!program.has_ended(), "{}", program.errors_so_far());
        connect(&testbed, 21).is_ok()
    });
    for _ in 0..3 {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--noproxy", "*", "--max-time", "60", &format!("ftp://{}:21/file", crate::common::SERVER)]);
        curl.in_netns(&testbed.client);
        let done = curl.output().expect("curl starts");
        let answer = String::from_utf8_lossy(&done.stdout).into_owned();
        assert_eq!(answer, "from vsftpd", "{} {}", String::from_utf8_lossy(&done.stderr), program.errors_so_far());
    }
    program.terminate();
}
