//! Measures delivery modes: test beds, the runner of modes at loads, statistics, tables and the HTML report.
//!
//! Each world has a [`TestBed`]: [`linux::Linux`], [`datapath::Memory`] and [`datapath::Preloaded`]. [`measure`] interleaves
//! the runs of several test beds. [`stats::aggregate`] turns the measured [`Run`]s into [`BenchRow`]s with medians and
//! spreads. Rows are shown as a [`table`], beside published figures ([`reference`](mod@reference)) and as a self-contained HTML
//! [`report`].

#![forbid(unsafe_code)]

pub mod app;
mod client;
pub mod compare;
mod cpu_accounting;
mod cpu_time;
pub mod datapath;
pub mod document;
mod error;
pub mod figure;
pub mod linux;
pub mod load;
mod load_driver;
pub mod machine;
pub mod plan;
pub mod ratios;
pub mod reference;
pub mod report;
pub mod row;
pub mod runner;
mod server;
pub mod stats;
pub mod steps;
pub mod table;
mod veth_network;

pub use app::App;
pub use client::ClientKind;
pub use compare::Comparison;
pub use datapath::Datapath;
pub use document::{BUILD_PROFILE, BenchFacts, Document, Setup, TestBedSetup};
pub use error::BenchError;
pub use figure::{Figure, Figures, Spreads};
pub use load::{Load, ParseLoadError};
pub use load_driver::Cpus;
pub use machine::Machine;
pub use plan::{BenchRequest, Worlds};
pub use ratios::RatioRow;
pub use row::{BenchRow, CurvePoint, Run, World};
pub use runner::{Conditions, Progress, Suite, TestBed, measure};
pub use veth_network::{Receivers, VethNetwork};
