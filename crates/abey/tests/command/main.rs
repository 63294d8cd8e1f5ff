//! Tests of the `abey` command as a user runs it: one binary, a module for each subject.
//!
//! `cargo test -p abey --test command run_killed::` runs one module.

mod apply;
mod apply_undo;
mod apply_watch;
mod bench;
mod bench_both;
mod bench_steps;
mod book;
mod calibrate;
mod common;
mod datapath;
mod engagement;
mod exporter;
mod hostile;
mod hostile_users;
mod load;
mod load_protocols;
mod locks;
mod messages;
mod nic;
mod packaging;
mod plan;
mod run;
mod run_by_number;
mod run_datapath;
mod run_forks;
mod run_inherited;
mod run_killed;
mod run_prefork;
mod run_programs;
mod run_workers;
mod servers;
mod serving;
mod set;
mod settings;
mod sim;
mod soak;
mod status;
mod top;
mod tune;
mod tune_policy;
mod tune_queues;
mod tuning;
mod xdp;
