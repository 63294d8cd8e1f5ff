//! Open-loop load: a generator with HDR histograms of latency from intended send times, and small epoll servers to
//! point it at.
//!
//! ```no_run
//! use std::time::Duration;
//! use abey_loadgen::{Config, Load, Memcached, Options, Phase, Rate, RunConfig, Workload};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = Options::new("127.0.0.1:11211".parse()?, Workload::Memcached(Memcached::default()));
//! let mut load = Load::connect(&Config::new(options)?)?; // connects, and stores the key space
//! let run = RunConfig::new(Rate::per_second(20_000.0)?, Duration::from_secs(5))?.seed(7);
//! let report = load.run(&run, &mut |phase: Phase| println!("{phase:?}"))?;
//! println!("p99 {:?} us", report.p99_us);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod affinity;
mod clock;
mod config;
mod connection;
mod dist;
mod engine;
mod error;
pub mod http;
mod kernel;
mod ledger;
mod load;
pub mod memcached;
pub mod network;
mod rate;
pub mod redis;
mod report;
pub mod rr;
mod run;
mod schedule;
pub mod serve;
mod tally;
mod workload;

pub use affinity::{PinError, pin_to_cpus};
pub use config::{Config, ConfigError, HttpGet, Memcached, Options, RequestResponse, Transport, Workload};
pub use dist::{SizeDist, etc_key_size, etc_value_size};
pub use error::LoadError;
pub use kernel::{Kernel, KernelEpoll, KernelStop};
pub use load::{Load, Phase};
pub use rate::{Arrivals, Rate, RunConfig};
pub use report::{Report, SendLag};
pub use schedule::Schedule;
