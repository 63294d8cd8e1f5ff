//! Gives frames to the kernel as if a device had received them.
//!
//! BPF_PROG_TEST_RUN runs an XDP program on a frame of the caller. With BPF_F_TEST_XDP_LIVE_FRAMES (Linux 5.18, see
//! `Documentation/bpf/bpf_prog_run.rst`) its verdict is carried out, and the verdict of the program here is to pass. The frame
//! enters the network stack where a received one would, behind the device's own XDP program.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Command of `bpf(2)`.
const BPF_PROG_TEST_RUN: libc::c_long = 10;
/// Flag of that command.
const LIVE_FRAMES: u32 = 1 << 1;
/// Longest frame in bytes. The kernel puts a frame into one page, with its own structures before and after it.
pub(crate) const MAX_FRAME: usize = 3000;

/// The part of `union bpf_attr` for BPF_PROG_TEST_RUN, in `linux/bpf.h`.
#[repr(C)]
#[derive(Default)]
struct TestRun {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    padding: u32,
}

/// `struct xdp_md` of `linux/bpf.h`.
#[repr(C)]
#[derive(Default)]
struct Context {
    data: u32,
    data_end: u32,
    data_meta: u32,
    ingress_ifindex: u32,
    rx_queue_index: u32,
    egress_ifindex: u32,
}

/// Passes a frame to the kernel as one from the device of this index, by a program that passes every frame.
///
/// # Errors
/// EINVAL from kernels before Linux 5.18; EPERM; a frame that is too long.
pub(super) fn inject(pass: BorrowedFd<'_>, index: u32, frame: &[u8]) -> io::Result<()> {
    if frame.len() > MAX_FRAME {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    run(pass, index, frame, LIVE_FRAMES, 1).map(drop)
}

/// Runs a program `repeat` times on a frame as from the device of this index. Returns its verdict, and the mean duration of a run
/// in nanoseconds.
///
/// # Errors
/// Those of the command.
pub(super) fn run(
    program: BorrowedFd<'_>,
    index: u32,
    frame: &[u8],
    flags: u32,
    repeat: u32,
) -> io::Result<(u32, u32)> {
    let context = Context { data_end: frame.len() as u32, ingress_ifindex: index, ..Context::default() };
    let mut run = TestRun {
        prog_fd: program.as_raw_fd().cast_unsigned(),
        data_size_in: frame.len() as u32,
        data_in: frame.as_ptr().addr() as u64,
        repeat,
        ctx_size_in: size_of::<Context>() as u32,
        ctx_in: (&raw const context).addr() as u64,
        flags,
        batch_size: u32::from(flags & LIVE_FRAMES != 0),
        ..TestRun::default()
    };
    // SAFETY: the kernel reads the frame and the context, and reads and writes the attributes, which live through the call.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_TEST_RUN, &raw mut run, size_of::<TestRun>()) };
    if answer == 0 { Ok((run.retval, run.duration)) } else { Err(io::Error::last_os_error()) }
}
