//! Segments of one TCP connection, checked against two byte streams.
#![no_main]

#[path = "../../crates/tcpip/tests/common/mod.rs"]
mod common;
#[path = "../../crates/tcpip/tests/targets/mod.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    targets::segments::run(data);
});
