//! Two runtimes over the shared-memory NIC in one process, in every mode.

mod epoll;
mod hairpin;
mod kernel_wait;
mod pump;
mod settings;
mod support;
mod traffic;
