//! Published tables: properties of the predictions that must hold after any new fit.

use abey_sim::Profile;
use abey_sim::reference::{IrqSuspension, LowLatencySockets, PollHold, Row, ThreadedNapi, summarize, summarize_orders};

fn figures(rows: &[Row], mode: &str, column: &str) -> (f64, f64) {
    let row = rows.iter().find(|row| row.mode == mode).expect(mode);
    let figure = row.figures.get(column).expect(column);
    (figure.published.expect("published"), figure.predicted)
}

#[test]
fn holding_poll_mode_trades_interrupts_for_packets_and_cpu() {
    let profile = Profile::load(PollHold::PROFILE).expect("shipped");
    let rows = PollHold.predict(&profile, 1).expect("the profile fits");
    for mode in ["interrupt", "hold"] {
        let (published, predicted) = figures(&rows, mode, "packets_sent_and_received");
        assert!((predicted / published - 1.0).abs() < 0.15, "{mode}: {predicted} for {published}");
        let (published, predicted) = figures(&rows, mode, "cpu_percent");
        assert!((predicted - published).abs() < 5.0, "{mode}: {predicted} for {published}");
    }
    assert_eq!(figures(&rows, "hold", "interrupts").1, 1.0);
    let (published, predicted) = figures(&rows, "interrupt", "interrupts");
    assert!((predicted / published - 1.0).abs() < 0.15, "{predicted} for {published}");
}

#[test]
fn busy_polling_doubles_round_trips_independently_of_c_states() {
    let profile = Profile::load(LowLatencySockets::PROFILE).expect("shipped");
    let rows = LowLatencySockets.predict(&profile, 1).expect("the profile fits");
    for row in &rows {
        for (column, figure) in &row.figures.0 {
            let published = figure.published.expect("published");
            let error = figure.predicted / published - 1.0;
            assert!(error.abs() < 0.15, "{} {} {column}: {} for {published}", row.mode, row.load, figure.predicted);
        }
    }
    let rate = |mode: &str, load: &str| {
        let row = rows.iter().find(|row| row.mode == mode && row.load == load).expect(load);
        row.figures.get("tcp_rr_per_s").expect("a column").predicted
    };
    let typical = "typical, C-states off, rx-usecs adaptive";
    assert!(rate("busy-poll", typical) > 1.7 * rate("interrupt", typical));
    let (off, on) = ("optimized, C-states off, rx-usecs adaptive", "optimized, C-states on, rx-usecs adaptive");
    assert!((rate("busy-poll", on) / rate("busy-poll", off) - 1.0).abs() < 0.05);
    assert!(rate("interrupt", on) < 0.5 * rate("busy-poll", on));
}

#[test]
fn modes_that_were_not_fitted_are_predicted_well_and_in_the_right_order() {
    let profile = Profile::load("epyc-7662").expect("shipped");
    let rows = IrqSuspension::new().predict(&profile, 40e3, 3).expect("the profile fits");
    assert_eq!((rows.len(), rows.iter().filter(|row| row.fitted).count()), (66, 18));
    let summary = summarize(&rows);
    for (column, most) in
        [("avg_us", 10.0), ("p95_us", 15.0), ("p99_us", 25.0), ("cpu_percent", 4.0), ("cycles_per_query", 8.0)]
    {
        let error = summary.predicted.iter().find(|error| error.column == column).expect(column);
        assert!(error.rows == 48 && error.median <= most, "{error:?}");
    }
    let max = summary.max_qps.as_ref().expect("eight predicted rows at MAX");
    assert!(max.rows == 8 && max.worst <= 3.0, "{max:?}");
    for order in &summary.orders {
        assert!(order.pairs > 100 && order.right * 100 >= order.pairs * 95, "{order:?}");
    }
}

#[test]
fn polling_in_threads_loses_a_little_throughput_and_has_the_better_tail() {
    let profile = Profile::load(ThreadedNapi::PROFILE).expect("shipped");
    let rows = ThreadedNapi.predict_with(&profile, 3, 200).expect("the profile fits");
    let figure = |mode: &str, load: &str, column: &str| {
        let row = rows.iter().find(|row| row.mode == mode && row.load == load).expect(load);
        row.figures.get(column).expect(column)
    };
    for row in &rows {
        let qps = row.figures.get("qps").expect("a column");
        let published = qps.published.expect("published");
        assert!((qps.predicted / published - 1.0).abs() < 0.15, "{} {}: {}", row.mode, row.load, qps.predicted);
    }
    let predicted = |mode, column| figure(mode, "1 B", column).predicted;
    let (softirq, kthread, workqueue) =
        (predicted("softirq", "qps"), predicted("kthread", "qps"), predicted("workqueue", "qps"));
    assert!(workqueue < kthread && kthread < softirq && kthread > 0.93 * softirq, "{softirq} {kthread} {workqueue}");
    assert!(predicted("kthread", "p999_us") < 0.5 * predicted("softirq", "p999_us"));
    assert!(predicted("kthread", "p999_us") < predicted("workqueue", "p999_us"));
    // Of the rows with SSDs only the rates are predictions: their tails are those of the devices.
    let round_trips: Vec<Row> = rows.iter().filter(|row| !row.load.starts_with("SSD")).cloned().collect();
    assert_eq!((rows.len(), round_trips.len()), (18, 9));
    for order in summarize_orders(&round_trips, &["p99_us", "p999_us"]).orders {
        assert!(order.pairs > 3 && order.wrong.is_empty(), "{order:?}");
    }
}
