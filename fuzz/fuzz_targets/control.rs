//! What either end of a control socket sends.
#![no_main]

#[path = "../../crates/datapath/tests/targets/mod.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    targets::control(data);
});
