//! C's streams on a socket of ours: `fdopen(3)`, `fileno(3)`, `dprintf(3)`.
//!
//! The C library's streams read and write by calls of its own that come past nobody. So `fdopen` on a socket of ours gives a
//! stream whose functions are ours (`fopencookie(3)`), which does everything a stream does; `fileno` finds its
//! descriptor. What stays out of reach: a standard stream (`stdin`, `stdout`) whose number became a socket of ours by
//! `dup2`, and `freopen` on one of ours.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use libc::{FILE, c_char, c_int, c_void, off64_t, size_t, ssize_t};

use super::buffers::calls;
use super::table;

/// What a stream of ours is made of (`cookie_io_functions_t`).
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

/// The streams, by their addresses, with their descriptors.
static STREAMS: Mutex<Vec<(usize, c_int)>> = Mutex::new(Vec::new());

/// There was one.
static ACTIVE: AtomicBool = AtomicBool::new(false);

fn streams() -> std::sync::MutexGuard<'static, Vec<(usize, c_int)>> {
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The cookie is the descriptor itself.
fn descriptor(cookie: *mut c_void) -> c_int {
    cookie.addr() as c_int
}

unsafe extern "C-unwind" fn read(cookie: *mut c_void, to: *mut c_char, length: size_t) -> ssize_t {
    // SAFETY: the C library's buffer.
    unsafe { libc::read(descriptor(cookie), to.cast(), length) }
}

/// All of it, or the stream has failed.
unsafe extern "C-unwind" fn write(cookie: *mut c_void, from: *const c_char, length: size_t) -> ssize_t {
    // SAFETY: the C library's buffer.
    unsafe { write_all(descriptor(cookie), from.cast(), length) as ssize_t }
}

/// How many bytes were written before something went wrong.
///
/// # Safety
/// As of `write`.
unsafe fn write_all(fd: c_int, from: *const u8, length: size_t) -> usize {
    let mut done = 0;
    while done < length {
        // SAFETY: the caller's promise.
        let written = unsafe { libc::write(fd, from.add(done).cast(), length - done) };
        match usize::try_from(written) {
            Ok(written) if written > 0 => done += written,
            _ => break,
        }
    }
    done
}

/// A socket has no place. The C library forgives that, if it is told in these words.
unsafe extern "C-unwind" fn seek(_: *mut c_void, _: *mut off64_t, _: c_int) -> c_int {
    super::errno::fail(libc::ESPIPE)
}

unsafe extern "C-unwind" fn close(cookie: *mut c_void) -> c_int {
    let fd = descriptor(cookie);
    streams().retain(|(_, of)| *of != fd);
    // SAFETY: takes no pointers.
    unsafe { libc::close(fd) }
}

/// # Safety
/// As of `fdopen`.
unsafe fn open_ours(fd: c_int, mode: *const c_char) -> Option<*mut FILE> {
    table::with_socket(fd, |_| ())?;
    let functions = Functions { read, write, seek, close };
    let cookie = std::ptr::without_provenance_mut(usize::try_from(fd).ok()?);
    // SAFETY: the caller's promise for the mode; the functions are of the types that the C library's header gives them.
    let stream = unsafe { fopencookie(cookie, mode, functions) };
    if !stream.is_null() {
        streams().push((stream.addr(), fd));
        ACTIVE.store(true, Ordering::Release);
    }
    Some(stream)
}

fn number_ours(stream: *mut FILE) -> Option<c_int> {
    if !ACTIVE.load(Ordering::Acquire) {
        return None;
    }
    streams().iter().find(|(address, _)| *address == stream.addr()).map(|(_, fd)| *fd)
}

/// # Safety
/// As of `vdprintf`.
unsafe fn print_ours(fd: c_int, format: *const c_char, list: *mut c_void) -> Option<c_int> {
    table::with_socket(fd, |_| ())?;
    let mut text = null_mut();
    // SAFETY: the caller's promises; the text is as long as is said, and is freed once.
    unsafe {
        let length = vasprintf(&raw mut text, format, list);
        let Ok(bytes) = usize::try_from(length) else { return Some(length) };
        let is_whole = write_all(fd, text.cast(), bytes) == bytes;
        crate::state::keep_errno(|| libc::free(text.cast()));
        Some(if is_whole { length } else { -1 })
    }
}

calls! {
    /// `fdopen(3)`.
    fdopen(fd: c_int, mode: *const c_char) -> *mut FILE = open_ours(fd, mode), FDOPEN;
    /// `fileno(3)`.
    fileno(stream: *mut FILE) -> c_int = number_ours(stream), FILENO;
    /// `fileno_unlocked(3)`.
    fileno_unlocked(stream: *mut FILE) -> c_int = number_ours(stream), FILENO;
    /// `vdprintf(3)`. A list of arguments is passed by its address, on both architectures.
    vdprintf(fd: c_int, format: *const c_char, list: *mut c_void) -> c_int = print_ours(fd, format, list), VDPRINTF;
    /// `__vdprintf_chk`, which a program calls that was built with checks.
    __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: *mut c_void) -> c_int =
        print_ours(fd, format, list), VDPRINTF_CHK;
}

/// What a call with a variable number of arguments does before it calls one with a list of them: saves the registers that
/// arguments come in, and writes a `va_list` as the architecture's ABI has it, which becomes the last argument.
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
            // Vector registers are in use if AL says so.
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
/// As the C library's function of this name.
// SAFETY: has the meaning of the C library's function of this name, and its type as it is called.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C-unwind" fn dprintf(fd: c_int, format: *const c_char) -> c_int {
    #[cfg(target_arch = "x86_64")]
    with_list!(2, "rdx", vdprintf);
    #[cfg(target_arch = "aarch64")]
    with_list!(2, "x2", vdprintf);
}

/// `__dprintf_chk`, which a program calls that was built with checks.
///
/// # Safety
/// As the C library's function of this name.
// SAFETY: has the meaning of the C library's function of this name, and its type as it is called.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C-unwind" fn __dprintf_chk(fd: c_int, flag: c_int, format: *const c_char) -> c_int {
    #[cfg(target_arch = "x86_64")]
    with_list!(3, "rcx", __vdprintf_chk);
    #[cfg(target_arch = "aarch64")]
    with_list!(3, "x3", __vdprintf_chk);
}
