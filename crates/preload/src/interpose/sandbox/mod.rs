//! Programs that forbid themselves system calls (`seccomp(2)`): interposed `prctl(2)`, and the call `seccomp`.
//!
//! The library makes system calls of which the program does not know. One that the program's filter forbids may end the process.
//! So the filter is run here, over the calls that the library makes ([`calls`]), before the program installs it:
//!
//! | the filter forbids | what happens |
//! | --- | --- |
//! | nothing of these | nothing: the datapath is opened when it is needed |
//! | what the runtime calls to begin (threads, files) | the runtime is built now, and opens the listeners that wait for their first use. Without any, the process uses the kernel from then on |
//! | what is called while the datapath is in use (a socket for an accepted connection) | the process uses the kernel from then on. Connections of the datapath are handed over, listeners are the kernel's, the runtime ends |
//! | what sets the mode's parameters of epoll instances and sockets | new ones have no parameters |
//! | what prints a message | later messages are not printed |
//!
//! Each but the first two is reported in one line, before the filter is installed. A forked child takes over the connections that
//! it has inherited; what else it has inherited is the kernel's. The filter outlives `exec`, and so does the decision, in a character
//! of `ABEY_TOLD`.
//!
//! # Limits
//!
//! A filter that a statically linked launcher installs, or that was there before `abey run`'s program, is not seen. Connections that
//! wait at a listener of the datapath, and attempts that are not connected yet, are lost if the process changes to the kernel.
//! A child of `vfork` that installs a filter is not looked at, and is expected to execute a program that does not use the network.

mod calls;

use std::sync::atomic::{AtomicBool, Ordering};

use abey_linux::seccomp::Instruction;
use libc::{c_int, c_ulong};

use self::calls::{Purpose, forbidden};
use super::fd_table::{self, Entry};
use super::handover::Reason;
use super::socket::Role;
use super::{context, direct_epoll, handover, inherited, listen, member_table, process, runtime, shared_listener};
use crate::report::{self, Topic};
use crate::{config, errno, real};

/// Largest number of instructions of a filter (BPF_MAXINSNS).
const MAX_INSTRUCTIONS: u16 = 4096;

/// Whether this process uses the kernel only.
static IS_OFF: AtomicBool = AtomicBool::new(false);
/// Whether this process may not set parameters of the mode.
static FORBIDS_PARAMETERS: AtomicBool = AtomicBool::new(false);

/// Reads the decision of the process that has executed this one. Called before `main`.
pub(super) fn prepare() {
    if report::is_marked(Topic::Sandbox) {
        IS_OFF.store(true, Ordering::Relaxed);
        FORBIDS_PARAMETERS.store(true, Ordering::Relaxed);
    }
}

/// Returns whether this process uses the kernel only.
#[inline]
pub(super) fn is_off() -> bool {
    IS_OFF.load(Ordering::Relaxed)
}

/// Makes this process use the kernel only, for new sockets.
pub(super) fn turn_off() {
    IS_OFF.store(true, Ordering::Relaxed);
}

/// Returns whether this process may not set parameters of the mode.
pub(crate) fn forbids_parameters() -> bool {
    FORBIDS_PARAMETERS.load(Ordering::Relaxed)
}

/// `prctl(2)`.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same semantics as the C library's function, and compatible with its calls.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    if option == libc::PR_SET_SECCOMP {
        match u32::try_from(a) {
            Ok(libc::SECCOMP_MODE_STRICT) => before_strict_mode(),
            // SAFETY: the caller's guarantees are passed on.
            Ok(libc::SECCOMP_MODE_FILTER) => unsafe { before_filter(b as *const libc::sock_fprog) },
            _ => {}
        }
    }
    // SAFETY: the caller's guarantees are passed on.
    unsafe { real::PRCTL.get()(option, a, b, c, d) }
}

