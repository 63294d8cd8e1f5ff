//! The kernel's instances under a real load: each poll is counted in its context, in every mode. Needs root.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use abey_delivery::{Mode, Nanos};
use abey_linux::napi::{NapiChange, napis, set_napi};
use abey_linux::netlink::Netlink;
use abey_linux::netns::NetNs;
use abey_linux::tracefs::Tracefs;
use abey_metrics::{Collector, Counter, Instance, Options, Sample, Sampler};
use abey_testbed::echo::EchoServer;
use abey_testbed::veth::{End, create};

const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 79, 0, 1));
const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 79, 0, 2));

/// A limit that only a hang reaches.
const HANG_LIMIT: Duration = Duration::from_secs(30);

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

/// A server at one end of a pair.
struct TestBed {
    near: NetNs,
    far: NetNs,
    server: EchoServer,
}

impl TestBed {
    /// Sets every NAPI instance at the near end to a mode.
    fn set(&self, mode: &str) {
        let mut netlink = Netlink::open(&self.near).expect("netlink");
        let settings = mode.parse::<Mode>().expect(mode).settings().napi;
        for napi in napis(&mut netlink, None).expect("list") {
            set_napi(&mut netlink, napi.id, &NapiChange::between(&napi.settings(), &settings)).expect("set");
        }
    }
}

fn bed(queues: u32) -> Option<TestBed> {
    let (near, far) = namespaces()?;
    pair(&near, &far, ["observe0", "observe1"], queues);
    if let Err(error) = Tracefs::open() {
        eprintln!("skipped: {error}");
        return None;
    }
    let server = EchoServer::start(&near, NEAR, "0,64,1", "-1")?;
    Some(TestBed { near, far, server })
}

fn sampler(netns: &NetNs, devices: &[&str]) -> Sampler {
    let collectors = [Collector::Napi, Collector::Polls].into_iter().collect();
    let devices = devices.iter().map(|name| name.parse().expect("a pattern")).collect();
    let again = netns.run(NetNs::current).expect("entered").expect("opened");
    Sampler::new(again, &Options { collectors, devices })
}

fn succeeded(sample: &Sample) -> bool {
    for result in &sample.results {
        if let Err(error) = &result.result {
            eprintln!("skipped: {} ({error})", result.collector);
            return false;
        }
    }
    true
}

fn total(sample: &Sample, counter: Counter) -> u64 {
    let counts = sample.instances.iter().map(|one| one.counts.get(counter));
    counts.map(|count| count.expect("counted")).sum()
}

/// Returns a sample after at least 1000 packets of load.
fn under_load(bed: &TestBed, mode: &str) -> Option<Sample> {
    bed.set(mode);
    let mut sampler = sampler(&bed.near, &[]);
    let mut sample = sampler.sample(Nanos::ZERO);
    if !succeeded(&sample) {
        return None;
    }
    bed.server.under_load(&bed.far, || {
        let since = Instant::now();
        while total(&sample, Counter::Packets) < 1000 && since.elapsed() < HANG_LIMIT {
            std::thread::sleep(Duration::from_millis(100));
            sample = sampler.sample(Nanos::ZERO);
        }
    });
    let after = sampler.sample(Nanos::ZERO);
    assert!(succeeded(&after) && total(&after, Counter::Packets) >= 1000, "{mode}: {after:?}");
    Some(after)
}

#[test]
fn polls_are_counted_in_their_context_in_every_mode() {
    let Some(bed) = bed(1) else { return };
    let Some(base) = under_load(&bed, "base") else { return };
    let one = &base.instances[0];
    assert_eq!((one.device.as_str(), one.mode.as_str(), one.queue_list().as_str()), ("observe0", "base", "0"));
    assert!(total(&base, Counter::SoftirqPolls) > 0 && total(&base, Counter::SoftirqNanos) > 0, "{base:?}");
    assert_eq!((total(&base, Counter::TimerPolls), total(&base, Counter::Timers)), (0, 0), "{base:?}");
    assert_eq!((total(&base, Counter::ThreadPolls), total(&base, Counter::Suspensions)), (0, 0), "{base:?}");

    let defer = under_load(&bed, "defer50").expect("as before");
    assert!(total(&defer, Counter::TimerPolls) > 0, "{defer:?}");
    assert!(total(&defer, Counter::Timers) >= total(&defer, Counter::TimerPolls), "{defer:?}");
    assert_eq!(total(&defer, Counter::Suspensions), 0, "{defer:?}");

    let suspend = under_load(&bed, "suspend20").expect("as before");
    assert!(total(&suspend, Counter::Suspensions) > 100 && total(&suspend, Counter::BusyPolls) > 100, "{suspend:?}");
    assert!(total(&suspend, Counter::BusyPollPackets) > 0, "{suspend:?}");
    assert_eq!(suspend.instances[0].family.name(), "suspend");

    let threaded = under_load(&bed, "threaded").expect("as before");
    assert!(total(&threaded, Counter::ThreadPolls) > 0 && total(&threaded, Counter::ThreadNanos) > 0, "{threaded:?}");
    for sample in [&base, &defer, &suspend, &threaded] {
        let counts = &sample.instances[0].counts;
        // The two are read at different times, so that they may differ by a poll.
        let (batches, polls) = (counts.batches.expect("counted").iter().sum::<u64>(), counts.polls().expect("counted"));
        assert!(batches.abs_diff(polls) <= 2, "{counts:?}");
        assert!(counts.mean_batch().expect("packets") >= 1.0, "{counts:?}");
    }
}

#[test]
fn queues_are_separate_and_devices_are_selected_by_name() {
    let Some(bed) = bed(4) else { return };
    let Some(sample) = under_load(&bed, "base") else { return };
    let queues: Vec<String> = sample.instances.iter().map(Instance::queue_list).collect();
    assert_eq!(queues, ["0", "1", "2", "3"]);
    assert_eq!(sampler(&bed.near, &["obs*"]).sample(Nanos::ZERO).instances.len(), 4);
    assert!(sampler(&bed.near, &["eth*", "lo"]).sample(Nanos::ZERO).instances.is_empty());
}

#[test]
fn instances_may_appear_and_disappear_between_samples() {
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
    // The pair is removed with its other namespace, which the kernel destroys asynchronously.
    drop(far);
    let since = Instant::now();
    while !sampler.sample(Nanos::from_millis(2)).instances.is_empty() {
        assert!(since.elapsed() < HANG_LIMIT, "the instances are still there");
        std::thread::sleep(Duration::from_millis(10));
    }
}
