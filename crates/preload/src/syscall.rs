//! The interposed `syscall(2)`, and system calls that bypass every interposed function.
//!
//! Libraries make some calls through `syscall(2)`: libuv its io_uring set-up and `recvmmsg`, many others a call that an
//! older C library has no function for. Numbers with an interposed function go to their handler in
//! [`interpose::raw_calls`](crate::interpose::raw_calls). All others go to the next definition, which is the C library's
//! unless another preloaded library has one.
//!
//! # The entry is assembly
//!
//! The function is variadic in C, and stable Rust defines no variadic functions. Its arguments are a number and up to six
//! words. The System V ABI of x86-64 passes the first six integer arguments in registers and the seventh on the stack; the
//! AArch64 procedure call standard passes all seven in registers. Both place variadic integers as they place named ones
//! (Apple's AArch64 ABI does not, and is no Linux ABI). So handlers are functions with seven named words. A caller that
//! passes fewer leaves the rest undefined, as it does for the C library's function, and the kernel ignores them.
//!
//! The entry looks up the number in a table and jumps, without a stack frame or a changed register. So the next function
//! finds the stack as the caller left it. A call that shares its stack with a child (`vfork`, `clone` with CLONE_VM) must
//! not return through a frame of this library: the child would return first, and overwrite it.
//!
//! Before the library's constructor has run, and in the library's own calls, a handler passes the call on: a handler may
//! need the configuration, which allocates, and an allocator may be what makes the call.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::c_long;

use crate::interpose::raw_calls;

/// A function with the arguments of `syscall(2)`: the number and six words.
pub(crate) type Handler = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;

/// Number of entries of the table. Higher numbers have no handler.
pub(crate) const NUMBERS: usize = 512;

static HANDLERS: [Option<Handler>; NUMBERS] = raw_calls::handlers();

/// The next definition of `syscall`: a system call until the constructor has looked it up.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Looks up the next definition. Called before `main`.
pub(crate) fn prepare() {
    // SAFETY: the name is a C string.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"syscall".as_ptr()) };
    NEXT.store(next, Ordering::Release);
}

/// Returns whether the constructor has run, and handlers may be used.
pub(crate) fn is_prepared() -> bool {
    !NEXT.load(Ordering::Acquire).is_null()
}

/// Makes a system call that no interposed function sees. Returns -1 and sets errno if it fails.
///
/// # Safety
/// The same as for the system call.
pub(crate) unsafe fn raw(number: c_long, arguments: [usize; 6]) -> c_long {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the caller's guarantees are passed on.
    unsafe { pass_on(number, a, b, c, d, e, f) }
}

/// `syscall(2)`.
///
/// # Safety
/// The same as for the C library's function.
#[unsafe(naked)]
// SAFETY: same semantics as the C library's function, and compatible with its calls.
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        "cmp rdi, {numbers}",
        "jae 2f",
        "lea rax, [rip + {handlers}]",
        "mov rax, [rax + rdi * 8]",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2: jmp {pass_on}",
        numbers = const NUMBERS,
        handlers = sym HANDLERS,
        pass_on = sym pass_on,
    );
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!(
        "cmp x0, {numbers}",
        "b.hs 2f",
        "adrp x16, {handlers}",
        "add x16, x16, :lo12:{handlers}",
        "ldr x16, [x16, x0, lsl #3]",
        "cbz x16, 2f",
        "br x16",
        "2: b {pass_on}",
        numbers = const NUMBERS,
        handlers = sym HANDLERS,
        pass_on = sym pass_on,
    );
}

/// Jumps to the next definition, or makes the system call if there is none yet.
///
/// # Safety
/// The same as for the system call.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn pass_on(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        "mov rax, [rip + {next}]",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        // The kernel takes the fourth argument in r10, and returns the negative error number.
        "2:",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4096",
        "ja 3f",
        "ret",
        "3:",
        "mov rdi, rax",
        "jmp {fail}",
        next = sym NEXT,
        fail = sym fail,
    );
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!(
        "adrp x16, {next}",
        "ldr x16, [x16, :lo12:{next}]",
        "cbz x16, 2f",
        "br x16",
        "2:",
        "mov x8, x0",
        "mov x0, x1",
        "mov x1, x2",
        "mov x2, x3",
        "mov x3, x4",
        "mov x4, x5",
        "mov x5, x6",
        "svc #0",
        "cmn x0, #4095",
        "b.hs 3f",
        "ret",
        "3: b {fail}",
        next = sym NEXT,
        fail = sym fail,
    );
}

/// The handler of `clone`, `clone3` and `fork`: goes to [`raw_calls::fork`] if the child has a copy of the stack, and passes
/// the call on otherwise, with the stack as the caller left it.
///
/// # Safety
/// The same as for the system call.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn enter_clone(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "sub rsp, 8",
        "call {copies_memory}",
        "add rsp, 8",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test al, al",
        "jz 2f",
        "jmp {fork}",
        "2: jmp {pass_on}",
        copies_memory = sym raw_calls::copies_memory,
        fork = sym raw_calls::fork,
        pass_on = sym pass_on,
    );
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-80]!",
        "stp x0, x1, [sp, #16]",
        "stp x2, x3, [sp, #32]",
        "stp x4, x5, [sp, #48]",
        "str x6, [sp, #64]",
        "bl {copies_memory}",
        "and w16, w0, #1",
        "ldp x0, x1, [sp, #16]",
        "ldp x2, x3, [sp, #32]",
        "ldp x4, x5, [sp, #48]",
        "ldr x6, [sp, #64]",
        "ldp x29, x30, [sp], #80",
        "cbz w16, 2f",
        "b {fork}",
        "2: b {pass_on}",
        copies_memory = sym raw_calls::copies_memory,
        fork = sym raw_calls::fork,
        pass_on = sym pass_on,
    );
}

/// Sets errno to the kernel's negative error number, and returns -1.
extern "C" fn fail(answer: c_long) -> c_long {
    crate::errno::set_errno(-answer as libc::c_int);
    -1
}
