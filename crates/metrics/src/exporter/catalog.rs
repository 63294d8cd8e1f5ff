//! The catalog of metrics: names, help texts and values, from a sample and the totals up to it.
//!
//! Names and units follow the conventions of Prometheus (base units, `_total`, `_info`). Labels have few values: `device`,
//! `mode` without its number, `context`. Metrics of single queues are separate families, which are optional.

use std::collections::{BTreeMap, BTreeSet};

use abey_datapath::Counters;
use abey_datapath::control::{Role, Status};
use abey_linux::cpu::ProcessCpuClock;

use super::families::{Buckets, Families, Labels};
use crate::totals::{Device, Totals};
use crate::{BATCH_BOUNDS, BATCH_BUCKETS, Counter, Counts, Instance, Owner, Sample};

/// Returns all families; those of single queues only with `per_queue`.
pub(super) fn families(sample: &Sample, totals: &Totals, per_queue: bool) -> Families {
    let mut families = Families::default();
    instances(&mut families, sample);
    activity(&mut families, totals);
    batches(&mut families, totals);
    if per_queue {
        queues(&mut families, sample, totals);
    }
    softnet(&mut families, sample);
    datapaths(&mut families, sample);
    exporter(&mut families, sample);
    families
}

/// The poll contexts, as values of the `context` label.
const CONTEXTS: [(&str, Counter); 4] = [
    ("softirq", Counter::SoftirqPolls),
    ("timer", Counter::TimerPolls),
    ("busy", Counter::BusyPolls),
    ("thread", Counter::ThreadPolls),
];

/// The contexts of CPU time.
const CPU: [(&str, Counter); 2] = [("softirq", Counter::SoftirqNanos), ("thread", Counter::ThreadNanos)];

/// Counters that are one metric each: name, help text, counter.
const PLAIN: [(&str, &str, Counter); 7] = [
    ("empty_polls_total", "Polls that found no packet.", Counter::EmptyPolls),
    ("packets_total", "Packets that polls received.", Counter::Packets),
    ("busy_poll_packets_total", "Packets that busy polls received.", Counter::BusyPollPackets),
    (
        "suspensions_total",
        "Times interrupts were suspended, or stayed suspended, because an application took events.",
        Counter::Suspensions,
    ),
    ("timer_expirations_total", "Expiries of the deferral timer.", Counter::Timers),
    ("interrupts_total", "Interrupts.", Counter::Interrupts),
    ("resumes_total", "Times an application found no event and resumed interrupt delivery.", Counter::Resumes),
];

const POLLS: &str = "Polls by context: softirq (after an interrupt, a resume or a used-up budget), timer (softirq for the \
                     deferral timer), busy (a process within a system call), thread (the instance's thread).";
const CPU_TIME: &str = "CPU time in the receive softirq up to the end of the polls, and of polling threads; the time of busy \
                        polls counts for their processes.";

/// Owner, device and mode family.
type InstanceGroup<'a> = (Owner, &'a str, &'a str);

fn group_labels<'a>((owner, device, mode): &InstanceGroup<'a>) -> Labels<'a> {
    vec![("world", owner.name()), ("device", *device), ("mode", *mode)]
}

