//! The timeline of a mode as a picture and as rows.

use abey_chart::number::grouped;
use abey_chart::{TimelineChart, TimelineGroup, TimelineKind as Kind, TimelineLane, TimelineView};
use serde::Serialize;

use crate::timeline::Timeline;
use crate::{Activity, CpuLevel, RequestTrace, Slice, Track};

/// The course of one request, in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct RequestRow<'a> {
    mode: &'a str,
    arrived_us: f64,
    delivered_us: f64,
    begun_us: f64,
    answered_us: f64,
    latency_us: f64,
}

/// Returns a row for each request of a timeline.
pub fn request_rows<'a>(mode: &'a str, timeline: &Timeline) -> Vec<RequestRow<'a>> {
    let micros = |nanos: u64| nanos as f64 / 1e3;
    let row = |request: &RequestTrace| RequestRow {
        mode,
        arrived_us: micros(request.arrived),
        delivered_us: micros(request.delivered),
        begun_us: micros(request.begun),
        answered_us: micros(request.answered),
        latency_us: micros(request.answered - request.arrived),
    };
    timeline.trace.requests().iter().map(row).collect()
}

/// Renders a timeline as an SVG file. `name` is the mode or the settings, `host` the profile.
pub fn svg(name: &str, host: &str, timeline: &Timeline) -> String {
    chart(name, host, timeline).render()
}

fn chart(name: &str, host: &str, timeline: &Timeline) -> TimelineChart {
    let (close, end) = (timeline.close.as_nanos(), timeline.end.as_nanos());
    let heading = |to: u64| format!("{} us", short(to));
    let mut views = vec![TimelineView {
        heading: format!("The first {}", heading(close)),
        to: close,
        shown_above: None,
        lanes: lanes(timeline, true),
    }];
    if end > close + close / 5 {
        views.push(TimelineView {
            heading: format!("The whole run: {}", heading(end)),
            to: end,
            shown_above: Some(close),
            lanes: lanes(timeline, false),
        });
    }
    let host = format!("Simulated: one queue, costs of the profile {host}, a NIC that interrupts at once.");
    TimelineChart { title: name.to_owned(), notes: [host].into_iter().chain(notes(timeline)).collect(), views }
}

/// Returns the notes below the title: latencies of the requests, and counts of the close view.
fn notes(timeline: &Timeline) -> Vec<String> {
    let close = timeline.close.as_nanos();
    let latencies: Vec<u64> =
        timeline.trace.requests().iter().map(|request| request.answered - request.arrived).collect();
    let mean = latencies.iter().sum::<u64>() as f64 / latencies.len().max(1) as f64 / 1e3;
    let worst = latencies.iter().max().copied().unwrap_or(0) as f64 / 1e3;
    let shown = || timeline.trace.slices().iter().filter(move |slice| slice.from < close);
    let count = |what: Activity| shown().filter(|slice| slice.what == what).count();
    let share = |wanted: &dyn Fn(&Slice) -> bool| {
        let spent: u64 = shown().filter(|slice| wanted(slice)).map(|slice| slice.to.min(close) - slice.from).sum();
        spent as f64 * 100.0 / close.max(1) as f64
    };
    let busy = |wanted: u32| {
        share(&|slice| matches!(slice.track, Track::Cpu { cpu, level } if cpu == wanted && level != CpuLevel::Idle))
    };
    let cpus = match cpus(timeline) {
        1 => format!("CPU busy {:.0} %", busy(0)),
        _ => format!("CPU 0 busy {:.0} %, CPU 1 busy {:.0} %", busy(0), busy(1)),
    };
    let polling = match share(&|slice| slice.what == Activity::BusyPoll) {
        none if none < 0.5 => String::new(),
        share => format!(", {share:.0} % of the time by the application's busy polling"),
    };
    vec![
        format!(
            "{} requests, from the wire to the wire: mean {mean:.1} us, longest {worst:.1} us (figures behind the bars: us).",
            latencies.len()
        ),
        format!(
            "In the first {} us: NIC interrupts {}, timer interrupts {}; {cpus}{polling}.",
            short(close),
            count(Activity::NicInterrupt),
            count(Activity::TimerInterrupt),
        ),
    ]
}

fn cpus(timeline: &Timeline) -> usize {
    let of_second = |slice: &Slice| matches!(slice.track, Track::Cpu { cpu: 1, .. });
    1 + usize::from(timeline.trace.slices().iter().any(of_second))
}

/// Formats whole microseconds, with separated thousands.
fn short(nanos: u64) -> String {
    grouped((nanos / 1_000) as f64)
}

