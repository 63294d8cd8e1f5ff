//! Properties that hold for every host and every sequence of samples.

mod plant;

use abey_delivery::{Family, ModeSettings, Nanos};
use abey_tune::{Bounds, Controller, Goal, Latency, Sample, Why};
use plant::Plant;
use proptest::prelude::*;

const INTERVAL: Nanos = Nanos::from_millis(250);
const AN_HOUR: Nanos = Nanos::from_millis(3_600_000);

fn goals() -> impl Strategy<Value = Goal> {
    prop_oneof![
        (1..5_000u64).prop_map(|micros| Goal::P99(Nanos::from_micros(micros))),
        (1..=1_000u32).prop_map(|permille| Goal::Cpu(f64::from(permille) / 1_000.0)),
    ]
}

fn bounds() -> impl Strategy<Value = Bounds> {
    let families = [Family::Base, Family::Defer, Family::Suspend, Family::NapiBusy, Family::FullBusy];
    let some = proptest::sample::subsequence(families.to_vec(), 1..=5);
    (1..300u64, 0..700u64, 1..10u64, 0..20u64, some).prop_map(|(flush, more, suspend, longer, families)| {
        let us = Nanos::from_micros;
        let suspend = suspend * 1_000 + 1_000;
        Bounds::new(us(flush)..=us(flush + more), us(suspend)..=us(suspend + longer * 1_000), &families).expect("sound")
    })
}

/// Arbitrary samples, including invalid ones.
fn samples() -> impl Strategy<Value = Sample> {
    let cpu = prop_oneof![8 => 0.0..4.0f64, 1 => Just(f64::NAN), 1 => Just(-1.0), 1 => Just(f64::INFINITY)];
    let latency = (prop_oneof![0..40u64, 0..1_000_000u64], 0..u64::MAX / 2).prop_map(|(count, p99)| {
        // Most are within a few milliseconds.
        let p99 = Nanos::from_nanos(if p99 % 16 == 0 { p99 } else { p99 % 3_000_000 });
        Latency { count, p50: p99, p99 }
    });
    let interval = prop_oneof![9 => Just(INTERVAL), 1 => (0..10_000_000_000u64).prop_map(Nanos::from_nanos)];
    let packets = prop_oneof![Just(0), 0..100u64, 0..10_000_000u64, Just(u64::MAX)];
    (interval, packets, any::<u64>(), any::<u64>(), cpu, proptest::option::weighted(0.8, latency)).prop_map(
        |(interval, packets, polls, empty_polls, cpu, latency)| Sample {
            interval,
            packets,
            polls: polls >> 40,
            empty_polls: empty_polls >> 40,
            cpu,
            latency,
        },
    )
}

fn at(index: usize) -> Nanos {
    Nanos::from_nanos(INTERVAL.as_nanos() * (index as u64 + 1))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn settings_stay_within_the_bounds(
        goal in goals(),
        bounds in bounds(),
        samples in proptest::collection::vec(samples(), 1..200),
        rejected in 0..200usize,
    ) {
        let mut tuner = Controller::new(goal, bounds.clone(), None).expect("sound");
        prop_assert!(bounds.contains(&tuner.settings()));
        for (index, sample) in samples.iter().enumerate() {
            let before = tuner.settings();
            let step = tuner.handle_sample(at(index), sample);
            prop_assert!(bounds.contains(&step.settings), "{}", step.reason);
            prop_assert_eq!(step.changed, step.settings != before);
            prop_assert_eq!(step.settings, tuner.settings());
            prop_assert!(!step.reason.to_string().contains('\n'));
            if index == rejected {
                tuner.reject(at(index), &step.settings);
                prop_assert!(bounds.contains(&tuner.settings()));
            }
        }
    }

    #[test]
    fn samples_without_traffic_change_nothing(seed: u64, empty in proptest::collection::vec(0..4usize, 300)) {
        let mut plant = Plant::random(seed);
        let goal = Goal::P99(Nanos::from_micros(400));
        let mut with = Controller::new(goal, Bounds::default(), None).expect("sound");
        let mut without = with.clone();
        for (index, empty) in empty.iter().enumerate() {
            let sample = plant.sample(&without.settings(), 20_000.0, INTERVAL);
            for _ in 0..*empty {
                let nothing = Sample { packets: 0, polls: 3, empty_polls: 3, latency: None, ..sample };
                let step = with.handle_sample(at(index), &nothing);
                prop_assert_eq!((step.changed, step.reason.why), (false, Why::Quiet));
            }
            prop_assert_eq!(with.handle_sample(at(index), &sample), without.handle_sample(at(index), &sample));
        }
    }
}

