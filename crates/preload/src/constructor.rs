//! The library's constructor, which the dynamic loader calls before `main`.

use crate::{config, interpose, real, syscall};

/// Reads the configuration before `main`, while the process has one thread. Constructors of other libraries may call
/// interposed functions earlier; [`config::get`] then reads it.
// SAFETY: the section holds addresses of functions that the loader calls after the library is relocated.
#[unsafe(link_section = ".init_array")]
#[used]
static CONSTRUCTOR: extern "C" fn() = {
    extern "C" fn construct() {
        real::prepare();
        interpose::prepare();
        config::get();
        // Last: a handler may need all of these.
        syscall::prepare();
    }
    construct
};