fn lanes(timeline: &Timeline, close: bool) -> Vec<TimelineLane> {
    let trace = &timeline.trace;
    let requests = trace.requests();
    let groups = if close {
        let mut ordered: Vec<&RequestTrace> = requests.iter().collect();
        ordered.sort_by_key(|request| request.arrived);
        ordered.into_iter().map(request).collect()
    } else {
        vec![TimelineGroup { bars: requests.iter().flat_map(|one| request(one).bars).collect(), label: String::new() }]
    };
    let mut lanes = vec![TimelineLane { name: "requests".to_owned(), stacked: close, groups }];
    let several = cpus(timeline) > 1;
    let cpu_lanes = (0..2).flat_map(|cpu| {
        [Activity::NicInterrupt, Activity::SoftirqPoll, Activity::NapiThread, Activity::Serve]
            .map(move |of| Lane::Cpu { cpu, of })
    });
    for lane in [Lane::Interrupt, Lane::Timer].into_iter().chain(cpu_lanes) {
        let mut bars: Vec<(u64, u64, Kind)> = trace
            .slices()
            .iter()
            .filter(|slice| lane.contains(slice))
            .map(|slice| (slice.from, slice.to, kind(slice)))
            .collect();
        if matches!(lane, Lane::Timer) {
            let fired = trace.slices().iter().filter(|slice| slice.what == Activity::TimerInterrupt);
            bars.extend(fired.map(|slice| (slice.from, slice.from, Kind::Fired)));
        }
        if !bars.is_empty() {
            let groups = vec![TimelineGroup { bars, label: String::new() }];
            lanes.push(TimelineLane { name: lane.name(several, trace.slices()), stacked: false, groups });
        }
    }
    lanes
}

fn request(request: &RequestTrace) -> TimelineGroup {
    let RequestTrace { arrived, delivered, begun, answered, .. } = *request;
    let bars =
        vec![(arrived, delivered, Kind::Ring), (delivered, begun, Kind::Socket), (begun, answered, Kind::Served)];
    TimelineGroup { bars, label: format!("{:.0}", (answered - arrived) as f64 / 1e3) }
}

/// A lane below the requests.
#[derive(Clone, Copy)]
enum Lane {
    Interrupt,
    Timer,
    /// A CPU's activities at the level, or by the kind of thread, of this one.
    Cpu {
        cpu: u32,
        of: Activity,
    },
}

impl Lane {
    fn contains(self, slice: &Slice) -> bool {
        match (self, slice.track) {
            (Self::Interrupt, Track::Interrupt { .. }) | (Self::Timer, Track::Timer { .. }) => true,
            // The application runs on the first CPU.
            (Self::Cpu { cpu: 0, of: Activity::Serve }, Track::Server { .. }) => true,
            (Self::Cpu { cpu: wanted, of }, Track::Cpu { cpu, level }) if cpu == wanted => match of {
                Activity::NicInterrupt => level == CpuLevel::Hardirq,
                Activity::SoftirqPoll => level == CpuLevel::Softirq,
                Activity::NapiThread => level == CpuLevel::Thread && is_kernel_thread(slice.what),
                _ => level == CpuLevel::Thread && !is_kernel_thread(slice.what),
            },
            _ => false,
        }
    }

    fn name(self, several: bool, slices: &[Slice]) -> String {
        let (cpu, of) = match self {
            Self::Interrupt => return "NIC interrupt".to_owned(),
            Self::Timer => return "NAPI timer".to_owned(),
            Self::Cpu { cpu, of } => (cpu, of),
        };
        let name = match of {
            Activity::NicInterrupt => "hardirq".to_owned(),
            Activity::SoftirqPoll => "softirq".to_owned(),
            Activity::NapiThread => {
                let thread = slices.iter().find(|slice| is_kernel_thread(slice.what) && self.contains(slice));
                match thread.map(|slice| slice.what) {
                    Some(Activity::SoftirqThread) | None => "ksoftirqd".to_owned(),
                    Some(what) => what.to_string(),
                }
            }
            _ => "application".to_owned(),
        };
        if several { format!("CPU {cpu} {name}") } else { name }
    }
}

fn is_kernel_thread(what: Activity) -> bool {
    matches!(what, Activity::SoftirqThread | Activity::NapiThread | Activity::Worker)
}

fn kind(slice: &Slice) -> Kind {
    match (slice.what, slice.packets) {
        (Activity::BusyPoll, Some(1..)) => Kind::BusyWork,
        (Activity::BusyPoll, _) => Kind::BusyEmpty,
        // A poll by a softirq or a kernel thread.
        (_, Some(1..)) => Kind::PollWork,
        (_, Some(0)) => Kind::PollEmpty,
        (Activity::NicInterrupt, None) => Kind::NicInterrupt,
        (Activity::TimerInterrupt, None) => Kind::TimerInterrupt,
        (Activity::Serve, None) => Kind::Serve,
        (Activity::Masked, None) => Kind::Masked,
        (Activity::Unmasked, None) => Kind::Unmasked,
        (Activity::Suspended, None) => Kind::Suspended,
        (Activity::Armed, None) => Kind::Armed,
        (Activity::Asleep, None) => Kind::Asleep,
        (Activity::Wait, None) => Kind::Wait,
        // Softirq runs, threads and the idle loop outside of polls.
        (_, None) => Kind::Overhead,
    }
}
