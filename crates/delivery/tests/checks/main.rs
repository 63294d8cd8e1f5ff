//! The checks of the delivery core: every schedule of a small world, random schedules of larger ones, and broken variants of
//! the core (canaries) that the exploration must detect.

mod canaries;
mod equivalence;
mod exhaustive;
mod explorer;
mod random;
mod world;

use std::io::Write;

/// Writes a line of the report to the standard error directly: the test harness captures the output of the print macros.
fn report(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
