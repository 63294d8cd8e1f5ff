//! An arbitrary settings file gives settings or one sentence.
#![no_main]

#[path = "../../crates/policy/tests/targets/mod.rs"]
#[expect(dead_code, reason = "it has the other target as well")]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    targets::settings(data);
});
