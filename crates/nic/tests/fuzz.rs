//! The fuzz targets of [`targets`] on kept inputs and on changes of them.

mod targets;

use abey_testbed::fuzz::fuzz;

#[test]
fn broker() {
    fuzz(env!("CARGO_MANIFEST_DIR"), "broker", targets::broker);
}

#[test]
fn handshake() {
    fuzz(env!("CARGO_MANIFEST_DIR"), "handshake", targets::handshake);
}
