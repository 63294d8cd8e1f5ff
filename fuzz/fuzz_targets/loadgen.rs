//! Replies of servers to the load generator.
#![no_main]

#[path = "../../crates/loadgen/tests/targets/mod.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    targets::loadgen(data);
});
