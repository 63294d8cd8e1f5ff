//! The kernel's own NAPI: reads, probes and changes its delivery settings, and counts what they do.

pub mod apply;
pub mod counters;
pub mod cpu;
pub mod device;
pub mod epoll;
pub mod ethtool;
pub mod features;
pub mod library;
pub mod machine;
pub mod monitor;
pub mod napi;
pub mod netlink;
pub mod netns;
pub mod overview;
pub mod polls;
pub mod probe;
pub mod process;
pub mod spawn;
pub mod steer;
pub mod tracefs;
pub mod units;
pub mod verdict;
pub mod veth;
mod xps;