/// Adds the number of instances and their current settings.
fn instances(families: &mut Families, sample: &Sample) {
    let mut groups = BTreeMap::<InstanceGroup<'_>, Vec<&Instance>>::new();
    for one in &sample.instances {
        groups.entry((one.key.owner, &one.device, one.family.name())).or_default().push(one);
    }
    let help = "NAPI instances by mode family; busy-polling modes of the kernel count as defer, from which they differ in the \
                processes' epoll parameters only.";
    let count = groups.iter().map(|(group, of)| (group_labels(group), Some(of.len() as f64)));
    families.gauge("abey_napi_instances", help, count);
    type Value = fn(&abey_delivery::NapiSettings) -> f64;
    type Bound = fn(f64, f64) -> f64;
    let settings: [(&str, &str, Value); 3] = [
        ("abey_napi_defer_hard_irqs", "defer-hard-irqs", |settings| f64::from(settings.defer_hard_irqs)),
        ("abey_napi_gro_flush_timeout_seconds", "gro-flush-timeout", |settings| {
            settings.gro_flush_timeout.as_nanos() as f64 / 1e9
        }),
        ("abey_napi_irq_suspend_timeout_seconds", "irq-suspend-timeout", |settings| {
            settings.irq_suspend_timeout.as_nanos() as f64 / 1e9
        }),
    ];
    for (name, setting, value_of) in settings {
        let bounds: [(&str, Bound); 2] = [("min", f64::min), ("max", f64::max)];
        let rows = groups.iter().flat_map(|(group, members)| {
            bounds.map(|(bound, choose)| {
                let value = members.iter().map(|one| value_of(&one.settings)).reduce(choose);
                let mut labels = group_labels(group);
                labels.push(("bound", bound));
                (labels, value)
            })
        });
        families.gauge(name, &format!("Minimum and maximum {setting} of the instances."), rows);
    }
}

/// Adds the counters by device and mode family.
fn activity(families: &mut Families, totals: &Totals) {
    let groups: Vec<Group<'_>> = totals
        .by_mode()
        .map(|(device, family, counts)| Group {
            labels: group_labels(&(device.owner, &device.name, family.name())),
            counts,
        })
        .collect();
    counters(families, "abey_napi", &groups);
}

/// Counts with their labels.
struct Group<'a> {
    labels: Labels<'a>,
    counts: &'a Counts,
}

impl<'a> Group<'a> {
    fn with(&self, name: &'static str, value: &'a str) -> Labels<'a> {
        let mut labels = self.labels.clone();
        labels.push((name, value));
        labels
    }

    fn value(&self, counter: Counter) -> Option<f64> {
        self.counts.get(counter).map(|count| count as f64)
    }
}

/// Adds the families of counters, whose names begin with `prefix`.
fn counters(families: &mut Families, prefix: &str, groups: &[Group<'_>]) {
    let polls = groups
        .iter()
        .flat_map(|group| CONTEXTS.map(|(context, counter)| (group.with("context", context), group.value(counter))));
    families.counter(&format!("{prefix}_polls_total"), POLLS, polls);
    for (name, help, counter) in PLAIN {
        let rows = groups.iter().map(|group| (group.labels.clone(), group.value(counter)));
        families.counter(&format!("{prefix}_{name}"), help, rows);
    }
    let cpu = groups.iter().flat_map(|group| {
        CPU.map(|(context, counter)| (group.with("context", context), group.value(counter).map(|nanos| nanos / 1e9)))
    });
    families.counter(&format!("{prefix}_cpu_seconds_total"), CPU_TIME, cpu);
}

/// Adds the histogram of packets per poll, by device.
fn batches(families: &mut Families, totals: &Totals) {
    let mut devices = BTreeMap::<&Device, Counts>::new();
    for (device, _, counts) in totals.by_mode() {
        devices.entry(device).or_default().add(counts);
    }
    let found: Vec<(&Device, Option<[u64; BATCH_BUCKETS]>, f64)> = devices
        .into_iter()
        .map(|(device, counts)| (device, counts.batches, counts.get(Counter::Packets).unwrap_or(0) as f64))
        .collect();
    let histograms = found.iter().map(|(device, batches, sum)| {
        let labels = vec![("world", device.owner.name()), ("device", device.name.as_str())];
        let buckets = batches.as_ref().map(|counts| Buckets { bounds: &BATCH_BOUNDS, counts, sum: *sum });
        (labels, buckets)
    });
    let help = "Packets per poll; polls above 63 used the usual budget.";
    families.histogram("abey_napi_poll_packets", help, histograms);
}

/// Adds the counters by queue, and an info metric for each instance.
fn queues(families: &mut Families, sample: &Sample, totals: &Totals) {
    let groups: Vec<Group<'_>> = totals
        .by_queue()
        .map(|(device, queue, counts)| Group {
            labels: vec![("world", device.owner.name()), ("device", &device.name), ("queue", queue)],
            counts,
        })
        .collect();
    counters(families, "abey_queue", &groups);
    let values = |one: &Instance| {
        let irq = one.irq.map_or_else(String::new, |irq| irq.to_string());
        [
            one.key.owner.name().to_owned(),
            one.device.clone(),
            one.queue_list(),
            one.key.napi.to_string(),
            one.mode.clone(),
            irq,
        ]
    };
    let values: Vec<[String; 6]> = sample.instances.iter().map(values).collect();
    let info = values.iter().map(|values| {
        let names = ["world", "device", "queue", "napi", "mode", "irq"];
        (names.into_iter().zip(values.iter().map(String::as_str)).collect(), Some(1.0))
    });
    families.gauge("abey_queue_info", "The instance that serves a queue, and its mode.", info);
}

fn softnet(families: &mut Families, sample: &Sample) {
    let Some(softnet) = sample.softnet else { return };
    let one = |count: u64| [(Vec::new(), Some(count as f64))];
    let help = "Packets that the kernel's receive path processed, on all CPUs.";
    families.counter("abey_softnet_packets_total", help, one(softnet.processed));
    let help = "Packets dropped because a CPU's backlog was full.";
    families.counter("abey_softnet_dropped_packets_total", help, one(softnet.dropped));
    let help = "Runs of the receive softirq that ended with work left because the packet budget or the time was spent.";
    families.counter("abey_softnet_squeezes_total", help, one(softnet.squeezes));
}

/// Adds the metrics of datapaths. Processes of one program on one NIC share their labels.
fn datapaths(families: &mut Families, sample: &Sample) {
    let mut groups = BTreeMap::<(&str, &str), Vec<&Status>>::new();
    for datapath in &sample.datapaths {
        let status = &datapath.status;
        groups.entry((&status.nic, &status.program)).or_default().push(status);
    }
    let rows: Vec<DatapathRow<'_>> = groups.into_iter().collect();
    write_datapaths(families, &rows);
}

/// A NIC and a program, and the statuses of its processes.
type DatapathRow<'a> = ((&'a str, &'a str), Vec<&'a Status>);

