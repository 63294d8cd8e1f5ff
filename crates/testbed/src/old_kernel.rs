//! Kernels that lack something, for the calling thread.

use std::io;

/// Runs `work` in a thread for which `bpf(BPF_PROG_TEST_RUN)` fails with EINVAL, as for the frames that a kernel before Linux 5.18
/// does not take.
///
/// # Panics
/// The kernel has no seccomp filters, or `work` panics.
pub fn without_injected_frames<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            refuse_test_runs().expect("a filter");
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Installs the filter for the calling thread.
fn refuse_test_runs() -> io::Result<()> {
    const TEST_RUN: u32 = 10;
    // Offsets in `struct seccomp_data` (`linux/seccomp.h`): the call's number, and the first argument.
    const NUMBER: u32 = 0;
    const ARGUMENT: u32 = if cfg!(target_endian = "little") { 16 } else { 20 };
    let load = |at| statement((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, at, 0, 0);
    let unless = |value, skip| statement((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, value, 0, skip);
    let answer = |value| statement((libc::BPF_RET | libc::BPF_K) as u16, value, 0, 0);
    let mut program = [
        load(NUMBER),
        unless(libc::SYS_bpf as u32, 3),
        load(ARGUMENT),
        unless(TEST_RUN, 1),
        answer(libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the calls read their arguments, and the filter lives through them.
    let answers = unsafe {
        [
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter, 0, 0),
        ]
    };
    if answers == [0, 0] { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn statement(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}
