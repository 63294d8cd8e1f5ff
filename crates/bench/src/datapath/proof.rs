//! Proof that a mode of the datapath is active, by its counters from the beginning of the measured time to the last response.

use abey_datapath::Counters;
use abey_delivery::{Hold, Mode};

/// Describes the counters that prove the mode active, or why they do not.
pub(super) fn prove(mode: Mode, counted: &Counters) -> Result<String, String> {
    let Counters { packets, softirq_polls, thread_polls, worker_polls, busy_poll_packets, .. } = *counted;
    let Counters { interrupts, timer_polls, suspensions, empty_polls, softirq_thread_polls, .. } = *counted;
    if packets == 0 {
        return Err("no packet came through the NIC".to_owned());
    }
    let with_softirq = |text: &str| format!("{text}, {softirq_polls} in softirq");
    let (is_active, proof) = match mode {
        Mode::Threaded => (thread_polls > 0, with_softirq(&format!("{thread_polls} polls by its thread"))),
        Mode::ThreadedBusy => (
            thread_polls > 0 && interrupts == 0,
            format!("{thread_polls} polls by its thread, {empty_polls} of them empty, {interrupts} interrupts"),
        ),
        Mode::Workqueue => (worker_polls > 0, with_softirq(&format!("{worker_polls} polls by a worker of the pool"))),
        // A holding instance polls at least once more before each unmasking.
        Mode::Hold(Hold::Spin(_)) => (
            softirq_thread_polls > 0 && empty_polls.saturating_mul(2) >= interrupts,
            format!("{empty_polls} empty polls while holding, {interrupts} interrupts"),
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
            // Empty polls are rare if each series of polls follows an interrupt.
            let holds = empty_polls >= interrupts.max(16);
            let plain = softirq_polls > 0 && busy_poll_packets + timer_polls + suspensions == 0;
            (plain && !holds, format!("{interrupts} interrupts, {softirq_polls} polls in softirq, {empty_polls} empty"))
        }
    };
    let contexts = [
        ("a NAPI thread", thread_polls, matches!(mode, Mode::Threaded | Mode::ThreadedBusy)),
        ("the worker pool", worker_polls, mode == Mode::Workqueue),
    ];
    if let Some((context, polls, _)) = contexts.into_iter().find(|(_, polls, expected)| *polls > 0 && !expected) {
        return Err(format!("{context} polled {polls} times, which the mode does not ask for"));
    }
    if is_active { Ok(proof) } else { Err(format!("{proof}, {packets} packets")) }
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

    fn is_proved(mode: &str, counters: &Counters) -> bool {
        prove(mode.parse().expect("a mode"), counters).is_ok()
    }

    /// Returns counters of each mode while it is active.
    fn active() -> [(&'static str, Counters); 10] {
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
    fn each_mode_is_recognised_active() {
        for (mode, counters) in active() {
            assert!(is_proved(mode, &counters), "{mode}: {:?}", prove(mode.parse().expect("a mode"), &counters));
        }
    }

    #[test]
    fn an_inactive_mode_is_not_proved() {
        for (mode, counters) in active() {
            assert!(!is_proved(mode, &Counters::default()), "{mode} without a packet");
            assert_eq!(is_proved(mode, &plain()), mode == "base", "{mode} with the counters of base");
            // The counters cannot distinguish two modes whose timer polls.
            let timed = ["defer50", "hold50-timer"].contains(&mode);
            assert_eq!(is_proved("base", &counters), mode == "base", "base with the counters of {mode}");
            assert_eq!(
                is_proved("defer50", &counters),
                timed || mode == "suspend20",
                "defer50 with the counters of {mode}"
            );
            assert_eq!(is_proved("workqueue", &counters), mode == "workqueue", "workqueue with the counters of {mode}");
        }
    }
}
