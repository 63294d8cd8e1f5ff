//! The kernel's own NAPI: its delivery settings, read, probed and changed, and counters of their effect.

pub mod counters;
pub mod cpu;
pub mod device;
pub mod engagement;
pub mod epoll;
pub mod ethtool;
pub mod features;
pub mod kernel;
pub mod library;
pub mod listeners;
pub mod machine;
pub mod monitor;
pub mod napi;
pub mod netlink;
pub mod netns;
pub mod overview;
pub mod polls;
pub mod probe;
pub mod process;
pub mod seccomp;
pub mod spawn;
pub mod steer;
pub mod tracefs;
pub mod verdict;
mod xps;
