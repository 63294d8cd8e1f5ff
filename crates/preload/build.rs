//! Gives the shared library an entry point, so that executing it prints its version.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-e,abey_library_entry");
}
