//! The kernel's instances under a real load: who polled is told right, in every mode. Needs root.

#[path = "../../linux/tests/common/bed.rs"]
mod bed;

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use abey_delivery::Nanos;
use abey_linux::netns::NetNs;
use abey_linux::veth::{End, create};
use abey_observe::{Collector, Counter, Instance, Options, Sample, Sampler};
use bed::Bed;

const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 79, 0, 1));
const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 79, 0, 2));

/// Longer than anything takes on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(30);

fn namespaces() -> Option<(NetNs, NetNs)> {
    let made = NetNs::create().ok().zip(NetNs::create().ok());
    if made.is_none() {
        eprintln!("skipped: needs root to make network namespaces");
    }
    made
}

fn pair(near: &NetNs, far: &NetNs, names: [&str; 2], queues: u32) {
    let end = |netns, name, address| End { netns, name, address: (address, 24) };
    create(&end(near, names[0], NEAR), &end(far, names[1], FAR), queues).expect("veth pair");
}

fn bed(queues: u32) -> Option<Bed> {
    let (near, far) = namespaces()?;
    pair(&near, &far, ["observe0", "observe1"], queues);
    Bed::start((near, far), NEAR, "0,64,1", "-1")
}

fn sampler(netns: &NetNs, devices: &[&str]) -> Sampler {
    let collectors = [Collector::Napi, Collector::Polls].into_iter().collect();
    let devices = devices.iter().map(|name| name.parse().expect("a pattern")).collect();
    let again = netns.run(NetNs::current).expect("enter").expect("open");
    Sampler::new(again, &Options { collectors, devices })
}

fn succeeded(sample: &Sample) -> bool {
    for outcome in &sample.outcomes {
        if let Err(why) = &outcome.result {
            eprintln!("skipped: {} ({why})", outcome.collector);
            return false;
        }
    }
    true
}

fn all(sample: &Sample, counter: Counter) -> u64 {
    let counts = sample.instances.iter().map(|one| one.counts.get(counter));
    counts.map(|count| count.expect("counted")).sum()
}

/// What the instances did while the server was under load for a while.
fn under_load(bed: &Bed, mode: &str) -> Option<Sample> {
    bed.set(mode);
    let mut sampler = sampler(&bed.near, &[]);
    let mut sample = sampler.sample(Nanos::ZERO);
    if !succeeded(&sample) {
        return None;
    }
    bed.under_load(|| {
        let since = Instant::now();
        while all(&sample, Counter::Packets) < 1000 && since.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(100));
            sample = sampler.sample(Nanos::ZERO);
        }
    });
    let after = sampler.sample(Nanos::ZERO);
    assert!(succeeded(&after) && all(&after, Counter::Packets) >= 1000, "{mode}: {after:?}");
    Some(after)
}

#[test]
fn who_polls_is_told_in_every_mode() {
    let Some(bed) = bed(1) else { return };
    let Some(base) = under_load(&bed, "base") else { return };
    let one = &base.instances[0];
    assert_eq!((one.device.as_str(), one.mode.as_str(), one.queue().as_str()), ("observe0", "base", "0"));
    assert!(all(&base, Counter::SoftirqPolls) > 0 && all(&base, Counter::SoftirqNanos) > 0, "{base:?}");
    assert_eq!((all(&base, Counter::TimerPolls), all(&base, Counter::Timers)), (0, 0), "{base:?}");
    assert_eq!((all(&base, Counter::ThreadPolls), all(&base, Counter::Suspensions)), (0, 0), "{base:?}");

    let defer = under_load(&bed, "defer50").expect("as before");
    assert!(all(&defer, Counter::TimerPolls) > 0, "{defer:?}");
    assert!(all(&defer, Counter::Timers) >= all(&defer, Counter::TimerPolls), "{defer:?}");
    assert_eq!(all(&defer, Counter::Suspensions), 0, "{defer:?}");

    let suspend = under_load(&bed, "suspend20").expect("as before");
    assert!(all(&suspend, Counter::Suspensions) > 100 && all(&suspend, Counter::BusyPolls) > 100, "{suspend:?}");
    assert!(all(&suspend, Counter::BusyPollPackets) > 0, "{suspend:?}");
    assert_eq!(suspend.instances[0].family.name(), "suspend");

    let threaded = under_load(&bed, "threaded").expect("as before");
    assert!(all(&threaded, Counter::ThreadPolls) > 0 && all(&threaded, Counter::ThreadNanos) > 0, "{threaded:?}");
    for sample in [&base, &defer, &suspend, &threaded] {
        let counts = &sample.instances[0].counts;
        // A poll may fall between the reading of the one and of the other.
        let (batches, polls) = (counts.batches.expect("counted").iter().sum::<u64>(), counts.polls().expect("counted"));
        assert!(batches.abs_diff(polls) <= 2, "{counts:?}");
        assert!(counts.mean_batch().expect("packets") >= 1.0, "{counts:?}");
    }
}

#[test]
fn queues_are_told_apart_and_devices_chosen_by_name() {
    let Some(bed) = bed(4) else { return };
    let Some(sample) = under_load(&bed, "base") else { return };
    let queues: Vec<String> = sample.instances.iter().map(Instance::queue).collect();
    assert_eq!(queues, ["0", "1", "2", "3"]);
    assert_eq!(sampler(&bed.near, &["obs*"]).sample(Nanos::ZERO).instances.len(), 4);
    assert!(sampler(&bed.near, &["eth*", "lo"]).sample(Nanos::ZERO).instances.is_empty());
}

#[test]
fn instances_that_come_later_are_counted_and_those_that_go_are_forgotten() {
    let Some((near, far)) = namespaces() else { return };
    let mut sampler = sampler(&near, &[]);
    let sample = sampler.sample(Nanos::ZERO);
    if !succeeded(&sample) {
        return;
    }
    assert!(sample.instances.is_empty());
    pair(&near, &far, ["observe2", "observe3"], 2);
    let sample = sampler.sample(Nanos::from_millis(1));
    let devices: Vec<&str> = sample.instances.iter().map(|one| one.device.as_str()).collect();
    assert_eq!(devices, ["observe2", "observe2"]);
    // The pair goes with its other namespace, which the kernel takes down in its own time.
    drop(far);
    let since = Instant::now();
    while !sampler.sample(Nanos::from_millis(2)).instances.is_empty() {
        assert!(since.elapsed() < PATIENCE, "the instances are still there");
        std::thread::sleep(Duration::from_millis(10));
    }
}
