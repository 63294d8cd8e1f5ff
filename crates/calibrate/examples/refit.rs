//! Repeats the fit for a document of `abey calibrate --json` and prints the predictions, for work on the model.
//!
//! `cargo run --release -p abey-calibrate --example refit -- DOCUMENT.json [EVALUATIONS]`

use abey_calibrate::template::{Subject, text};
use abey_calibrate::training::BenchedRow;
use abey_calibrate::{Accuracy, Cost, Costs, fit, prediction};
use abey_sim::Profile;
use abey_sim::profile::Delivery;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().expect("name a document");
    let evaluations = arguments.next().map_or(700, |count| count.parse().expect("a number"));
    let document = std::fs::read_to_string(&path).expect("the document is there");
    let document: serde_json::Value = serde_json::from_str(&document).expect("JSON");
    for name in [Delivery::Linux, Delivery::Datapath] {
        let of_world = |value: &&serde_json::Value| value["world"] == name.to_string();
        let rows = document["rows"].as_array().expect("rows").iter().filter(of_world);
        let rows: Vec<BenchedRow> =
            rows.map(|row| serde_json::from_value(row.clone()).expect("a row of a calibration")).collect();
        if rows.is_empty() {
            continue;
        }
        let profile = document["profiles"].as_array().and_then(|profiles| profiles.iter().find(of_world));
        let costs: Vec<Cost> = profile.map_or_else(Vec::new, |profile| {
            serde_json::from_value(profile["costs"].clone()).expect("costs of a calibration")
        });
        refit(name, &Costs(costs), rows, evaluations);
    }
}

fn refit(world: Delivery, costs: &Costs, rows: Vec<BenchedRow>, evaluations: usize) {
    let rates = || rows.iter().map(|row| row.rate);
    let loads = (rates().min().unwrap_or(0), rates().max().unwrap_or(0));
    let text = text(&Subject { world, costs, description: "refitted".to_owned(), connections: 20, loads });
    let effort = fit::Effort { evaluations, ..fit::Effort::default() };
    let since = std::time::Instant::now();
    let fitted = fit::fit(world, &text, &rows, effort, &|| false, &mut |_, _| {}).expect("a profile");
    println!("{world}: {:.1} -> {:.1} in {:.1} s", fitted.before, fitted.after, since.elapsed().as_secs_f64());
    for line in fitted.text.lines().filter(|line| line.contains("# fitted")) {
        println!("  {}", line.split('#').next().unwrap_or_default().trim());
    }
    let profile = Profile::parse("refitted.toml", &fitted.text).expect("a profile");
    let predictions = prediction::predict(world, &profile, rows).expect("a profile");
    for row in &predictions {
        println!(
            "  {:<10} {:>6} avg {:>7.1} ±{:<6.1} {:>7.1} {:>+5.0} %   p50 {:>6.1} {:>6.1}   p99 {:>7.1} {:>7.1}   cpu {:>5.1} {:>5.1} {:>+5.1} {} {}",
            row.benched.mode.to_string(),
            row.benched.rate,
            row.benched.avg_us.median,
            row.benched.avg_us.uncertain,
            row.predicted_avg_us,
            100.0 * row.avg_error,
            row.benched.p50_us.median,
            row.predicted_p50_us,
            row.benched.p99_us.median,
            row.predicted_p99_us,
            row.benched.cpu_percent.median,
            row.predicted_cpu_percent,
            row.cpu_error,
            if row.benched.fitted { "fitted" } else { "" },
            if row.unsteady { "unsteady" } else { "" },
        );
    }
    println!("  {:?}", Accuracy::of(world, &predictions));
}
