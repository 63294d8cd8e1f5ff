//! Two runtimes over the shared-memory NIC in one process, in every mode.

mod support;
mod traffic;
