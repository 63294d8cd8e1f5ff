//! The settings that a controller may choose.

use std::ops::RangeInclusive;

use abey_delivery::{Family, ModeSettings, Nanos};

use crate::choice::{Choice, is_tuned};

/// The ranges that settings are chosen from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    flush: RangeInclusive<Nanos>,
    suspend: RangeInclusive<Nanos>,
    families: Vec<Family>,
}

/// The reason why bounds are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BoundsError {
    /// The range is empty.
    #[error("{name} from {low} to {high} leaves nothing to choose: write the smaller figure first")]
    Empty {
        /// The setting.
        name: &'static str,
        /// Its lower end.
        low: Nanos,
        /// Its upper end.
        high: Nanos,
    },
    /// A range starts at zero, which would be another family.
    #[error(
        "{0} is bounded from 0, which would turn it off: allow the family `base` instead, and begin at 1us or more"
    )]
    Zero(&'static str),
    /// The safety timer could expire before the deferral timer, so that suspension has no effect.
    #[error(
        "irq-suspend-timeout may be as short as {suspend}, and gro-flush-timeout as long as {flush}: the first must be the \
         longer one whatever is chosen"
    )]
    SuspendNotAboveFlush {
        /// The lower end of irq-suspend-timeout.
        suspend: Nanos,
        /// The upper end of gro-flush-timeout.
        flush: Nanos,
    },
    /// The list of families is empty.
    #[error("no mode is allowed: name at least one of base, defer, napibusy, fullbusy and suspend")]
    NoFamily,
    /// The controller does not support the family.
    #[error("modes of the family `{0}` are not tuned: choose from base, defer, napibusy, fullbusy and suspend")]
    NotTuned(Family),
}

impl Bounds {
    /// Returns bounds with these ranges of gro-flush-timeout and irq-suspend-timeout, both ends included, and these
    /// families of modes. The range of gro-flush-timeout applies to `napibusy` and `fullbusy` as well.
    ///
    /// # Errors
    /// Returns the first violated rule, with the names of the settings.
    pub fn new(
        flush: RangeInclusive<Nanos>,
        suspend: RangeInclusive<Nanos>,
        families: &[Family],
    ) -> Result<Self, BoundsError> {
        for (name, range) in [("gro-flush-timeout", &flush), ("irq-suspend-timeout", &suspend)] {
            let (low, high) = (*range.start(), *range.end());
            if low > high {
                return Err(BoundsError::Empty { name, low, high });
            }
            if low.is_zero() {
                return Err(BoundsError::Zero(name));
            }
        }
        if let Some(family) = families.iter().find(|family| !is_tuned(**family)) {
            return Err(BoundsError::NotTuned(*family));
        }
        if families.is_empty() {
            return Err(BoundsError::NoFamily);
        }
        if families.contains(&Family::Suspend) && suspend.start() <= flush.end() {
            return Err(BoundsError::SuspendNotAboveFlush { suspend: *suspend.start(), flush: *flush.end() });
        }
        let mut families = families.to_vec();
        families.sort_unstable();
        families.dedup();
        Ok(Self { flush, suspend, families })
    }

    /// Returns the range of gro-flush-timeout, both ends included.
    pub fn flush(&self) -> RangeInclusive<Nanos> {
        self.flush.clone()
    }

    /// Returns the range of irq-suspend-timeout, both ends included.
    pub fn suspend(&self) -> RangeInclusive<Nanos> {
        self.suspend.clone()
    }

    /// Returns the permitted families, each once.
    pub fn families(&self) -> &[Family] {
        &self.families
    }

    /// Returns whether these settings may be chosen.
    pub fn contains(&self, settings: &ModeSettings) -> bool {
        Choice::of(settings).is_some_and(|choice| {
            let flush = choice.family == Family::Base || self.flush.contains(&choice.flush);
            let suspend = choice.family != Family::Suspend || self.suspend.contains(&choice.suspend);
            self.families.contains(&choice.family) && flush && suspend
        })
    }

    /// Returns every set of settings that may be chosen, with the longest irq-suspend-timeout, which does not affect
    /// the price.
    pub fn settings(&self) -> Vec<ModeSettings> {
        self.choices().into_iter().map(Choice::settings).collect()
    }

    /// Returns the same as choices.
    pub(crate) fn choices(&self) -> Vec<Choice> {
        // Twelve steps to a factor of ten, and both ends.
        let ladder = steps(&self.flush, libm::pow(10.0, 1.0 / 12.0));
        let within = |flush: Nanos| flush.clamp(*self.flush.start(), *self.flush.end());
        let all = self.families.iter().flat_map(|family| {
            let usual = family.example().settings().napi.gro_flush_timeout;
            let flushes = match family {
                Family::Base => vec![Nanos::ZERO],
                Family::Defer | Family::Suspend => ladder.clone(),
                _ => vec![within(usual)],
            };
            let suspend = if *family == Family::Suspend { *self.suspend.end() } else { Nanos::ZERO };
            flushes.into_iter().map(move |flush| Choice { family: *family, flush, suspend })
        });
        all.collect()
    }

