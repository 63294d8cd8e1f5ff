//! SVG charts and text tables. Every mode has one colour and one marker in all of them.
//!
//! - [`LineChart`]: lines against axes, as a figure of an HTML page.
//! - [`FrontierChart`]: CPU use against latency, as an SVG file.
//! - [`TimelineChart`]: lanes over one axis of time, as an SVG file.
//! - [`table`]: tables for a terminal.

#![forbid(unsafe_code)]

mod axis;
mod frontier;
mod line;
pub mod number;
mod palette;
pub mod table;
mod timeline;

pub use axis::Axis;
pub use frontier::{FrontierChart, FrontierGoal, FrontierMark};
pub use line::{Layout, LineChart, Point, Series};
pub use palette::{Marker, ModeStyle};
pub use timeline::{TimelineChart, TimelineGroup, TimelineKind, TimelineLane, TimelineView};
