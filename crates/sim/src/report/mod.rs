//! Results of the simulator as text, JSON documents and pictures.

pub mod plan;
pub mod reference;
pub mod scenario;
pub mod timeline;

pub use plan::PlanReport;
