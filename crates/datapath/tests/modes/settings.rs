//! Changes of settings while traffic flows, the system calls of modes, and the recording of the delivery core.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use abey_datapath::{BuildError, Recorder, Runtime, SetError, Transition, first_difference};
use abey_delivery::{Nanos, NapiConfig, NapiSettings};

use crate::support::{EchoServer, builders, connect, eventually, every_mode, mode, pair, round_trip};

#[test]
fn modes_change_while_traffic_flows() {
    let (client, server) = pair(mode("base"), 1);
    let echo = EchoServer::start(&server, 7);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let stream = connect(&client, echo.address);
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                round_trip(&stream, number);
                number += 1;
            }
        });
        for _ in 0..3 {
            for mode in every_mode() {
                let before = server.counters(None).packets;
                server.set_mode(mode).expect("a mode");
                assert_eq!(server.settings(1).expect("there"), mode.settings().napi);
                eventually("traffic goes on", || {
                    assert!(!traffic.is_finished(), "{mode}");
                    server.counters(None).packets > before + 20
                });
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn settings_are_changed_all_or_nothing() {
    let (_client, server) = pair(mode("base"), 2);
    let ids = server.napi_ids();
    server.set(&ids[..1], |settings| settings.defer_hard_irqs = 3).expect("valid");
    assert_eq!(server.settings(ids[0]).expect("there").defer_hard_irqs, 3);
    assert_eq!(server.settings(ids[1]).expect("there"), NapiSettings::default());
    let refused = server.set(&ids, |settings| settings.irq_suspend_timeout = Nanos::from_millis(20));
    assert!(refused.is_err());
    assert_eq!(server.settings(ids[1]).expect("there"), NapiSettings::default());
    assert!(matches!(server.settings(99), Err(SetError::NoSuchNapi(99))));
}

#[test]
fn invalid_configurations_are_errors_before_a_thread_starts() {
    assert!(matches!(Runtime::builder().address([10, 0, 0, 1].into(), 24).build(), Err(BuildError::NoNic)));
    let refused = |change: fn(abey_datapath::Builder) -> abey_datapath::Builder| change(builders(1).0).build();
    assert!(matches!(refused(|b| b.address([10, 0, 0, 1].into(), 40)), Err(BuildError::Config(_))));
    assert!(matches!(refused(|b| b.pin(vec![999_999])), Err(BuildError::Pin { cpu: 999_999, .. })));
    assert!(matches!(refused(|b| b.pin(vec![0, 0])), Err(BuildError::Count { given: 2, queues: 1, .. })));
    assert!(matches!(refused(|b| b.workers(0)), Err(BuildError::Workers(0))));
    assert!(matches!(refused(|b| b.nic("memory:", abey_nic::Options::default())), Err(BuildError::Nic(_))));
    builders(1).0.pin(vec![0]).build().expect("CPU 0 is there");
}

#[test]
fn an_idle_runtime_does_nothing() {
    for mode in every_mode() {
        let name = mode.to_string();
        if name == "fullbusy" || name == "threaded-busy" {
            continue;
        }
        let (client, server) = pair(mode, 1);
        let echo = EchoServer::start_with(&server, 7, Duration::from_secs(2));
        let streams: Vec<_> = (0..100).map(|_| connect(&client, echo.address)).collect();
        for (number, stream) in streams.iter().enumerate() {
            round_trip(stream, number as u64);
        }
        // The last polls of deferral, and the last acknowledgements of TCP.
        eventually(&format!("{name}: the last timers have expired"), || {
            let before = server.counters(None);
            std::thread::sleep(Duration::from_millis(300));
            let counters = server.counters(None).since(&before);
            let idle = counters.packets == 0 && counters.system_calls() < 5;
            if !idle {
                eprintln!("{name}: {counters:?}");
            }
            idle
        });
    }
}

#[test]
fn a_plain_core_makes_the_same_transitions_in_every_mode() {
    for mode in every_mode() {
        let trace = Arc::new(Mutex::new(Vec::<Transition>::new()));
        let recorder: Recorder = {
            let trace = trace.clone();
            Box::new(move |transition| trace.lock().expect("not poisoned").push(transition))
        };
        let (client, server) = builders(1);
        let client = client.build().expect("a client");
        let server = server.mode(mode).recorders(vec![recorder]).build().expect("a server");
        let echo = EchoServer::start(&server, 7);
        let stream = connect(&client, echo.address);
        for number in 0..300 {
            round_trip(&stream, number);
        }
        server.set_mode("base".parse().expect("a mode")).expect("a mode");
        round_trip(&stream, 1);
        drop((stream, echo, server));
        let trace = trace.lock().expect("not poisoned");
        assert!(trace.len() > 300, "{mode}: {} transitions", trace.len());
        assert_eq!(first_difference(NapiConfig::default(), mode.settings().napi, &trace), None, "{mode}");
    }
    assert!(first_difference(NapiConfig::default(), NapiSettings::default(), &[]).is_none());
}
