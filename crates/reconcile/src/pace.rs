//! When a watch compares again after notifications, and which remarks it has made: both bounded, whatever other programs do.
//!
//! A comparison reads everything, which takes milliseconds on a large machine. A notification about a device of the policy is
//! followed by one within [`BURST`]. One about another device may be of a new device that the policy selects, so it cannot be
//! ignored. But containers come and go all day, and a device that flaps would keep a CPU busy: while such comparisons find
//! nothing to do, the time between two of them doubles up to [`SLOWEST`].

use std::collections::VecDeque;
use std::time::Duration;

/// The minimum time between two comparisons, in which a burst of notifications is collected.
pub(crate) const BURST: Duration = Duration::from_millis(20);

/// The maximum time between a notification and the comparison that follows.
const SLOWEST: Duration = Duration::from_secs(1);

/// The most remarks that are remembered.
const MAX_REMARKS: usize = 256;

/// The pace of comparisons that notifications about other devices cause.
#[derive(Debug)]
pub(crate) struct Pace {
    interval: Duration,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self { interval: BURST }
    }

    /// Returns how long after the last comparison the next one is due. A notification arrived `since` that comparison;
    /// `is_urgent` is whether it concerns a device of the policy.
    pub(crate) fn due(&mut self, since: Duration, is_urgent: bool) -> Duration {
        if since > 2 * self.interval.max(SLOWEST) {
            self.interval = BURST;
        }
        if is_urgent { BURST } else { self.interval }
    }

    /// Notes that a comparison was made because of notifications, and whether there was something to do.
    pub(crate) fn compared(&mut self, found_work: bool) {
        self.interval = if found_work { BURST } else { (2 * self.interval).min(SLOWEST) };
    }
}

/// The last remarks, none of which is repeated.
#[derive(Debug, Default)]
pub(crate) struct Remarks(VecDeque<String>);

impl Remarks {
    /// Remembers a remark, and returns whether it is new.
    pub(crate) fn is_new(&mut self, text: &str) -> bool {
        if self.0.iter().any(|known| known == text) {
            return false;
        }
        if self.0.len() >= MAX_REMARKS {
            self.0.pop_front();
        }
        self.0.push_back(text.to_owned());
        true
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many comparisons follow notifications that arrive every millisecond of `span`.
    fn comparisons(pace: &mut Pace, span: Duration, is_urgent: bool, found_work: bool) -> u32 {
        let (mut now, mut last, mut count) = (Duration::ZERO, Duration::ZERO, 0);
        while now < span {
            now += Duration::from_millis(1);
            if now >= last + pace.due(now - last, is_urgent) {
                pace.compared(found_work);
                (last, count) = (now, count + 1);
            }
        }
        count
    }

    #[test]
    fn a_device_that_flaps_causes_one_comparison_a_second_and_one_of_the_policy_fifty() {
        let minute = Duration::from_secs(60);
        let others = comparisons(&mut Pace::new(), minute, false, false);
        assert!((58..=66).contains(&others), "{others}");
        assert_eq!(comparisons(&mut Pace::new(), minute, true, false), 3000);
        assert_eq!(comparisons(&mut Pace::new(), minute, false, true), 3000, "devices that the policy selects");
    }

    #[test]
    fn after_a_quiet_time_a_notification_is_followed_at_once() {
        let mut pace = Pace::new();
        comparisons(&mut pace, Duration::from_secs(10), false, false);
        assert_eq!(pace.due(Duration::from_millis(3), false), SLOWEST);
        assert_eq!(pace.due(Duration::from_millis(3), true), BURST);
        assert_eq!(pace.due(Duration::from_secs(3), false), BURST);
    }

    #[test]
    fn remarks_are_made_once_and_do_not_accumulate() {
        let mut remarks = Remarks::default();
        assert!(remarks.is_new("a") && !remarks.is_new("a"));
        (0..10_000).for_each(|pid| assert!(remarks.is_new(&format!("pid {pid}"))));
        assert!(remarks.0.len() <= MAX_REMARKS && remarks.0.capacity() <= 2 * MAX_REMARKS);
        assert!(!remarks.is_new("pid 9999"));
    }
}
