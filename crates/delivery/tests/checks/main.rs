//! The checks of the delivery core: every schedule of a small world, random schedules of a larger one, and broken
//! variants of the core (canaries) that both must catch.

mod canaries;
mod equivalence;
mod exhaustive;
mod explorer;
mod random;
mod world;
