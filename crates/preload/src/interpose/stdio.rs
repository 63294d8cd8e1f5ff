//! Interposed stdio calls: `fdopen(3)`, `fileno(3)` and `dprintf(3)`.
//!
//! The C library's streams read and write with internal calls, which cannot be interposed. So `fdopen` of a datapath socket
//! returns a custom stream (`fopencookie(3)`), whose functions call this library, and `fileno` looks up its descriptor.
//! A connection that `dup2` makes a standard stream (`stdin`, `stdout`) moves to the kernel. Not covered: `freopen(3)`.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use libc::{FILE, c_char, c_int, c_void, off64_t, size_t, ssize_t};

use super::fd_table;
use super::iovecs::interpose;

/// The functions of a custom stream (`cookie_io_functions_t`).
#[repr(C)]
struct Functions {
    read: unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C-unwind" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
}

unsafe extern "C-unwind" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
    fn vasprintf(to: *mut *mut c_char, format: *const c_char, list: *mut c_void) -> c_int;
}

/// The custom streams: address and descriptor.
static STREAMS: Mutex<Vec<(usize, c_int)>> = Mutex::new(Vec::new());

/// True once there was a custom stream.
static ACTIVE: AtomicBool = AtomicBool::new(false);

fn streams() -> std::sync::MutexGuard<'static, Vec<(usize, c_int)>> {
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the descriptor, which is the cookie itself.
fn descriptor(cookie: *mut c_void) -> c_int {
    cookie.addr() as c_int
}

unsafe extern "C-unwind" fn read(cookie: *mut c_void, to: *mut c_char, length: size_t) -> ssize_t {
    // SAFETY: the buffer is the C library's, of this length.
    unsafe { libc::read(descriptor(cookie), to.cast(), length) }
}

/// Writes all bytes; a short count marks the stream as failed.
unsafe extern "C-unwind" fn write(cookie: *mut c_void, from: *const c_char, length: size_t) -> ssize_t {
    // SAFETY: the buffer is the C library's, of this length.
    unsafe { write_all(descriptor(cookie), from.cast(), length) as ssize_t }
}

/// Writes until everything is written or a write fails. Returns the number of bytes written.
///
/// # Safety
/// The same as for `write`.
unsafe fn write_all(fd: c_int, from: *const u8, length: size_t) -> usize {
    let mut done = 0;
    while done < length {
        // SAFETY: guaranteed by the caller.
        let written = unsafe { libc::write(fd, from.add(done).cast(), length - done) };
        match usize::try_from(written) {
            Ok(written) if written > 0 => done += written,
            _ => break,
        }
    }
    done
}

/// Fails with ESPIPE, by which the C library knows that the stream cannot seek.
unsafe extern "C-unwind" fn seek(_: *mut c_void, _: *mut off64_t, _: c_int) -> c_int {
    super::error_codes::fail(libc::ESPIPE)
}

unsafe extern "C-unwind" fn close(cookie: *mut c_void) -> c_int {
    let fd = descriptor(cookie);
    streams().retain(|(_, of)| *of != fd);
    // SAFETY: the call takes no pointers.
    unsafe { libc::close(fd) }
}

/// # Safety
/// The same as for `fdopen`.
unsafe fn datapath_fdopen(fd: c_int, mode: *const c_char) -> Option<*mut FILE> {
    fd_table::with_socket(fd, |_| ())?;
    let functions = Functions { read, write, seek, close };
    let cookie = std::ptr::without_provenance_mut(usize::try_from(fd).ok()?);
    // SAFETY: the caller guarantees the mode; the functions have the types of the C library's header.
    let stream = unsafe { fopencookie(cookie, mode, functions) };
    if !stream.is_null() {
        streams().push((stream.addr(), fd));
        ACTIVE.store(true, Ordering::Release);
    }
    Some(stream)
}

fn datapath_fileno(stream: *mut FILE) -> Option<c_int> {
    if !ACTIVE.load(Ordering::Acquire) {
        return None;
    }
    streams().iter().find(|(address, _)| *address == stream.addr()).map(|(_, fd)| *fd)
}

/// # Safety
/// The same as for `vdprintf`.
unsafe fn datapath_vdprintf(fd: c_int, format: *const c_char, list: *mut c_void) -> Option<c_int> {
    fd_table::with_socket(fd, |_| ())?;
    let mut text = null_mut();
    // SAFETY: guaranteed by the caller; the text has the returned length, and is freed once.
    unsafe {
        let length = vasprintf(&raw mut text, format, list);
        let Ok(bytes) = usize::try_from(length) else { return Some(length) };
        let is_whole = write_all(fd, text.cast(), bytes) == bytes;
        crate::errno::preserve_errno(|| libc::free(text.cast()));
        Some(if is_whole { length } else { -1 })
    }
}

