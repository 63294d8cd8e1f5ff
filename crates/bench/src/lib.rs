//! Measures delivery modes: test beds, the mode x load matrix, statistics, tables and the HTML report.
//!
//! A world's test bed is a [`Bed`]: [`linux::Linux`] and [`datapath::Memory`]; [`measure`] interleaves the modes of several.
//! The pure half turns measured [`Run`]s into [`Row`]s (medians and spreads), lays them out as a [`table`], beside the
//! published figures of [`reference`](mod@reference), and as one self-contained HTML [`report`].

#![forbid(unsafe_code)]

pub mod compare;
pub mod datapath;
pub mod document;
mod error;
pub mod figure;
pub mod linux;
pub mod load;
mod load_run;
pub mod machine;
pub mod matrix;
pub mod reference;
pub mod report;
pub mod row;
mod server;
pub mod stats;
pub mod table;

pub use compare::Comparison;
pub use datapath::Datapath;
pub use document::{BedSetup, Document, Setup};
pub use error::BenchError;
pub use figure::{Figure, Figures, Spreads};
pub use load::{Load, ParseLoadError};
pub use machine::Machine;
pub use matrix::{Bed, Conditions, Part, Progress, measure};
pub use row::{CurvePoint, Row, Run, World};
