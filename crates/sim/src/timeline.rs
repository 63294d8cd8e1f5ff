//! Timeline of a delivery mode, small enough to be drawn: one queue, a few requests at given times, and all events.
//!
//! Every mode has the same requests, so that the pictures can be compared: single requests with pauses between them,
//! a busy period, and silence for as long as the settings may keep the interrupt masked.

use abey_delivery::{Hold, Mode, ModeSettings, Nanos, PollContext};

use crate::input::InputError;
use crate::profile::Profile;
use crate::scenario::{Load, NicSettings, Responder, Scenario};
use crate::topology::Topology;
use crate::trace::Trace;
use crate::world::run_scripted;

/// Arrivals in microseconds: two single requests, a busy period with a short gap, and a single request.
const STORY: [u64; 26] = [
    20, 85, //
    150, 153, 158, 164, 168, 173, 179, 182, 188, 194, 199, 204, 207, 213, 219, 224, 229, //
    262, 268, 271, 277, 283, 288, //
    400,
];

/// Duration of the close view in microseconds.
const CLOSE: u64 = 600;

/// Longest run in nanoseconds (26 ms), however long the interrupt stays masked.
const LONGEST: u64 = 26_000_000;

/// Upper bound of a timer interrupt and the poll after it, in nanoseconds.
const POLL: u64 = 10_000;

/// Maximum number of requests.
const MOST: usize = 200;

/// What to draw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Story {
    /// Name of the mode.
    pub mode: Mode,
    /// Settings of the queue, the epoll context and the event loop.
    pub settings: ModeSettings,
    /// Arrivals of the requests in order, each on its own connection. The default is that of the shipped pictures.
    pub arrivals: Option<Vec<Nanos>>,
}

impl Story {
    /// Creates the picture of a mode with the default requests.
    pub fn new(mode: Mode) -> Self {
        Self { mode, settings: mode.settings(), arrivals: None }
    }

    /// Runs the simulation.
    ///
    /// The host has the costs of the profile, without what would hide the mode: its NIC interrupts at once, for
    /// received packets only, and clients acknowledge with their next request. A mode that polls in threads or spins
    /// has a second CPU, to which the queue's interrupt and its thread belong. `sockbusyX` has a server that blocks
    /// in a receive.
    ///
    /// # Errors
    /// If the profile or the settings are invalid, or there are too many requests, or they are not in order
    /// or too late.
    pub fn run(&self, profile: &Profile) -> Result<Timeline, InputError> {
        let arrivals = self.arrivals()?;
        let last = arrivals.last().copied().unwrap_or(0);
        let close = if self.arrivals.is_none() { CLOSE * 1_000 } else { last + last / 4 + 100_000 };
        let quiet = self.masked_for();
        let duration = (last + quiet + quiet / 10).clamp(close, LONGEST.max(close));
        let scenario = Scenario {
            settings: self.settings,
            responder: match self.settings.socket_busy_poll {
                Some(_) => Responder::Receive,
                None => Responder::EventLoop,
            },
            topology: self.topology(),
            connections: arrivals.len() as u32,
            nic: NicSettings { adaptive: Some(false), rx_usecs: Some(0), ..NicSettings::default() },
            warmup: Nanos::ZERO,
            duration: Nanos::from_nanos(duration),
            linux: self.is_linux(),
            // Linux restarts irq-suspend-timeout at each delivery of events, which violates the core's invariants.
            check: !self.is_linux(),
            // The script determines the requests; the rate is unused.
            ..Scenario::new(self.mode, Load::Open(1.0))
        };
        let trace = run_scripted(&host(profile), &scenario, &arrivals)?;
        Ok(Timeline { trace, close: Nanos::from_nanos(close), end: Nanos::from_nanos(duration) })
    }

    fn arrivals(&self) -> Result<Vec<u64>, InputError> {
        let wrong = |value: String, allowed| Err(InputError::Value { key: "arrivals", value, allowed });
        let Some(given) = &self.arrivals else { return Ok(STORY.map(|at| at * 1_000).to_vec()) };
        let arrivals: Vec<u64> = given.iter().map(|at| at.as_nanos()).collect();
        if arrivals.is_empty() || arrivals.len() > MOST {
            return wrong(arrivals.len().to_string(), "a timeline has 1 to 200 requests");
        }
        if let Some(pair) = arrivals.windows(2).find(|pair| pair[0] > pair[1]) {
            return wrong(
                Nanos::from_nanos(pair[1]).to_string(),
                "requests are given in the order in which they arrive",
            );
        }
        match given.last() {
            Some(last) if last.as_nanos() > LONGEST => wrong(last.to_string(), "requests arrive within 26 ms"),
            _ => Ok(arrivals),
        }
    }

    /// Returns how long after the last packet the settings may keep the interrupt masked, and a poll for each
    /// deferral.
    fn masked_for(&self) -> u64 {
        let napi = &self.settings.napi;
        if !napi.defers() {
            return 0;
        }
        let deferral = u64::from(napi.defer_hard_irqs).saturating_mul(napi.gro_flush_timeout.as_nanos() + POLL);
        deferral.min(LONGEST)
    }