interpose! {
    /// `fdopen(3)`.
    fdopen(fd: c_int, mode: *const c_char) -> *mut FILE = datapath_fdopen(fd, mode), FDOPEN;
    /// `fileno(3)`.
    fileno(stream: *mut FILE) -> c_int = datapath_fileno(stream), FILENO;
    /// `fileno_unlocked(3)`.
    fileno_unlocked(stream: *mut FILE) -> c_int = datapath_fileno(stream), FILENO;
    /// `vdprintf(3)`. Both architectures pass a `va_list` argument by its address.
    vdprintf(fd: c_int, format: *const c_char, list: *mut c_void) -> c_int = datapath_vdprintf(fd, format, list), VDPRINTF;
    /// `__vdprintf_chk`, which programs built with `_FORTIFY_SOURCE` call.
    __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: *mut c_void) -> c_int =
        datapath_vdprintf(fd, format, list), VDPRINTF_CHK;
}

/// The body of a variadic function that calls its counterpart with a `va_list`: saves the argument registers, builds a
/// `va_list` as the architecture's ABI defines it, and passes it as the last argument.
#[cfg(target_arch = "x86_64")]
macro_rules! with_list {
    ($named:literal, $register:literal, $target:path) => {
        core::arch::naked_asm!(
            "sub rsp, 0xd8",
            "mov [rsp + 32], rdi",
            "mov [rsp + 40], rsi",
            "mov [rsp + 48], rdx",
            "mov [rsp + 56], rcx",
            "mov [rsp + 64], r8",
            "mov [rsp + 72], r9",
            // AL is the number of vector registers in use.
            "test al, al",
            "je 2f",
            "movaps [rsp + 80], xmm0",
            "movaps [rsp + 96], xmm1",
            "movaps [rsp + 112], xmm2",
            "movaps [rsp + 128], xmm3",
            "movaps [rsp + 144], xmm4",
            "movaps [rsp + 160], xmm5",
            "movaps [rsp + 176], xmm6",
            "movaps [rsp + 192], xmm7",
            "2:",
            concat!("mov dword ptr [rsp], ", $named, " * 8"),
            "mov dword ptr [rsp + 4], 48",
            "lea rax, [rsp + 0xe0]",
            "mov [rsp + 8], rax",
            "lea rax, [rsp + 32]",
            "mov [rsp + 16], rax",
            concat!("mov ", $register, ", rsp"),
            "call {target}",
            "add rsp, 0xd8",
            "ret",
            target = sym $target,
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! with_list {
    ($named:literal, $register:literal, $target:path) => {
        core::arch::naked_asm!(
            "stp x29, x30, [sp, #-240]!",
            "mov x29, sp",
            "stp x0, x1, [sp, #48]",
            "stp x2, x3, [sp, #64]",
            "stp x4, x5, [sp, #80]",
            "stp x6, x7, [sp, #96]",
            "stp q0, q1, [sp, #112]",
            "stp q2, q3, [sp, #144]",
            "stp q4, q5, [sp, #176]",
            "stp q6, q7, [sp, #208]",
            "add x9, sp, #240",
            "str x9, [sp, #16]",
            "str x9, [sp, #32]",
            "add x9, sp, #112",
            "str x9, [sp, #24]",
            concat!("mov w9, #-(8 - ", $named, ") * 8"),
            "str w9, [sp, #40]",
            "mov w9, #-128",
            "str w9, [sp, #44]",
            concat!("add ", $register, ", sp, #16"),
            "bl {target}",
            "ldp x29, x30, [sp], #240",
            "ret",
            target = sym $target,
        )
    };
}

/// `dprintf(3)`.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same semantics as the C library's function, and compatible with its calls.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C-unwind" fn dprintf(fd: c_int, format: *const c_char) -> c_int {
    #[cfg(target_arch = "x86_64")]
    with_list!(2, "rdx", vdprintf);
    #[cfg(target_arch = "aarch64")]
    with_list!(2, "x2", vdprintf);
}

/// `__dprintf_chk`, which programs built with `_FORTIFY_SOURCE` call.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same semantics as the C library's function, and compatible with its calls.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C-unwind" fn __dprintf_chk(fd: c_int, flag: c_int, format: *const c_char) -> c_int {
    #[cfg(target_arch = "x86_64")]
    with_list!(3, "rcx", __vdprintf_chk);
    #[cfg(target_arch = "aarch64")]
    with_list!(3, "x3", __vdprintf_chk);
}
