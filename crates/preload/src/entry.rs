//! The entry point: executing the library prints its version.
//!
//! The kernel executes a shared library like any other program if it names an interpreter (the `.interp` section, below)
//! and has an entry address (the linker's `-e`, in `build.rs`). When the entry runs, the loader has relocated the library
//! and the C library, but there is no `main`; the entry writes one line and exits.

use abey_linux::library::{FILE_NAME, VERSION};

/// The path of the dynamic loader, as the ABI of this architecture and C library fixes it.
const INTERPRETER: &str = if cfg!(all(target_arch = "x86_64", target_env = "musl")) {
    "/lib/ld-musl-x86_64.so.1\0"
} else if cfg!(all(target_arch = "aarch64", target_env = "musl")) {
    "/lib/ld-musl-aarch64.so.1\0"
} else if cfg!(target_arch = "x86_64") {
    "/lib64/ld-linux-x86-64.so.2\0"
} else {
    "/lib/ld-linux-aarch64.so.1\0"
};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("libabey.so has a program entry for x86_64 and aarch64 only; add one for this architecture to entry.rs");

// SAFETY: the ELF ABI defines the section's content: a path with a terminating zero byte, which this is.
#[unsafe(link_section = ".interp")]
#[used]
static INTERP: [u8; INTERPRETER.len()] = {
    let mut bytes = [0; INTERPRETER.len()];
    bytes.copy_from_slice(INTERPRETER.as_bytes());
    bytes
};

/// The address where execution starts. The stack pointer is as the kernel left it: aligned, but without the return address
/// that a compiled function expects.
///
/// # Safety
/// Must not be called: it never returns, and it takes over the stack.
#[unsafe(naked)]
// SAFETY: no other library has a symbol of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn abey_library_entry() -> ! {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!("xor ebp, ebp", "and rsp, -16", "call {print}", "ud2", print = sym print_version);
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!("mov x29, xzr", "mov x30, xzr", "bl {print}", "brk #1", print = sym print_version);
}

extern "C" fn print_version() -> ! {
    const LINE: [&str; 4] = [FILE_NAME, " ", VERSION, "\n"];
    let mut status = 0;
    for part in LINE {
        // SAFETY: the pointer and length are those of a live string.
        let written = unsafe { libc::write(libc::STDOUT_FILENO, part.as_ptr().cast(), part.len()) };
        if usize::try_from(written) != Ok(part.len()) {
            status = 1;
        }
    }
    // SAFETY: ends the process at once; no exit handler is registered.
    unsafe { libc::_exit(status) }
}
