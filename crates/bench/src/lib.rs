//! Measures delivery modes: test beds, the mode x load matrix, statistics, tables and the HTML report.
//!
//! A world's test bed is a [`Bed`]: [`linux::Linux`], [`datapath::Memory`] and [`datapath::Preloaded`]; [`measure`] interleaves
//! the modes of several.
//! The pure half turns measured [`Run`]s into [`Row`]s (medians and spreads), lays them out as a [`table`], beside the
//! published figures of [`reference`](mod@reference), and as one self-contained HTML [`report`].

#![forbid(unsafe_code)]

pub mod app;
mod client;
pub mod compare;
mod cpu_time;
pub mod datapath;
pub mod document;
mod error;
pub mod figure;
mod ledger;
pub mod linux;
pub mod load;
mod load_run;
pub mod machine;
pub mod matrix;
mod network;
pub mod pairs;
pub mod reference;
pub mod report;
pub mod row;
mod server;
pub mod stats;
pub mod steps;
pub mod table;

pub use app::App;
pub use client::ClientKind;
pub use compare::Comparison;
pub use datapath::Datapath;
pub use document::{BedSetup, Document, Setup};
pub use error::BenchError;
pub use figure::{Figure, Figures, Spreads};
pub use load::{Load, ParseLoadError};
pub use load_run::Cpus;
pub use machine::Machine;
pub use matrix::{Bed, Conditions, Part, Progress, measure};
pub use network::{Takers, TestBed};
pub use pairs::Pair;
pub use row::{CurvePoint, Row, Run, World};
