//! Whether a mode of the datapath is active: decided by its counters, from when the measured time began until the last of
//! its requests was answered.

use abey_datapath::Counters;
use abey_delivery::{Hold, Mode};

/// The counters that prove the mode active, in words, or why they do not.
pub(super) fn judge(mode: Mode, counted: &Counters) -> Result<String, String> {
    let Counters { packets, softirq_polls, thread_polls, worker_polls, busy_poll_packets, .. } = *counted;
    let Counters { interrupts, timer_polls, suspensions, empty_polls, softirq_thread_polls, .. } = *counted;
    if packets == 0 {
        return Err("no packet came through the NIC".to_owned());
    }
    let others = |what: &str| format!("{what}, {softirq_polls} in the softirq");
    let (engaged, said) = match mode {
        Mode::Threaded => (thread_polls > 0, others(&format!("{thread_polls} polls by its thread"))),
        Mode::ThreadedBusy => (
            thread_polls > 0 && interrupts == 0,
            format!("{thread_polls} polls by its thread, {empty_polls} of them empty, {interrupts} interrupts"),
        ),
        Mode::Workqueue => (worker_polls > 0, others(&format!("{worker_polls} polls by a worker of the pool"))),
        // Each time it has nothing left it looks at least once more before it lets interrupts back in.
        Mode::Hold(Hold::Spin(_)) => (
            softirq_thread_polls > 0 && empty_polls.saturating_mul(2) >= interrupts,
            format!("{empty_polls} polls that found nothing and held on, {interrupts} interrupts"),
        ),
        Mode::Hold(Hold::Timer(_)) => {
            (timer_polls > 0, format!("{timer_polls} polls by the holding timer, {interrupts} interrupts"))
        }
        Mode::Suspend(_) => (
            suspensions > 0 && counted.busy_polls > 0,
            format!(
                "{suspensions} suspensions, {busy_poll_packets} of {packets} packets by busy polls, {timer_polls} timer \
                 polls, {interrupts} interrupts"
            ),
        ),
        _ if mode.settings().epoll.is_some() => (
            busy_poll_packets > 0,
            format!("{busy_poll_packets} of {packets} packets by busy polls, {timer_polls} timer polls"),
        ),
        _ if mode.settings().napi.defers() => {
            (timer_polls > 0 && busy_poll_packets == 0, format!("{timer_polls} timer polls, {interrupts} interrupts"))
        }
        _ => {
            // A poll that finds nothing is rare where an interrupt comes before each run of them.
            let holds = empty_polls >= interrupts.max(16);
            let plain = softirq_polls > 0 && busy_poll_packets + timer_polls + suspensions == 0;
            (
                plain && !holds,
                format!("{interrupts} interrupts, {softirq_polls} polls in the softirq, {empty_polls} empty"),
            )
        }
    };
    let elsewhere = [
        ("its thread", thread_polls, matches!(mode, Mode::Threaded | Mode::ThreadedBusy)),
        ("the pool", worker_polls, mode == Mode::Workqueue),
    ];
    if let Some((who, polls, _)) = elsewhere.into_iter().find(|(_, polls, expected)| *polls > 0 && !expected) {
        return Err(format!("{who} polled {polls} times, which no setting of the mode asks for"));
    }
    if engaged { Ok(said) } else { Err(format!("{said}, {packets} packets")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(set: impl FnOnce(&mut Counters)) -> Counters {
        let mut counters = Counters::default();
        counters.packets = 1_000;
        set(&mut counters);
        counters
    }

    fn plain() -> Counters {
        counted(|counters| (counters.interrupts, counters.softirq_polls, counters.empty_polls) = (500, 700, 3))
    }

    fn judged(mode: &str, counters: &Counters) -> bool {
        judge(mode.parse().expect("a mode"), counters).is_ok()
    }

    /// What each mode's counters look like when it is at work.
    fn at_work() -> [(&'static str, Counters); 10] {
        let softirq = |set: fn(&mut Counters)| {
            let mut counters = plain();
            set(&mut counters);
            counters
        };
        [
            ("base", plain()),
            ("defer50", softirq(|c| c.timer_polls = 400)),
            ("napibusy", softirq(|c| (c.busy_polls, c.busy_poll_packets) = (900, 600))),
            ("fullbusy", counted(|c| (c.busy_polls, c.busy_poll_packets) = (90_000, 1_000))),
            ("suspend20", softirq(|c| (c.suspensions, c.busy_polls, c.timer_polls) = (300, 300, 200))),
            ("threaded", counted(|c| (c.thread_polls, c.interrupts) = (700, 400))),
            ("threaded-busy", counted(|c| (c.thread_polls, c.empty_polls) = (70_000, 69_000))),
            ("workqueue", counted(|c| (c.worker_polls, c.interrupts) = (700, 600))),
            ("hold50", softirq(|c| (c.softirq_thread_polls, c.empty_polls) = (3_000, 2_900))),
            ("hold50-timer", softirq(|c| c.timer_polls = 400)),
        ]
    }

    #[test]
    fn each_mode_is_recognised_at_work() {
        for (mode, counters) in at_work() {
            assert!(judged(mode, &counters), "{mode}: {:?}", judge(mode.parse().expect("a mode"), &counters));
        }
    }

    #[test]
    fn a_mode_that_did_nothing_is_found_out() {
        for (mode, counters) in at_work() {
            assert!(!judged(mode, &Counters::default()), "{mode} without a packet");
            assert_eq!(judged(mode, &plain()), mode == "base", "{mode} that works as base");
            // Two modes look alike to the counters that they share: a timer that polls.
            let timed = ["defer50", "hold50-timer"].contains(&mode);
            assert_eq!(judged("base", &counters), mode == "base", "base that works as {mode}");
            assert_eq!(judged("defer50", &counters), timed || mode == "suspend20", "defer50 that works as {mode}");
            assert_eq!(judged("workqueue", &counters), mode == "workqueue", "workqueue that works as {mode}");
        }
    }
}
