//! Long random schedules of larger worlds: several instances, CPUs, workers and applications, and any settings.

use abey_delivery::check::Violation;
use abey_delivery::{EpollConfig, Membership, NapiConfig, SoftirqLimits, SuspendVariant, ZeroTimeout};
use proptest::prelude::*;

use crate::exhaustive::{MODES, mode};
use crate::world::{May, Scope, Step, World, ticks};

/// All kinds of steps.
const ANYTHING: May = May {
    tick: true,
    untimed: false,
    tick_in_softirq: true,
    disable: true,
    close: true,
    wait_zero: true,
    wait_short: true,
    disturb: true,
};

fn scopes() -> impl Strategy<Value = Scope> {
    let size = (1..=3usize, 1..=2usize, 1..=2usize, 0..=3usize, 1..=6u16);
    let core = (0..MODES.len(), 1..=4u16, any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let softirq = (1..=6u32, 1..=3u64);
    (size, core, softirq).prop_map(|(size, core, softirq)| {
        let (instances, cpus, workers, apps, capacity) = size;
        let (nth, weight, early, returns, changes, edges) = core;
        // The early variant suspends on completion for the busy poller that made the owner yield. If that poller left
        // before suspension was switched on, there is no resume; the safety timer ends the suspension.
        let suspend = if early && !changes { SuspendVariant::Early } else { SuspendVariant::Merged };
        let zero_timeout = if returns { ZeroTimeout::Return } else { ZeroTimeout::PollOnce };
        // A test below covers Linux's single NAPI ID with several instances.
        let membership = if instances == 1 && returns { Membership::LastReady } else { Membership::All };
        Scope {
            instances,
            cpus,
            workers,
            apps,
            edges,
            capacity,
            config: NapiConfig { weight, suspend, ..NapiConfig::default() },
            epoll: EpollConfig { membership, zero_timeout },
            limits: SoftirqLimits { packets: softirq.0, time: ticks(softirq.1) },
            changes: if changes { MODES.map(|name| mode(name).napi).to_vec() } else { Vec::new() },
            may: ANYTHING,
            ..Scope::new(mode(MODES[nth]))
        }
    })
}

/// Makes the chosen steps, two thirds of them among those under way, and appends them to the log.
fn run(scope: &Scope, choices: &[u16], log: &mut Vec<Step>) -> Result<World, Violation> {
    let mut world = World::new(scope);
    let mut steps = Vec::new();
    for choice in choices {
        world.steps(scope, &mut steps);
        if choice % 3 > 0 && steps.iter().any(|step| step.is_progress()) {
            steps.retain(|step| step.is_progress());
        }
        let step = steps[usize::from(choice / 3) % steps.len()];
        log.push(step);
        world.apply(scope, step)?;
    }
    Ok(world)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn random_schedules_keep_the_invariants(scope in scopes(), choices in prop::collection::vec(any::<u16>(), 0..400)) {
        let mut log = Vec::new();
        let outcome = run(&scope, &choices, &mut log);
        prop_assert!(outcome.is_ok(), "{}\nafter {log:?}", outcome.expect_err("it is not ok"));
        let outcome = outcome.expect("checked").drains(&scope);
        prop_assert!(outcome.is_ok(), "{}\nafter {log:?}", outcome.expect_err("it is not ok"));
    }
}

/// An epoll context that stores one NAPI ID, with sockets on two queues: it suspends the interrupts of one queue, continues
/// with the other, and only the safety timer polls the first again.
#[test]
fn one_napi_id_leaves_the_other_queue_suspended() {
    use Step::{AppNext, Arrive, Interrupt, SoftirqDone, SoftirqRun, Wait};
    let half = Scope { instances: 2, apps: 1, epoll: EpollConfig::LINUX, ..Scope::new(mode("suspend")) };
    let whole = Scope { epoll: EpollConfig::default(), ..half.clone() };
    let first = |n| [Arrive(n), Interrupt(n), SoftirqRun(0), SoftirqDone { cpu: 0, to: Some(0) }];
    let schedule = [&first(0)[..], &[Wait(0), AppNext(0)], &first(1)[..]].concat();
    let follow = |scope: &Scope| {
        let mut world = World::new(scope);
        schedule.iter().try_for_each(|step| world.apply(scope, *step))
    };
    assert_eq!(follow(&half), Err(Violation::SuspendedWithoutPoller));
    assert_eq!(follow(&whole), Ok(()));
}
