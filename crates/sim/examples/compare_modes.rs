//! Compares delivery modes in the simulator: one server on a published study's machine, at one load.
//!
//! ```text
//! cargo run --release -p abey-sim --example compare_modes -- 60k
//! ```

use std::error::Error;

use abey_sim::{Load, Profile, Scenario, run};

fn main() -> Result<(), Box<dyn Error>> {
    let rate: f64 = match std::env::args().nth(1) {
        Some(text) => text.trim_end_matches('k').parse::<f64>()? * 1000.0,
        None => 60_000.0,
    };
    let profile = Profile::load("epyc-7662")?;
    println!("{rate:.0} requests per second to one server; latency in microseconds\n");
    println!("{:<12} {:>8} {:>8} {:>8} {:>12}", "mode", "p50", "p99", "CPU %", "interrupts/q");
    for mode in ["base", "defer50", "fullbusy", "suspend20"] {
        let scenario = Scenario::new(mode.parse()?, Load::Open(rate));
        let outcome = run(&profile, &scenario)?;
        println!(
            "{mode:<12} {:>8.1} {:>8.1} {:>8.1} {:>12.3}",
            outcome.p50_us, outcome.p99_us, outcome.cpu_percent, outcome.interrupts_per_query
        );
    }
    Ok(())
}
