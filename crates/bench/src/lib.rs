//! Measures delivery modes: test beds, the mode x load matrix, statistics, tables and the HTML report.
//!
//! The pure half turns measured [`Run`]s into [`Row`]s (medians and spreads), lays them out as a [`table`], beside the
//! published figures of [`reference`](mod@reference), and as one self-contained HTML [`report`].

#![forbid(unsafe_code)]

pub mod compare;
pub mod datapath;
pub mod document;
pub mod figure;
pub mod linux;
pub mod load;
pub mod machine;
pub mod reference;
pub mod report;
pub mod row;
pub mod stats;
pub mod table;

pub use compare::Comparison;
pub use datapath::Datapath;
pub use document::{Document, Setup};
pub use figure::{Figure, Figures, Spreads};
pub use load::{Load, ParseLoadError};
pub use machine::Machine;
pub use row::{CurvePoint, Row, Run, World};
