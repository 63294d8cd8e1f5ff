//! Counters of real activity: polls on a veth pair, system calls and switches of real threads, CPU time. Needs root.

use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use abey_delivery::{EpollBusyPoll, Nanos, PollContext};
use abey_linux::counters::{Count, Interrupts, NetStat, SoftirqCounts, Softnet, Work, WorkCounter};
use abey_linux::cpu::{self, CpuError, CpuList, CpuTimes, ProcessCpuClock};
use abey_linux::napi::NapiChange;
use abey_linux::polls::{PollCounter, PollCounts, TimerCounter};
use abey_linux::tracefs::{Tracefs, TracefsError};

mod counters_common;

use counters_common::{Echo, Net, is_root, ping};

const ROUNDS: usize = 500;

/// Returns the polls of the server's device while `ROUNDS` bytes are echoed, after the connection has become idle.
fn polls_of(net: &Net, kthreads: &[u32], busy_poll: Option<EpollBusyPoll>) -> (PollCounts, Echo, TcpStream) {
    let echo = Echo::start(net, busy_poll);
    let mut stream = net.connect(echo.address.port());
    ping(&mut stream, 10);
    let mut counter = PollCounter::open(&net.device, kthreads).expect("poll counter");
    ping(&mut stream, ROUNDS);
    (counter.read().expect("counts"), echo, stream)
}

fn close(echo: Echo, stream: TcpStream) {
    drop(stream);
    echo.thread.join().expect("server");
}

#[test]
fn polls_without_any_mode_are_softirq_polls_one_for_each_packet() {
    let Some(net) = Net::new('p') else { return };
    let (polls, echo, stream) = polls_of(&net, &[], None);
    assert!((ROUNDS as u64..2 * ROUNDS as u64).contains(&polls.softirq_with_work), "{polls:?}");
    assert!(polls.softirq >= polls.softirq_with_work, "{polls:?}");
    assert_eq!((polls.busy, polls.kthread), (0, 0), "{polls:?}");
    let mut other = PollCounter::open("no-such-device", &[]).expect("poll counter");
    let mut stream = stream;
    ping(&mut stream, 10);
    assert_eq!(other.read().expect("counts"), PollCounts::default());
    close(echo, stream);
}

#[test]
fn polls_of_a_napi_thread_are_counted_apart_from_softirq_and_busy_polls() {
    let Some(net) = Net::new('t') else { return };
    net.set(&NapiChange { context: Some(PollContext::Thread), ..NapiChange::default() });
    let thread = net.napi().thread.expect("a NAPI thread");
    let (polls, echo, stream) = polls_of(&net, &[thread], None);
    assert!((ROUNDS as u64..2 * ROUNDS as u64).contains(&polls.kthread_with_work), "{polls:?}");
    assert_eq!((polls.busy, polls.softirq), (0, 0), "{polls:?}");
    close(echo, stream);
    let (polls, echo, stream) = polls_of(&net, &[], None);
    assert_eq!(polls.kthread, 0, "an unlisted thread counts as a busy poller: {polls:?}");
    assert!(polls.busy_with_work >= ROUNDS as u64, "{polls:?}");
    close(echo, stream);
}

#[test]
fn busy_polls_are_counted_for_the_thread_that_does_them_and_the_deferral_timer_fires() {
    let Some(net) = Net::new('b') else { return };
    net.set(&NapiChange {
        defer_hard_irqs: Some(100),
        gro_flush_timeout: Some(Nanos::from_millis(5)),
        ..NapiChange::default()
    });
    let echo = Echo::start(&net, Some(EpollBusyPoll { usecs: 1_000, budget: 64, prefer: true }));
    let mut stream = net.connect(echo.address.port());
    ping(&mut stream, 10);
    let packets = || net.server.run(|| NetStat::read_self().expect("netstat")).expect("enter").busy_poll_rx_packets();
    let before = packets().expect("a kernel with busy polling");
    let mut all = PollCounter::open(&net.device, &[]).expect("poll counter");
    let mut its = PollCounter::open_for(&net.device, &[], &[echo.tid]).expect("poll counter");
    let mut others = PollCounter::open_for(&net.device, &[], &[1]).expect("poll counter");
    let mut nobodys = PollCounter::open_for(&net.device, &[], &[]).expect("poll counter");
    ping(&mut stream, ROUNDS);
    let busy_packets = packets().expect("busy polling") - before;
    let (its, all) = (its.read().expect("counts"), all.read().expect("counts"));
    let (others, nobodys) = (others.read().expect("counts"), nobodys.read().expect("counts"));
    // How many polls found a packet depends on how the two threads were scheduled, but some did. (Packets and polls need
    // not agree: the kernel does not count the packets of the poll that ends a busy poll.)
    assert!(its.busy_with_work > 0 && its.busy_with_work <= its.busy && its.busy <= all.busy, "{its:?} {all:?}");
    assert!(busy_packets > 0);
    assert_eq!((others.busy, nobodys.busy), (0, 0));
    assert_eq!((all.kthread, others.kthread), (0, 0));

    let mut timers = TimerCounter::open().expect("timer counter");
    ping(&mut stream, 1);
    // An idle server sleeps, and the timer polls until the deferrals are used up.
    let since = Instant::now();
    while timers.read().expect("count") == 0 {
        assert!(since.elapsed() < Duration::from_secs(120), "the deferral timer never fired");
        std::thread::sleep(Duration::from_millis(10));
    }
    close(echo, stream);
}

