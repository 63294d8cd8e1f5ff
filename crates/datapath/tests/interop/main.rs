//! Interoperability with the kernel's TCP, and with programs that use it, over TAP and AF_XDP.
//!
//! `ABEY_MEGABYTES` sets the length of the bulk transfers (1024 for a full gigabyte). They print their duration.

#[path = "../common/mod.rs"]
mod common;
#[path = "../modes/support.rs"]
#[allow(dead_code, reason = "its echo server is used")]
mod support;

mod analysed;
mod bulk;
mod handover;
mod iperf3;
mod many;
mod programs;