/// Does what [`prctl`] does before the system call `seccomp`.
///
/// # Safety
/// The same as for the system call.
pub(super) unsafe fn before_seccomp(operation: usize, flags: usize, program: usize) {
    match u32::try_from(operation) {
        Ok(libc::SECCOMP_SET_MODE_STRICT) if flags == 0 && program == 0 => before_strict_mode(),
        // SAFETY: the caller's guarantees are passed on.
        Ok(libc::SECCOMP_SET_MODE_FILTER) => unsafe { before_filter(program as *const libc::sock_fprog) },
        _ => {}
    }
}

/// Allows `read`, `write`, `exit` and `rt_sigreturn`, which a filter that allows nothing stands for.
fn before_strict_mode() {
    prepare_for(&[]);
}

/// # Safety
/// The program's filter is readable, or the pointer is null, by which programs ask whether the kernel has filters.
unsafe fn before_filter(program: *const libc::sock_fprog) {
    // SAFETY: as promised.
    let Some(program) = (unsafe { program.as_ref() }) else { return };
    if program.filter.is_null() || !(1..=MAX_INSTRUCTIONS).contains(&program.len) {
        return;
    }
    // SAFETY: as promised; `Instruction` has the layout of `struct sock_filter`.
    let filter = unsafe { std::slice::from_raw_parts(program.filter.cast(), program.len.into()) };
    prepare_for(filter);
}

/// Prepares for a filter that is installed next.
#[cold]
fn prepare_for(filter: &[Instruction]) {
    if context::is_uninterposed() || process::is_vforked() {
        return;
    }
    errno::preserve_errno(|| {
        direct_epoll::end();
        let config = config::get();
        if config.datapath.is_some() && !is_off() {
            prepare_datapath(filter);
        }
        let sets_parameters = config.epoll.is_some() || config.socket_busy_poll.is_some();
        if sets_parameters
            && !forbids_parameters()
            && let Some(call) = forbidden(filter, Purpose::Parameters)
        {
            if config.datapath.is_none() {
                report(call, "sets the mode's parameters");
            }
            FORBIDS_PARAMETERS.store(true, Ordering::Relaxed);
        }
        if forbidden(filter, Purpose::Messages).is_some() {
            report::silence();
        }
    });
}

fn prepare_datapath(filter: &[Instruction]) {
    if let Some(call) = forbidden(filter, Purpose::Use) {
        report(call, "the datapath needs");
        change_to_kernel();
    } else if let Some(call) = forbidden(filter, Purpose::Begin) {
        if runtime::is_built() || process::is_child() || open_listeners() {
            // A program that is executed begins with nothing.
            report::mark(Topic::Sandbox);
        } else {
            report(call, "the datapath needs to begin");
            change_to_kernel();
        }
    }
}

fn report(call: &str, what: &str) {
    // This marks the topic in the environment.
    config::failed(Topic::Sandbox, &format_args!("the program's seccomp filter forbids {call}, which {what}"));
}

/// Opens the listeners whose opening was deferred. Returns whether the runtime is built.
fn open_listeners() -> bool {
    for (fd, object) in fd_table::find(|object| matches!(object, Entry::Socket(_))) {
        if let Entry::Socket(socket) = &*object {
            listen::open_deferred(socket, fd);
        }
    }
    runtime::is_built()
}

/// Makes every socket of this process the kernel's, and ends the runtime.
fn change_to_kernel() {
    let is_child = process::is_child();
    if is_child {
        inherited::prepare_all(|_| true);
        shared_listener::forget_all();
    } else if process::is_table_active() {
        for (fd, object) in fd_table::find(|object| matches!(object, Entry::Socket(_))) {
            let Entry::Socket(socket) = &*object else { continue };
            if let Some(Role::Listener(_)) = socket.role.get() {
                context::uninterposed(|| listen::leave(socket));
                member_table::move_to_kernel(&object, fd);
            } else {
                handover::hand_over(fd, Reason::Close);
            }
        }
        process::deactivate_table();
    }
    IS_OFF.store(true, Ordering::Relaxed);
    if !is_child {
        runtime::stop();
    }
}