/// Returns the system calls of the calling thread during `work`.
fn calls_of(work: impl FnOnce()) -> u64 {
    let tid = nix::unistd::gettid().as_raw() as u32;
    let mut counter = WorkCounter::on_threads(&[tid], &[Count::SystemCalls]).expect("counter");
    assert!(counter.missing().is_empty(), "{:?}", counter.missing());
    work();
    counter.read().expect("read").get(Count::SystemCalls).expect("counted")
}

fn system_calls(n: usize) {
    for _ in 0..n {
        std::hint::black_box(nix::unistd::getppid());
    }
}

#[test]
fn system_calls_are_counted_exactly() {
    if !is_root() {
        return;
    }
    let few = calls_of(|| system_calls(1_000));
    let many = calls_of(|| system_calls(11_000));
    assert_eq!(many - few, 10_000);
    assert!((1_000..1_010).contains(&few), "{few}");
}

#[test]
fn a_thread_created_later_is_counted_with_its_creator() {
    if !is_root() {
        return;
    }
    let alone = calls_of(|| std::thread::spawn(|| system_calls(0)).join().expect("thread"));
    let working = calls_of(|| std::thread::spawn(|| system_calls(10_000)).join().expect("thread"));
    // Starting and joining a thread costs a few calls more or less.
    assert!((9_950..10_050).contains(&(working - alone)), "{alone} {working}");
}

