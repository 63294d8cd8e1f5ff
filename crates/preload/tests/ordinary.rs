//! Ordinary programs have the same output and exit status with the library as without it.

mod common;
// The library's own file, with its tests.
#[path = "../src/timeout.rs"]
mod timeout;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{preloaded, run};

/// Programs with their arguments. Each is deterministic, and none needs a network.
const PROGRAMS: [&[&str]; 34] = [
    &["ls", "-la", "/usr"],
    &["ls", "/there/is/no/such/place"],
    &["bash", "-c", "echo $((6 * 7)); ls /usr | wc -l; exit 3"],
    &["bash", "-c", "exec 3<>/dev/null; echo x >&3; read -r line < /etc/passwd; echo \"$line\" | tr a-z A-Z"],
    &["sh", "-c", "(echo a; echo b >&2) 2>&1 | sort | cat"],
    &["cat", "/etc/passwd"],
    &["head", "-c", "1000", "/bin/ls"],
    &["tail", "-n", "3", "/etc/passwd"],
    &["sort", "-r", "/etc/passwd"],
    &["wc", "/etc/passwd"],
    &["grep", "-c", "root", "/etc/passwd"],
    &["sed", "-n", "1,3p", "/etc/passwd"],
    &["awk", "-F:", "{ print $1 }", "/etc/passwd"],
    &["cut", "-d:", "-f1", "/etc/passwd"],
    &["find", "/etc/apt", "-maxdepth", "1"],
    &["tar", "-cf", "-", "/etc/hostname"],
    &["gzip", "-nc", "/etc/passwd"],
    &["sha256sum", "/bin/ls"],
    &["od", "-N", "64", "/bin/ls"],
    &["xargs", "--version"],
    &["env", "-i", "true"],
    &["seq", "1", "1000"],
    &["timeout", "5", "sleep", "0.01"],
    &["dd", "if=/dev/zero", "bs=1k", "count=8", "status=none"],
    &["git", "--version"],
    &["git", "rev-parse", "--is-inside-work-tree"],
    &["ssh", "-V"],
    &["apt-get", "--version"],
    &["dpkg", "--version"],
    &["perl", "-e", "open(my $f, '<', '/etc/passwd'); print scalar <$f>; exit 5"],
    &["python3", "-c", "import subprocess; print(subprocess.run(['echo', 'child'], capture_output=True))"],
    &["python3", "-c", "import os, socket; a, b = socket.socketpair(); a.sendall(b'x'); print(b.recv(1), os.dup(1))"],
    &[
        "python3",
        "-c",
        "import select, os; e = select.epoll(); r, w = os.pipe(); e.register(r, 1); os.write(w, b'x'); print(e.poll(1))",
    ],
    &[
        "python3",
        "-c",
        "import socket; s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); a, _ = s.accept(); c.sendall(b'x'); print(a.recv(1)); os_error = 1 // 0",
    ],
];

#[test]
fn output_and_status_are_unchanged() {
    let datapath = r#"{"nic":"memory:absent","mode":"suspend20","addresses":["10.0.0.1/24"]}"#;
    let mut compared = 0;
    for program in PROGRAMS {
        let plain = Command::new(program[0]).args(&program[1..]).stdin(Stdio::null()).output();
        let Ok(plain) = plain else {
            eprintln!("skipped: {} is not installed", program[0]);
            continue;
        };
        for variables in [&[][..], &[("ABEY_DATAPATH", datapath)]] {
            let mut command = preloaded(program[0], variables);
            let with = command.args(&program[1..]).output().expect("it starts");
            assert_eq!(with, plain, "{program:?} {variables:?}");
        }
        compared += 1;
    }
    assert!(compared >= 15, "{compared} programs of {} are installed", PROGRAMS.len());
}

/// The start of the line about a refused io_uring.
const NO_RING: &str = "libabey.so: the program's io_uring_setup failed";

/// Compiles a program of this directory. Returns false and prints the reason if there is no such compiler.
fn compile(compiler: &str, source: &str, program: &Path) -> bool {
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests")).join(source);
    let Ok(status) = Command::new(compiler).args(["-O1", "-o"]).arg(program).arg(source).status() else {
        eprintln!("skipped: there is no {compiler}");
        return false;
    };
    assert!(status.success(), "{status}");
    true
}

/// A NIC without a peer, in whose programs the library's functions are active.
const ALONE: &str = r#"{"nic":"memory:self","mode":"base","addresses":["127.0.0.1/8"]}"#;

#[test]
fn arguments_of_calls_by_number_and_of_exec_arrive() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join("arguments");
    if compile("cc", "arguments.c", &program) {
        let mut command = preloaded(&program, &[("ABEY_DATAPATH", ALONE)]);
        command.arg("exec");
        let output = run(command);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "failures: 0\n", "{output:?}");
    }
}

