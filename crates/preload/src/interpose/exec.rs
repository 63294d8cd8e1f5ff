//! Interposed calls that execute programs: the `exec` functions, `posix_spawn(3)` and its action `dup2`; and `_exit(2)`.
//!
//! The new program has the descriptors that are not close-on-exec, and no datapath of this one. So connections among them are
//! handed over first ([`handover`](super::handover)). If the call then fails, they stay with the kernel.
//!
//! The `exec` functions take any number of arguments, so each is a few instructions that save the argument registers, call
//! [`before_exec`] and jump to the C library's function.

use libc::{c_char, c_int, c_void, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

use super::handover::{Reason, hand_over, hand_over_all};
use super::{accept_credit, inherited, lifeline, process};
use crate::{errno, real};

fn is_inheritable(fd: c_int) -> bool {
    // SAFETY: the call takes no pointers.
    let flags = errno::preserve_errno(|| unsafe { real::FCNTL.get()(fd, libc::F_GETFD, 0) });
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}

/// Hands over what the new program inherits.
fn before_spawn() {
    inherited::prepare_all(is_inheritable);
    accept_credit::share_all(is_inheritable);
    hand_over_all(Reason::Exec, |fd, _| is_inheritable(fd));
}

/// Hands over what the new program inherits. In the process of the datapath that is everything: the kernel closes what is
/// close-on-exec.
pub(super) extern "C" fn before_exec() {
    inherited::prepare_all(is_inheritable);
    if process::is_vforked() {
        // The numbers may be other files in the child.
        let is_inherited = |fd| is_inheritable(fd) && is_of_parent(fd);
        accept_credit::share_all(is_inherited);
        hand_over_all(Reason::Exec, |fd, _| is_inherited(fd));
    } else {
        hand_over_all(Reason::Exec, |_, _| true);
        accept_credit::leave_all();
    }
}

/// Returns whether a descriptor of a child of `vfork` is still that of its parent.
fn is_of_parent(fd: c_int) -> bool {
    // SAFETY: the call takes no pointers.
    let parent = unsafe { libc::getppid() };
    let file = |process: &dyn std::fmt::Display| std::fs::read_link(format!("/proc/{process}/fd/{fd}")).ok();
    errno::preserve_errno(|| {
        super::context::uninterposed(|| file(&"self").is_some_and(|own| file(&parent) == Some(own)))
    })
}

/// Hands over what a child has inherited, and leaves what was not accepted to other processes, before this process ends.
pub(super) extern "C" fn before_exit() {
    if process::is_table_active() && !process::is_vforked() {
        hand_over_all(Reason::Close, |_, socket| lifeline::is_shared(socket.forks));
        accept_credit::leave_all();
    }
}

/// `posix_spawn(3)`.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    arguments: *const *mut c_char,
    environment: *const *mut c_char,
) -> c_int {
    before_spawn();
    // SAFETY: the caller's guarantees are passed on.
    unsafe { real::POSIX_SPAWN.get()(pid, path, actions, attributes, arguments, environment) }
}

/// `posix_spawnp(3)`.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawnp(
    pid: *mut pid_t,
    file: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    arguments: *const *mut c_char,
    environment: *const *mut c_char,
) -> c_int {
    before_spawn();
    // SAFETY: the caller's guarantees are passed on.
    unsafe { real::POSIX_SPAWNP.get()(pid, file, actions, attributes, arguments, environment) }
}

/// `posix_spawn_file_actions_adddup2(3)`: the child gets the connection, whatever its flags.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawn_file_actions_adddup2(
    actions: *mut posix_spawn_file_actions_t,
    fd: c_int,
    to: c_int,
) -> c_int {
    inherited::prepare_use(fd);
    hand_over(fd, Reason::Exec);
    // SAFETY: the caller's guarantees are passed on.
    unsafe { real::SPAWN_ADDDUP2.get()(actions, fd, to) }
}

/// `_exit(2)`.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
extern "C" fn _exit(status: c_int) -> ! {
    before_exit();
    // SAFETY: ends the process, whatever it does.
    unsafe { real::EXIT_NOW.get()(status) }
}

/// `_Exit(3)`.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
extern "C" fn _Exit(status: c_int) -> ! {
    _exit(status)
}

/// The body of an `exec` function: saves the argument registers, calls [`before_exec`] and `$next`, and jumps to what that
/// returned. The list of arguments on the stack stays where it is.
#[cfg(target_arch = "x86_64")]
macro_rules! exec_body {
    ($next:path) => {
        core::arch::naked_asm!(
            "push rdi",
            "push rsi",
            "push rdx",
            "push rcx",
            "push r8",
            "push r9",
            // The number of vector registers, and an alignment of 16 bytes.
            "push rax",
            "call {before}",
            "call {next}",
            "mov r11, rax",
            "pop rax",
            "pop r9",
            "pop r8",
            "pop rcx",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "jmp r11",
            before = sym before_exec,
            next = sym $next,
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! exec_body {
    ($next:path) => {
        core::arch::naked_asm!(
            "stp x29, x30, [sp, #-80]!",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]",
            "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]",
            "stp x6, x7, [sp, #64]",
            "bl {before}",
            "bl {next}",
            "mov x16, x0",
            "ldp x0, x1, [sp, #16]",
            "ldp x2, x3, [sp, #32]",
            "ldp x4, x5, [sp, #48]",
            "ldp x6, x7, [sp, #64]",
            "ldp x29, x30, [sp], #80",
            "br x16",
            before = sym before_exec,
            next = sym $next,
        )
    };
}

macro_rules! exec {
    ($($(#[$about:meta])* $name:ident = $next:ident, $found:ident;)*) => {$(
        extern "C" fn $found() -> *const c_void {
            real::$next.get_address()
        }

        $(#[$about])*
        ///
        /// # Safety
        /// The same as for the C library's function.
        // SAFETY: jumps to the C library's function with the caller's arguments.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            exec_body!($found);
        }
    )*};
}

exec! {
    /// `execve(2)`.
    execve = EXECVE, next_execve;
    /// `execv(3)`.
    execv = EXECV, next_execv;
    /// `execvp(3)`.
    execvp = EXECVP, next_execvp;
    /// `execvpe(3)`.
    execvpe = EXECVPE, next_execvpe;
    /// `execl(3)`.
    execl = EXECL, next_execl;
    /// `execlp(3)`.
    execlp = EXECLP, next_execlp;
    /// `execle(3)`.
    execle = EXECLE, next_execle;
    /// `fexecve(3)`.
    fexecve = FEXECVE, next_fexecve;
    /// `execveat(2)`.
    execveat = EXECVEAT, next_execveat;
}
