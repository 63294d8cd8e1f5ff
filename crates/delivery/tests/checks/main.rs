//! The checks of the delivery core: every schedule of a small world, random schedules of a larger one, and broken
//! variants of the core (canaries) that both must catch.

mod canaries;
mod equivalence;
mod exhaustive;
mod explorer;
mod random;
mod world;

use std::io::Write;

/// Writes a line of the report to where it is seen: the test harness only keeps back what the print macros write.
fn report(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