#[test]
fn a_process_tree_is_counted_with_its_children() {
    if !is_root() {
        return;
    }
    // The shell waits for a line; each of 50 lines costs it one `write`, and the child it then makes another 50.
    let script = "read x; i=0; while [ $i -lt 50 ]; do echo a; i=$((i+1)); done; (i=0; while [ $i -lt 50 ]; do echo b; i=$((i+1)); done); read x";
    let mut shell = Command::new("/bin/sh")
        .args(["-c", script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("a shell");
    let mut counter = WorkCounter::on_process_tree(shell.id(), &Count::ALL).expect("counter");
    let (mut to, from) = (shell.stdin.take().expect("stdin"), shell.stdout.take().expect("stdout"));
    std::io::Write::write_all(&mut to, b"go\n").expect("go");
    let lines = std::io::BufRead::lines(std::io::BufReader::new(from)).take(100).filter_map(Result::ok).count();
    assert_eq!(lines, 100);
    let work = counter.read().expect("read");
    std::io::Write::write_all(&mut to, b"end\n").expect("end");
    shell.wait().expect("shell");
    let calls = work.get(Count::SystemCalls).expect("system calls");
    assert!((100..400).contains(&calls), "{calls}");
    assert!(work.get(Count::ContextSwitches).expect("switches") >= 1, "{work:?}");
    assert!(work.get(Count::WakeUps).expect("wake-ups") >= 1, "{work:?}");
    // Hardware counters: a figure, or none with a reason.
    for count in [Count::Cycles, Count::Instructions] {
        assert_ne!(work.get(count).is_some(), counter.missing().contains_key(&count), "{count:?}");
        assert_ne!(work.get(count), Some(0));
    }
    let error = WorkCounter::on_process_tree(u32::MAX - 1, &Count::ALL).expect_err("no such process");
    assert!(error.to_string().contains("no process"), "{error}");
}

#[test]
fn the_calls_switches_and_wake_ups_on_it() {
    if !is_root() {
        return;
    }
    const TURNS: usize = 1_000;
    let cpu = CpuList::from(CpuList::online().expect("online").iter().last().expect("a CPU"));
    let mut counter = WorkCounter::on_cpus(&cpu, &Count::ALL).expect("counter");
    let pinned = cpu.clone();
    // Two threads on one CPU that wake each other in turn.
    std::thread::spawn(move || {
        cpu::set_thread_affinity(nix::unistd::gettid().as_raw() as u32, &pinned).expect("pin");
        let (go, come) = (std::sync::mpsc::sync_channel::<()>(0), std::sync::mpsc::sync_channel::<()>(0));
        let other = std::thread::spawn(move || {
            while go.1.recv().is_ok() {
                come.0.send(()).expect("answer");
            }
        });
        for _ in 0..TURNS {
            go.0.send(()).expect("send");
            come.1.recv().expect("answered");
        }
        drop(go.0);
        other.join().expect("other");
    })
    .join()
    .expect("thread");
    let work: Work = counter.read().expect("read");
    let at_least = |count, n: usize| assert!(work.get(count).expect("counted") >= n as u64, "{count:?}: {work:?}");
    at_least(Count::SystemCalls, TURNS);
    at_least(Count::ContextSwitches, TURNS);
    at_least(Count::WakeUps, TURNS);
    assert!(WorkCounter::on_cpus(&"60000".parse().expect("list"), &Count::ALL).is_err());
    assert!(WorkCounter::on_cpus(&CpuList::default(), &Count::ALL).is_err());
}

#[test]
fn tracefs_is_read_without_being_mounted_for_others() {
    if !is_root() {
        return;
    }
    let mounts = || std::fs::read_to_string("/proc/self/mountinfo").expect("mounts").matches("tracefs").count();
    let before = mounts();
    for tracefs in [Tracefs::open().expect("tracefs"), Tracefs::open_detached().expect("detached")] {
        assert!(tracefs.tracepoint_id("napi", "napi_poll").expect("napi_poll") > 0);
        for field in ["common_flags", "common_pid", "dev_name", "work", "budget"] {
            assert!(tracefs.has_field("napi", "napi_poll", field).expect("format"), "{field}");
        }
        assert!(!tracefs.has_field("napi", "napi_poll", "no_such").expect("format"));
        let error = tracefs.tracepoint_id("napi", "no_such").expect_err("no such tracepoint");
        assert!(matches!(error, TracefsError::NoTracepoint { .. }), "{error}");
        assert!(error.to_string().contains("napi:no_such"), "{error}");
        assert_eq!(mounts(), before);
    }
}

#[test]
fn a_spinning_thread_makes_its_cpu_busy_and_its_clock_run() {
    let cpu = CpuList::from(CpuList::online().expect("online").iter().next().expect("a CPU"));
    let spin = Duration::from_millis(200);
    let clock = ProcessCpuClock::of(std::process::id()).expect("clock");
    let (before, used_before) = (CpuTimes::read().expect("times"), clock.read().expect("clock"));
    let pinned = cpu.clone();
    std::thread::spawn(move || {
        cpu::set_thread_affinity(nix::unistd::gettid().as_raw() as u32, &pinned).expect("pin");
        let now = || Duration::from(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID.now().expect("clock"));
        let end = now() + spin;
        while now() < end {}
    })
    .join()
    .expect("thread");
    let usage = CpuTimes::read().expect("times").since(&before, &cpu).expect("usage");
    let slack = Duration::from_millis(20);
    assert!(usage.busy_time + slack >= spin && usage.busy_time <= usage.interval, "{usage:?}");
    assert!((0.0..=1.0).contains(&usage.busy), "{usage:?}");
    assert!(clock.read().expect("clock") - used_before >= spin);
    assert!(matches!(ProcessCpuClock::of(u32::MAX - 1), Err(CpuError::NoProcess(_))));
}

#[test]
fn processes_and_interrupts_are_pinned_and_read_back() {
    let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
    let (pid, before) = (child.id(), cpu::process_affinity(child.id()).expect("affinity"));
    let last = CpuList::from(before.iter().last().expect("a CPU"));
    cpu::set_process_affinity(pid, &last).expect("pin");
    assert_eq!(cpu::process_affinity(pid).expect("affinity"), last);
    assert!(matches!(cpu::set_process_affinity(pid, &CpuList::default()), Err(CpuError::Empty)));
    assert!(matches!(cpu::set_process_affinity(pid, &CpuList::from(60_000)), Err(CpuError::Offline { .. })));
    child.kill().expect("kill");
    child.wait().expect("wait");
    assert!(matches!(cpu::process_affinity(pid), Err(CpuError::NoProcess(_))));
    assert!(matches!(cpu::set_process_affinity(pid, &last), Err(CpuError::NoProcess(_))));
    assert!(matches!(cpu::irq_affinity(999_999), Err(CpuError::NoIrq(999_999))));
    if !is_root() {
        return;
    }
    // Written back as it was read: the machine's interrupts stay where they are.
    let device_irq = |line: &abey_linux::counters::InterruptLine| line.irq.parse().ok();
    for irq in Interrupts::read().expect("interrupts").lines.iter().filter_map(device_irq) {
        let cpus = cpu::irq_affinity(irq).expect("affinity");
        match cpu::set_irq_affinity(irq, &cpus) {
            Ok(()) => assert_eq!(cpu::irq_affinity(irq).expect("affinity"), cpus),
            Err(error) => assert!(matches!(error, CpuError::FixedIrq(_)), "{error}"),
        }
    }
}

#[test]
fn the_tables_of_this_machine_are_understood() {
    let online = CpuList::online().expect("online");
    let interrupts = Interrupts::read().expect("interrupts");
    assert_eq!(interrupts.cpus.iter().copied().collect::<CpuList>(), online);
    let softnet = Softnet::read().expect("softnet");
    assert_eq!(softnet.cpus.iter().map(|c| c.cpu).collect::<CpuList>(), online);
    assert!(SoftirqCounts::read().expect("softirqs").net_rx().len() >= online.len());
    let here = NetStat::read_self().expect("netstat");
    assert!(here.get("Tcp", "ActiveOpens").is_some() && here.busy_poll_rx_packets().is_some());
    assert!(NetStat::read_pid(std::process::id()).expect("netstat").get("Ip", "InReceives").is_some());
    assert!(NetStat::read_pid(u32::MAX - 1).is_err());
}