    /// Returns the irq-suspend-timeouts to choose from, ascending: each twice the one before, and both ends.
    pub(crate) fn suspends(&self) -> Vec<Nanos> {
        steps(&self.suspend, 2.0)
    }
}

impl Default for Bounds {
    /// Returns bounds for a server that answers within a fraction of a millisecond and does not spin: `base`, `defer`
    /// and `suspend` with 10 to 200 us of deferral, and 5 to 20 ms of suspension.
    fn default() -> Self {
        Self {
            flush: Nanos::from_micros(10)..=Nanos::from_micros(200),
            suspend: Nanos::from_millis(5)..=Nanos::from_millis(20),
            families: vec![Family::Base, Family::Defer, Family::Suspend],
        }
    }
}

/// Returns values about `factor` apart, with both ends exact, and whole microseconds in between where possible.
fn steps(range: &RangeInclusive<Nanos>, factor: f64) -> Vec<Nanos> {
    let (low, high) = (range.start().as_nanos() as f64, range.end().as_nanos() as f64);
    let count = (libm::log(high / low) / libm::log(factor)).round().max(0.0) as u32;
    let between = (1..count).map(|step| {
        let exact = low * libm::pow(high / low, f64::from(step) / f64::from(count));
        Nanos::from_nanos(if exact >= 10_000.0 { (exact / 1e3).round() as u64 * 1_000 } else { exact as u64 })
    });
    let mut all: Vec<Nanos> =
        between.chain([*range.start(), *range.end()]).filter(|step| range.contains(step)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use abey_delivery::Mode;

    fn us(low: u64, high: u64) -> RangeInclusive<Nanos> {
        Nanos::from_micros(low)..=Nanos::from_micros(high)
    }

    #[test]
    fn what_is_inside() {
        let bounds = Bounds::default();
        for (name, inside) in [
            ("base", true),
            ("defer10", true),
            ("suspend200", true),
            ("defer9", false),
            ("suspend201", false),
            ("napibusy", false),
            ("threaded", false),
            ("hold50", false),
        ] {
            assert_eq!(bounds.contains(&name.parse::<Mode>().expect(name).settings()), inside, "{name}");
        }
        let mut longer = Mode::Suspend(Nanos::from_micros(20)).settings();
        longer.napi.irq_suspend_timeout = Nanos::from_millis(21);
        assert!(!bounds.contains(&longer));
    }

    #[test]
    fn the_ladder_is_inside_and_has_both_ends() {
        for (low, high) in [(10, 200), (1, 1), (1, 3), (17, 5_000), (50, 51)] {
            let bounds = Bounds::new(us(low, high), us(6_000, 20_000), &[Family::Suspend]).expect("sound");
            let ladder: Vec<Nanos> = bounds.choices().iter().map(|choice| choice.flush).collect();
            assert_eq!(ladder.first(), Some(&Nanos::from_micros(low)));
            assert_eq!(ladder.last(), Some(&Nanos::from_micros(high)));
            assert!(
                ladder.is_sorted() && bounds.settings().iter().all(|settings| bounds.contains(settings)),
                "{ladder:?}"
            );
        }
        assert_eq!(Bounds::default().suspends(), [5, 10, 20].map(Nanos::from_millis));
    }

    #[test]
    fn bad_bounds_say_why() {
        let new = |flush, suspend, families: &[Family]| Bounds::new(flush, suspend, families).expect_err("bad");
        let some = [Family::Defer, Family::Suspend];
        assert!(matches!(new(us(20, 10), us(500, 900), &some), BoundsError::Empty { name: "gro-flush-timeout", .. }));
        assert!(matches!(new(us(0, 10), us(500, 900), &some), BoundsError::Zero("gro-flush-timeout")));
        assert!(matches!(new(us(1, 500), us(500, 900), &some), BoundsError::SuspendNotAboveFlush { .. }));
        assert_eq!(new(us(1, 2), us(500, 900), &[]), BoundsError::NoFamily);
        assert_eq!(new(us(1, 2), us(500, 900), &[Family::Hold]), BoundsError::NotTuned(Family::Hold));
        // Without suspension its range does not matter.
        assert!(Bounds::new(us(1, 500), us(500, 900), &[Family::Defer]).is_ok());
    }
}