fn labels<'a>(((nic, program), _): &DatapathRow<'a>) -> Labels<'a> {
    vec![("device", *nic), ("program", *program)]
}

fn write_datapaths(families: &mut Families, rows: &[DatapathRow<'_>]) {
    fn sum(row: &DatapathRow<'_>, of: impl Fn(&Status) -> f64) -> Option<f64> {
        Some(row.1.iter().map(|status| of(status)).sum())
    }
    let plain = |of: fn(&Status) -> f64| rows.iter().map(move |row| (labels(row), sum(row, of)));
    families.gauge("abey_datapath_processes", "Running processes with a datapath.", plain(|_| 1.0));
    families.gauge(
        "abey_datapath_shards",
        "Queue pairs, each with its NAPI instance.",
        plain(|one| one.shards.len() as f64),
    );
    let help = "Sockets, including those that the application has closed and that are still finishing.";
    families.gauge(
        "abey_datapath_sockets",
        help,
        plain(|one| one.shards.iter().map(|shard| shard.sockets as f64).sum()),
    );
    let help = "Softirq runs that ended because the packet budget or the time was spent.";
    families.counter("abey_datapath_squeezes_total", help, plain(|one| counted(one, |counters| counters.squeezes)));
    let help = "Transmitted frames.";
    families.counter(
        "abey_datapath_transmitted_frames_total",
        help,
        plain(|one| counted(one, |counters| counters.transmitted)),
    );
    let help = "Errors of the device.";
    families.counter(
        "abey_datapath_device_errors_total",
        help,
        plain(|one| counted(one, |counters| counters.device_errors)),
    );

    type Count = fn(&Counters) -> u64;
    let calls: [(&str, Count); 3] = [
        ("application", |counters| counters.application_calls),
        ("service", |counters| counters.service_calls),
        ("worker", |counters| counters.worker_calls),
    ];
    let by_caller = rows.iter().flat_map(|row| {
        calls.map(|(caller, of)| {
            let mut labels = labels(row);
            labels.push(("context", caller));
            (labels, sum(row, |status| counted(status, of)))
        })
    });
    families.counter(
        "abey_datapath_system_calls_total",
        "System calls of the datapath, by the thread that made them.",
        by_caller,
    );

    let help = "CPU time of the running threads, by role.";
    families.counter("abey_datapath_cpu_seconds_total", help, by_role(rows, |cpu| cpu.cpu_ns));
    let help = "CPU time of these threads in the kernel, in clock ticks.";
    families.counter("abey_datapath_cpu_kernel_seconds_total", help, by_role(rows, |cpu| cpu.kernel_ns));

    let reasons: Vec<BTreeMap<&str, u64>> = rows.iter().map(|row| drops(&row.1)).collect();
    let dropped = rows.iter().zip(&reasons).flat_map(|(row, reasons)| {
        reasons.iter().map(|(reason, count)| {
            let mut labels = labels(row);
            labels.push(("reason", reason));
            (labels, Some(*count as f64))
        })
    });
    families.counter("abey_datapath_dropped_frames_total", "Frames dropped by the NIC.", dropped);
}

/// Returns the sum of a counter over all shards.
fn counted(status: &Status, of: fn(&Counters) -> u64) -> f64 {
    let named = |shard: &abey_datapath::control::Shard| {
        of(&Counters::from_named(|name| shard.counters.get(name).copied().unwrap_or(0))) as f64
    };
    status.shards.iter().map(named).sum()
}

/// Returns the CPU time by role, in seconds. Threads that are not the runtime's have the role `application`.
fn by_role<'a>(
    rows: &'a [DatapathRow<'a>],
    of: fn(&abey_datapath::control::ContextCpu) -> u64,
) -> impl Iterator<Item = (Labels<'a>, Option<f64>)> {
    rows.iter().flat_map(move |row| {
        let all = || row.1.iter().flat_map(|status| &status.contexts);
        let roles: BTreeSet<&'static str> = all().map(|cpu| role(cpu.role)).collect();
        roles.into_iter().map(move |name| {
            let time = all().filter(|cpu| role(cpu.role) == name).map(of).fold(0, u64::saturating_add);
            let mut labels = labels(row);
            labels.push(("context", name));
            (labels, Some(time as f64 / 1e9))
        })
    })
}

