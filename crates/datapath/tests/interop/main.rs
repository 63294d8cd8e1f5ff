//! The datapath and other people's TCP: the kernel's, and programs that use it, over TAP and AF_XDP.
//!
//! `ABEY_MEGABYTES` makes the bulk transfers longer (1024 for the full gigabyte); they print what they took.

#[path = "../common/mod.rs"]
mod common;
#[path = "../modes/support.rs"]
#[allow(dead_code, reason = "its echo server is used")]
mod support;

mod analysed;
mod bulk;
mod iperf3;
mod many;
mod programs;
