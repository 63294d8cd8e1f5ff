//! Any list of operations on a ring, honest and hostile, against the oracle of the property tests.
#![no_main]

#[path = "../../tests/ring/oracle.rs"]
mod oracle;

libfuzzer_sys::fuzz_target!(|script: &[u8]| oracle::check(script));