proptest! {
    // Each case is two hours of four samples a second.
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 40, ..ProptestConfig::default() })]

    #[test]
    fn a_constant_load_swings_at_most_twice_an_hour(seed: u64, micros in 150..600u64, load in 1_000.0..80_000.0f64) {
        let mut plant = Plant::random(seed);
        let goal = Goal::P99(Nanos::from_micros(micros));
        let mut tuner = Controller::new(goal, Bounds::default(), None).expect("sound");
        let swings = swings(&mut plant, load, 2, |now, sample| {
            let step = tuner.handle_sample(now, sample);
            (step.settings, direction(step.reason.why))
        });
        prop_assert!(most_in_an_hour(&swings.returns) <= 2, "{:?}", swings);
        prop_assert!(most_in_an_hour(&swings.turns) <= 2, "{:?}", swings);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Direction {
    Gain,
    Back,
}

fn direction(why: Why) -> Option<Direction> {
    match why {
        Why::Gain(_) | Why::Trial => Some(Direction::Gain),
        Why::Missed | Why::RoomTooThin | Why::TrialOver | Why::OutOfReach => Some(Direction::Back),
        _ => None,
    }
}

/// The times at which settings returned that had been in use within the hour before, and at which moves changed
/// direction.
#[derive(Debug, Default)]
struct Swings {
    returns: Vec<Nanos>,
    turns: Vec<Nanos>,
}

fn swings(
    plant: &mut Plant,
    load: f64,
    hours: u64,
    mut steer: impl FnMut(Nanos, &Sample) -> (ModeSettings, Option<Direction>),
) -> Swings {
    let mut swings = Swings::default();
    let mut left: Vec<(Nanos, ModeSettings)> = Vec::new();
    let mut last = None;
    let (mut settings, _) =
        steer(Nanos::ZERO, &Sample { packets: 0, ..plant.sample(&ModeSettings::default(), load, INTERVAL) });
    for index in 0..(hours * AN_HOUR.as_nanos() / INTERVAL.as_nanos()) as usize {
        let sample = plant.sample(&settings, load, INTERVAL);
        let (next, direction) = steer(at(index), &sample);
        if next == settings {
            continue;
        }
        if left.iter().any(|(when, other)| *other == next && at(index).saturating_sub(*when) < AN_HOUR) {
            swings.returns.push(at(index));
        }
        left.push((at(index), settings));
        if direction.is_some() && last.is_some() && direction != last {
            swings.turns.push(at(index));
        }
        last = direction.or(last);
        settings = next;
    }
    swings
}

/// The greatest number of them within an hour.
fn most_in_an_hour(times: &[Nanos]) -> usize {
    let within = |from: &Nanos| times.iter().filter(|at| *at >= from && at.saturating_sub(*from) < AN_HOUR).count();
    times.iter().map(within).max().unwrap_or(0)
}

#[test]
fn a_controller_that_swings_is_caught() {
    let mut plant = Plant::random(1);
    let settings = Bounds::default().settings();
    let mut turn = 0;
    let swings = swings(&mut plant, 10_000.0, 1, |_, _| {
        turn += 1;
        let further = turn / 2_000 % 2 == 0;
        let direction = if further { Direction::Gain } else { Direction::Back };
        (settings[3 + usize::from(further)], Some(direction))
    });
    assert!(most_in_an_hour(&swings.returns) > 2 && most_in_an_hour(&swings.turns) > 2, "{swings:?}");
}

/// The last sample after some time at one load.
fn run_at(tuner: &mut Controller, plant: &mut Plant, load: f64, blind: bool) -> Sample {
    let mut last = plant.sample(&tuner.settings(), load, INTERVAL);
    for index in 0..400 {
        if blind {
            last.latency = None;
        }
        tuner.handle_sample(at(index), &last);
        last = plant.sample(&tuner.settings(), load, INTERVAL);
    }
    last
}

#[test]
fn a_goal_for_cpu_is_used_up_and_kept() {
    for blind in [false, true] {
        let mut plant = Plant::random(7);
        let costs: Vec<f64> = Bounds::default().settings().iter().map(|one| plant.cpu(one, 30_000.0)).collect();
        let (least, most) =
            costs.iter().fold((f64::INFINITY, 0.0f64), |(low, high), cpu| (low.min(*cpu), high.max(*cpu)));
        let share = least + 0.4 * (most - least);
        let mut tuner = Controller::new(Goal::Cpu(share), Bounds::default(), None).expect("sound");
        let cautious = plant.p99_us(&tuner.settings(), 30_000.0);
        let last = run_at(&mut tuner, &mut plant, 30_000.0, blind);
        assert!(last.cpu <= share * 1.02, "{} of {share}, blind: {blind}", last.cpu);
        assert!(plant.p99_us(&tuner.settings(), 30_000.0) < 0.8 * cautious, "blind: {blind}");
    }
}

#[test]
fn an_unmeasured_goal_for_latency_uses_half_of_the_limit_and_is_reported_as_estimated() {
    let mut plant = Plant::random(3);
    let mut tuner = Controller::new(Goal::P99(Nanos::from_micros(300)), Bounds::default(), None).expect("sound");
    let last = run_at(&mut tuner, &mut plant, 10_000.0, true);
    assert!(tuner.settings().napi.gro_flush_timeout <= Nanos::from_micros(150));
    let step = tuner.handle_sample(at(401), &Sample { latency: None, ..last });
    assert!(step.reason.is_estimated() && step.reason.to_string().contains("estimated"), "{}", step.reason);
    // Once latency is measured, the measurement counts.
    let step = tuner.handle_sample(at(402), &last);
    assert!(!step.reason.is_estimated());
}

#[test]
fn rejected_settings_are_not_chosen_again() {
    let mut plant = Plant::random(5);
    let mut tuner = Controller::new(Goal::P99(Nanos::from_micros(400)), Bounds::default(), None).expect("sound");
    let mut rejected: Vec<ModeSettings> = Vec::new();
    for index in 0..2_000 {
        let step = tuner.handle_sample(at(index), &plant.sample(&tuner.settings(), 20_000.0, INTERVAL));
        if step.changed && Family::of(&step.settings) == Family::Suspend {
            assert!(!rejected.contains(&step.settings), "{}", step.reason);
            rejected.push(step.settings);
            tuner.reject(at(index), &step.settings);
            assert_ne!(tuner.settings(), step.settings);
        }
    }
}

#[test]
fn a_start_outside_of_the_bounds_or_an_impossible_goal_is_rejected() {
    let busy = "fullbusy".parse::<abey_delivery::Mode>().expect("a mode").settings();
    let error = Controller::new(Goal::Cpu(0.5), Bounds::default(), Some(busy)).expect_err("outside");
    assert!(error.to_string().contains("fullbusy"), "{error}");
    assert!(Controller::new(Goal::Cpu(0.0), Bounds::default(), None).is_err());
}
