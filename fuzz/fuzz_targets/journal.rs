//! Restoring from an arbitrary journal changes nothing outside its directories.
#![no_main]

#[path = "../../crates/reconcile/tests/targets/mod.rs"]
#[expect(dead_code, reason = "it has the other target as well")]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    targets::journal(data);
});
