//! Packet rings under arbitrary operations of both peers, valid or not, against the oracle of the property tests.
#![no_main]

#[path = "../../crates/nic/tests/ring/oracle.rs"]
mod oracle;

libfuzzer_sys::fuzz_target!(|script: &[u8]| oracle::check(script));