fn role(role: Option<Role>) -> &'static str {
    role.map_or("application", Role::name)
}

fn drops<'a>(statuses: &[&'a Status]) -> BTreeMap<&'a str, u64> {
    let mut sum = BTreeMap::new();
    for (reason, count) in statuses.iter().flat_map(|one| &one.shards).flat_map(|shard| &shard.nic.drops) {
        let entry: &mut u64 = sum.entry(reason.as_str()).or_default();
        *entry = entry.saturating_add(*count);
    }
    sum
}

/// Adds the metrics of the exporter itself.
fn exporter(families: &mut Families, sample: &Sample) {
    let row = |name| vec![("collector", name)];
    let success = sample.results.iter().map(|one| (row(one.collector.name()), Some(f64::from(one.result.is_ok()))));
    let help = "Whether a collector could read everything; the exporter's log has the error.";
    families.gauge("abey_scrape_collector_success", help, success);
    let duration = sample.results.iter().map(|one| (row(one.collector.name()), Some(one.duration.as_secs_f64())));
    families.gauge("abey_scrape_collector_duration_seconds", "Run time of a collector.", duration);
    let version = vec![("version", env!("CARGO_PKG_VERSION"))];
    families.gauge("abey_build_info", "Version of the exporter.", [(version, Some(1.0))]);
    let clock = ProcessCpuClock::of(std::process::id()).and_then(|clock| clock.read());
    let cpu = clock.ok().map(|time| time.as_secs_f64());
    families.counter("process_cpu_seconds_total", "CPU time of the exporter.", [(Vec::new(), cpu)]);
}
