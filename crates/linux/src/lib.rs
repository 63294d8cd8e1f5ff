//! The kernel's own NAPI: reads, probes and changes its delivery settings, and counts what they do.

pub mod epoll;
pub mod library;
pub mod steer;
