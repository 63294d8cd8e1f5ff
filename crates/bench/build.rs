//! Passes the build profile to the crate: a bench reports which profile it measured.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // OUT_DIR is `TARGET/[TRIPLE/]PROFILE/build/PACKAGE-HASH/out`. The directory of the profile `dev` is `debug`.
    let out = std::env::var_os("OUT_DIR").expect("set by Cargo");
    let build = Path::new(&out).ancestors().find(|path| path.file_name().is_some_and(|name| name == "build"));
    let profile = build.and_then(|build| build.parent()?.file_name()?.to_str()).unwrap_or("unknown");
    println!("cargo::rustc-env=ABEY_BUILD_PROFILE={profile}");
}
