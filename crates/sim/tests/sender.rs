//! NIC whose interrupts the sending CPU handles (a veth), and clients that delay their acknowledgements.

use abey_delivery::Mode;
use abey_sim::profile::InterruptedCpu;
use abey_sim::{Load, Outcome, Profile, Scenario, run};

fn profile(interrupts: InterruptedCpu, delayed_acks: bool) -> Profile {
    let mut profile = Profile::parse("round.toml", include_str!("round.toml")).expect("the test's profile is valid");
    profile.nic.interrupts = interrupts;
    profile.client.delayed_acks = delayed_acks;
    profile
}

fn simulate(profile: &Profile, mode: &str, load: Load) -> Outcome {
    let mode: Mode = mode.parse().expect(mode);
    let scenario = Scenario { connections: 50, check: true, ..Scenario::new(mode, load) };
    run(profile, &scenario).expect("the scenario is valid")
}

#[test]
fn the_senders_work_is_not_charged_to_the_server() {
    let load = Load::Open(50e3);
    let own = simulate(&profile(InterruptedCpu::Server, false), "base", load);
    let senders = simulate(&profile(InterruptedCpu::Sender, false), "base", load);
    assert!(own.softirq_percent > 5.0 && own.hardirq_percent > 0.5, "{own:?}");
    assert_eq!((senders.softirq_percent, senders.hardirq_percent), (0.0, 0.0));
    assert!(senders.cpu_percent > 5.0 && senders.cpu_percent < own.cpu_percent - 5.0, "{senders:?}");
    assert!((senders.qps / 50e3 - 1.0).abs() < 0.05);
    assert!(senders.interrupts_per_query > 0.2, "they are taken all the same: {senders:?}");
}

#[test]
fn a_polling_thread_is_charged_for_its_polls() {
    let load = Load::Open(50e3);
    let own = simulate(&profile(InterruptedCpu::Server, true), "fullbusy", load);
    let senders = simulate(&profile(InterruptedCpu::Sender, true), "fullbusy", load);
    assert!(senders.cpu_percent > 95.0, "{senders:?}");
    assert!((senders.avg_us / own.avg_us - 1.0).abs() < 0.05, "{} {}", senders.avg_us, own.avg_us);
    for mode in Mode::EXAMPLES {
        if mode.starts_with("sockbusy") {
            continue;
        }
        let outcome = simulate(&profile(InterruptedCpu::Sender, true), mode, load);
        assert_eq!(outcome.requests, outcome.answers + outcome.outstanding, "{mode}");
        assert!((outcome.qps / 50e3 - 1.0).abs() < 0.05, "{mode}: {}", outcome.qps);
    }
}

#[test]
fn delayed_acknowledgements_send_no_packets() {
    for load in [Load::Open(50e3), Load::Closed] {
        let with = simulate(&profile(InterruptedCpu::Server, false), "base", load);
        let without = simulate(&profile(InterruptedCpu::Server, true), "base", load);
        let received = |outcome: &Outcome| outcome.packets as f64 / outcome.answers as f64 - 1.0;
        assert!((received(&with) - 2.0).abs() < 0.1, "{with:?}");
        assert!((received(&without) - 1.0).abs() < 0.1, "{without:?}");
    }
}

#[test]
fn a_late_timer_delays_deferred_packets() {
    let mut profile = profile(InterruptedCpu::Server, true);
    let load = Load::Open(20e3);
    let simulate = |profile: &Profile| {
        let scenario = Scenario { connections: 50, ..Scenario::new("defer50".parse().expect("a mode"), load) };
        run(profile, &scenario).expect("the scenario is valid")
    };
    let punctual = simulate(&profile);
    profile.interrupt.timer_late_ns = 20_000;
    let late = simulate(&profile);
    // Packets arrive uniformly between two polls, whose distance is the delay.
    let added = late.avg_us - punctual.avg_us;
    assert!((8.0..14.0).contains(&added), "{added} us: {} {}", punctual.avg_us, late.avg_us);
    assert!(late.polls_per_query < punctual.polls_per_query);
}