/// Needs `cargo build -p abey-preload --target aarch64-unknown-linux-gnu`, and the packages qemu-user-static, gcc-aarch64-linux-gnu
/// and libc6-dev-arm64-cross.
#[test]
fn the_library_of_aarch64_runs_in_an_emulator() {
    let Ok(library) = std::env::var("AARCH64_LIBABEY") else {
        eprintln!("skipped: AARCH64_LIBABEY does not name a libabey.so for AArch64");
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    for (source, arguments) in [("arguments.c", &["exec"][..]), ("syscall.c", &[])] {
        let program = directory.path().join(source.trim_end_matches(".c"));
        if !compile("aarch64-linux-gnu-gcc", source, &program) {
            return;
        }
        // The emulator is a static program, so that only the emulated one loads the library.
        let emulated = || {
            let mut command = Command::new("qemu-aarch64-static");
            command.args(["-L", "/usr/aarch64-linux-gnu"]).arg(&program).args(arguments);
            command
        };
        let plain = run(emulated());
        let mut command = emulated();
        command.env("LD_PRELOAD", &library).env("ABEY_DATAPATH", ALONE).env("ABEY_IO_URING", "1");
        let output = run(command);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&plain.stdout), "{source}");
    }
}

#[test]
fn calls_by_number_reach_the_kernel_unless_they_are_an_io_urings() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join("syscall");
    if !compile("cc", "syscall.c", &program) {
        return;
    }
    let plain = run(Command::new(&program));
    assert!(plain.status.success() && plain.stderr.is_empty(), "{plain:?}");
    let plain = String::from_utf8(plain.stdout).expect("text");
    let datapath = r#"{"nic":"memory:absent","mode":"suspend20","addresses":["10.0.0.1/24"]}"#;
    let allowed = ("ABEY_IO_URING", "1");
    let cases: [(&[(&str, &str)], bool); 8] = [
        (&[], false),
        (&[("ABEY_SOCKET_BUSY_POLL", "50us")], false),
        (&[("ABEY_EPOLL", "0,64,1")], true),
        (&[("ABEY_MAX_WAIT", "1ms")], true),
        (&[("ABEY_ZERO_TIMEOUT", "poll")], true),
        (&[("ABEY_DATAPATH", datapath)], true),
        (&[("ABEY_EPOLL", "0,64,1"), allowed], false),
        (&[("ABEY_DATAPATH", datapath), allowed], false),
    ];
    for (variables, is_refused) in cases {
        let output = run(preloaded(&program, variables));
        let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{variables:?}: {output:?}");
        let without_ring = |text: &str| -> Vec<String> {
            text.lines().filter(|line| !line.starts_with("io_uring")).map(str::to_owned).collect()
        };
        if is_refused {
            assert!(errors.starts_with(NO_RING) && errors.lines().count() == 1, "{variables:?}: {errors}");
            assert!(text.contains("io_uring: ENOSYS\n"), "{variables:?}: {text}");
            assert_eq!(without_ring(&text), without_ring(&plain), "{variables:?}");
        } else {
            assert_eq!((text.as_ref(), errors.as_ref()), (plain.as_str(), ""), "{variables:?}");
        }
    }
}

/// Runs a program that names the library in its own file as another user, with variables that end an ordinary program with
/// status 3. Returns its standard output, its standard error and its status.
fn as_another_user(program: &Path) -> (String, String, Option<i32>) {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(program);
    command.env("ABEY_STRICT", "1").env("ABEY_EPOLL", "no parameters").env("ABEY_TOLD", "x".repeat(13));
    let output = run(command);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr), output.status.code())
}

#[test]
fn a_program_with_more_privileges_than_its_user_ignores_the_users_variables() {
    if !nix::unistd::geteuid().is_root() || !common::has("setpriv") {
        eprintln!("skipped: making a set-user-ID program for another user needs root and setpriv");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let set_mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
    set_mode(directory.path(), 0o755);
    let library = directory.path().join("libabey.so");
    fs::copy(common::library(), &library).expect("the library");
    set_mode(&library, 0o755);
    let program = directory.path().join("secure");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/secure.c");
    // The loader loads a library that the program's file names, in secure-execution mode as well.
    let Ok(status) =
        Command::new("cc").arg("-o").args([&program, &source]).arg("-Wl,--no-as-needed").arg(&library).status()
    else {
        eprintln!("skipped: there is no C compiler");
        return;
    };
    assert!(status.success(), "{status}");
    let secure = (String::from("secure: 1, made: 1\n"), String::new(), Some(0));

    set_mode(&program, 0o755);
    let (out, errors, status) = as_another_user(&program);
    assert!(out.is_empty() && errors.contains("ABEY_EPOLL") && status == Some(3), "{out} {errors} {status:?}");
    let system = nix::sys::statvfs::statvfs(directory.path()).expect("a file system");
    if system.flags().contains(nix::sys::statvfs::FsFlags::ST_NOSUID) {
        eprintln!("skipped: {} is mounted with nosuid", directory.path().display());
        return;
    }
    set_mode(&program, 0o4755);
    assert_eq!(as_another_user(&program), secure);
    set_mode(&program, 0o755);
    // Version 2 of `struct vfs_cap_data` (capabilities(7)), with the effective flag and CAP_NET_BIND_SERVICE.
    let capabilities: Vec<u8> =
        [0x0200_0001_u32, 1 << 10, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    let flags = rustix::fs::XattrFlags::empty();
    match rustix::fs::setxattr(&program, "security.capability", &capabilities, flags) {
        Ok(()) => assert_eq!(as_another_user(&program), secure),
        Err(error) => eprintln!("skipped: no file capabilities in {}: {error}", directory.path().display()),
    }
}
