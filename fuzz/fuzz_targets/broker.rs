//! Datagrams between a process and its broker.
#![no_main]

#[path = "../../crates/nic/tests/targets/mod.rs"]
#[expect(dead_code, reason = "it has the other target as well")]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    targets::broker(data);
});