    /// Returns whether a kernel has these settings; the others exist only in the datapath.
    fn is_linux(&self) -> bool {
        let napi = &self.settings.napi;
        napi.hold.is_none() && napi.context != PollContext::Workqueue
    }

    fn topology(&self) -> Topology {
        let napi = &self.settings.napi;
        if napi.context == PollContext::Softirq && !matches!(napi.hold, Some(Hold::Spin(_))) {
            return Topology::default();
        }
        Topology { cpus: Some(2), threads: Some(1), irq_cpus: Some(vec![1]), ..Topology::default() }
    }
}

fn host(profile: &Profile) -> Profile {
    let mut host = profile.clone();
    // A second, longer than any timeline.
    host.nic.tx_usecs = 1_000_000;
    host.nic.tx_frames = u32::MAX;
    host.client.ack_ns = 1_000_000_000;
    // Requests are given by their arrival at the NIC.
    host.client.base_ns = 0;
    host
}

/// Finished timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// All events.
    pub trace: Trace,
    /// Duration of the close view, from the start.
    pub close: Nanos,
    /// Duration of the run.
    pub end: Nanos,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Activity, Track};

    fn run(mode: &str) -> Timeline {
        let profile = Profile::load("epyc-7662").expect("it is shipped");
        Story::new(mode.parse().expect(mode)).run(&profile).expect(mode)
    }

    fn count(timeline: &Timeline, what: Activity) -> usize {
        timeline.trace.slices().iter().filter(|slice| slice.what == what).count()
    }

    #[test]
    fn every_request_of_every_mode_is_answered_and_its_way_has_an_order() {
        for mode in Mode::EXAMPLES {
            let timeline = run(mode);
            let requests = timeline.trace.requests();
            assert_eq!(requests.len(), STORY.len(), "{mode}");
            for request in requests {
                let times = [request.arrived, request.delivered, request.begun, request.answered];
                assert!(times.is_sorted(), "{mode}: {request:?}");
                assert!(STORY.contains(&(request.arrived / 1_000)), "{mode}: {request:?}");
            }
            assert_eq!(timeline, run(mode), "{mode} is the same every time");
        }
    }

    #[test]
    fn each_mode_shows_what_it_is_about() {
        for (mode, some, none) in [
            ("base", vec![Activity::NicInterrupt, Activity::SoftirqPoll], vec![Activity::TimerInterrupt]),
            ("defer50", vec![Activity::TimerInterrupt], vec![Activity::BusyPoll, Activity::Suspended]),
            ("napibusy", vec![Activity::BusyPoll, Activity::Armed], vec![Activity::Suspended]),
            ("fullbusy", vec![Activity::BusyPoll], vec![Activity::Suspended]),
            ("suspend20", vec![Activity::Suspended, Activity::BusyPoll, Activity::TimerInterrupt], vec![]),
            ("threaded", vec![Activity::NapiThread], vec![Activity::SoftirqPoll]),
            ("threaded-busy", vec![Activity::NapiThread], vec![Activity::SoftirqPoll]),
            ("workqueue", vec![Activity::Worker], vec![Activity::SoftirqPoll]),
            ("sockbusy50", vec![Activity::BusyPoll], vec![Activity::Suspended]),
        ] {
            let timeline = run(mode);
            some.iter().for_each(|what| assert!(count(&timeline, *what) > 0, "{mode} has {what}"));
            none.iter().for_each(|what| assert_eq!(count(&timeline, *what), 0, "{mode} has no {what}"));
        }
    }

    #[test]
    fn the_interrupt_is_unmasked_again_after_a_hundred_deferrals() {
        let timeline = run("suspend20");
        let of_queue = |slice: &&crate::Slice| matches!(slice.track, Track::Interrupt { .. });
        let last = timeline.trace.slices().iter().rfind(of_queue).expect("the queue has a state");
        assert_eq!(last.what, Activity::Unmasked);
        let silent_since = timeline.trace.requests().last().expect("requests were answered").answered;
        let masked = last.from - silent_since;
        assert!((1_900_000..2_600_000).contains(&masked), "100 x 20 us, and what polls took: {masked} ns");
    }

    #[test]
    fn requests_of_ones_own_are_checked() {
        let profile = Profile::load("epyc-7662").expect("it is shipped");
        let story = |at: &[u64]| Story {
            arrivals: Some(at.iter().map(|at| Nanos::from_micros(*at)).collect()),
            ..Story::new(Mode::Base)
        };
        assert_eq!(story(&[5, 10]).run(&profile).expect("two requests").trace.requests().len(), 2);
        for at in [&[][..], &[10, 5], &[30_000], &[1; 201]] {
            assert!(matches!(story(at).run(&profile), Err(InputError::Value { key: "arrivals", .. })), "{at:?}");
        }
    }
}
