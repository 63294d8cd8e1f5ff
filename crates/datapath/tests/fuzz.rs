//! The fuzz target of [`targets`] on kept inputs and on changes of them.

mod targets;

#[test]
fn control() {
    abey_testbed::fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "control", targets::control);
}
