//! The report opens in a real browser and shows what it should.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use abey_bench::reference::ReferenceTable;
use abey_bench::{Comparison, Document, Load, report};

fn sample(loads: &[&str]) -> String {
    let document = common::document(loads);
    report::render(&document, Some(&Comparison::new(&document.rows, &ReferenceTable::memcached())))
}

/// Writes the sample where a person can open it: `target/tmp/sample-report.html`.
#[test]
fn a_sample_for_eyes() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sample-report.html");
    fs::write(&path, sample(&["20k", "50k", "max"])).expect("the target directory is writable");
    println!("{}", path.display());
}
