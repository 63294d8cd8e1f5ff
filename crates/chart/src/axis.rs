//! Axes: the mapping of a quantity to the drawn scale, and the ticks.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

use crate::number::{grouped, short};

/// An axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// The quantity and its unit.
    pub label: String,
    /// Lower and upper end on the drawn scale.
    pub range: (f64, f64),
    /// Ticks on the drawn scale, with their labels.
    pub ticks: Vec<(f64, String)>,
    scale: Scale,
}

#[derive(Clone, Copy, Debug)]
enum Scale {
    Linear,
    Log,
    Nines,
}

impl Axis {
    /// Creates a linear axis from zero to a round number not below the largest value and not below `least`.
    #[must_use]
    pub fn linear(label: &str, values: &[f64], least: f64) -> Self {
        let top = values.iter().copied().fold(least, f64::max).max(f64::MIN_POSITIVE);
        let step = nice_step(top / 4.0);
        let end = (top / step - 1e-9).ceil() * step;
        let count = (end / step).round() as u32;
        let ticks = (0..=count).map(|at| (f64::from(at) * step, tick_text(f64::from(at) * step))).collect();
        Self { label: label.to_owned(), range: (0.0, end), ticks, scale: Scale::Linear }
    }

    /// Creates a linear axis that ends just above the largest value, so that the names of lines are beside the grid.
    #[must_use]
    pub fn linear_tight(label: &str, values: &[f64]) -> Self {
        let mut axis = Self::linear(label, values, 0.0);
        let end = values.iter().copied().fold(0.0, f64::max) * 1.03;
        if end > 0.0 {
            axis.range.1 = end;
            axis.ticks.retain(|(at, _)| *at <= end);
        }
        axis
    }

    /// Creates a logarithmic axis over all values above zero, with ticks at 1, 2 and 5 of each decade; more on a narrow range,
    /// fewer on a wide one.
    #[must_use]
    pub fn log(label: &str, values: &[f64]) -> Self {
        let above: Vec<f64> = values.iter().copied().filter(|value| *value > 0.0).collect();
        let low = above.iter().copied().fold(f64::INFINITY, f64::min).min(1e9);
        let high = above.iter().copied().fold(low, f64::max);
        let (low, high) = (lower_end(low * 0.93).log10(), (high * 1.15).log10());
        let steps: &[f64] = match high - low {
            wide if wide > 3.0 => &[1.0],
            narrow if narrow < 0.6 => &[1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0],
            _ => &[1.0, 2.0, 5.0],
        };
        let decades = low.floor() as i32..=high.ceil() as i32;
        let ticks = decades
            .flat_map(|decade| steps.iter().map(move |step| step * 10f64.powi(decade)))
            .filter(|tick| (low - 1e-9..=high).contains(&tick.log10()))
            .map(|tick| (tick.log10(), tick_text(tick)))
            .collect();
        Self { label: label.to_owned(), range: (low, high), ticks, scale: Scale::Log }
    }

    /// Creates an axis of percentiles up to `largest`, on which each additional nine has the same width: 0, 50, 90, 99, 99.9.
    #[must_use]
    pub fn nines(label: &str, largest: f64) -> Self {
        let end = nines(largest).max(2.0);
        let ticks = [
            ("0", 0.0),
            ("50", 50.0),
            ("90", 90.0),
            ("99", 99.0),
            ("99.9", 99.9),
            ("99.99", 99.99),
            ("99.999", 99.999),
        ]
        .into_iter()
        .map(|(text, percentile)| (nines(percentile), text.to_owned()))
        .filter(|(at, _)| *at <= end + 1e-6)
        .collect();
        Self { label: label.to_owned(), range: (0.0, end), ticks, scale: Scale::Nines }
    }

    /// Maps a value to the drawn scale; `None` if it is not on the scale (zero on a logarithmic one).
    #[must_use]
    pub fn position(&self, value: f64) -> Option<f64> {
        let position = match self.scale {
            Scale::Linear => value,
            Scale::Log => value.log10(),
            Scale::Nines => nines(value),
        };
        position.is_finite().then_some(position)
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, position: &f64, (first, last): (i32, i32)) -> i32 {
        let share = (position - self.range.0) / (self.range.1 - self.range.0);
        first + (share * f64::from(last - first)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // Light points are those between ticks; there are none.
        let light = hint.weight().allow_light_points();
        self.ticks.iter().map(|(at, _)| *at).filter(|_| !light).collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.0..self.range.1
    }
}

impl ValueFormatter<f64> for Axis {
    fn format(position: &f64) -> String {
        position.to_string()
    }

    fn format_ext(&self, position: &f64) -> String {
        let tick = self.ticks.iter().find(|(at, _)| (at - position).abs() < 1e-9);
        tick.map(|(_, text)| text.clone()).unwrap_or_default()
    }
}

/// Returns the tick just below a value if one is near, so that the axis starts at a tick; otherwise the value.
fn lower_end(value: f64) -> f64 {
    let decade = 10f64.powf(value.log10().floor());
    let tick = [5.0, 2.0, 1.0].map(|step| step * decade).into_iter().find(|tick| *tick <= value);
    tick.filter(|tick| value / tick < 1.35).unwrap_or(value)
}

/// Returns the number of nines of a percentile: 0 has none, 90 has one, 99 has two.
fn nines(percentile: f64) -> f64 {
    // Adding zero turns -0 into 0.
    -(1.0 - percentile / 100.0).log10() + 0.0
}

/// Returns the smallest of 1, 2, 2.5 and 5 times a power of ten that is not below `least`.
fn nice_step(least: f64) -> f64 {
    let decade = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0]
        .map(|step| step * decade)
        .into_iter()
        .find(|step| *step >= least * 0.999)
        .unwrap_or(least)
}

fn tick_text(value: f64) -> String {
    if value >= 10_000.0 && value % 100.0 == 0.0 {
        let thousands = value / 1_000.0;
        if thousands.fract() == 0.0 { format!("{}k", grouped(thousands)) } else { format!("{thousands:.1}k") }
    } else if value.fract() == 0.0 {
        grouped(value)
    } else {
        short(value).trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, text)| text.as_str()).collect()
    }

    #[test]
    fn nines_are_equally_wide() {
        let axis = Axis::nines("percentile", 99.9);
        assert_eq!(texts(&axis), ["0", "50", "90", "99", "99.9"]);
        let position = |percentile| axis.position(percentile).expect("on the scale");
        assert!((position(99.0) - position(90.0) - 1.0).abs() < 1e-9);
        assert_eq!(axis.position(100.0), None);
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(texts(&Axis::linear("cpu", &[17.0, 99.0], 100.0)), ["0", "25", "50", "75", "100"]);
        assert_eq!(texts(&Axis::linear("qps", &[19_998.0, 50_010.0], 0.0)), ["0", "20k", "40k", "60k"]);
        assert_eq!(texts(&Axis::linear_tight("qps", &[19_998.0, 50_010.0])), ["0", "20k", "40k"]);
        assert_eq!(texts(&Axis::log("us", &[22.0, 300.0])), ["20", "50", "100", "200"]);
        assert_eq!(texts(&Axis::log("ratio", &[0.9, 1.2])), ["1", "1.2"]);
        assert_eq!(texts(&Axis::log("us", &[3.0, 90_000.0])), ["10", "100", "1,000", "10k", "100k"]);
    }

    #[test]
    fn empty_zero_and_equal_values_make_an_axis() {
        for values in [&[][..], &[0.0], &[5.0], &[5.0, 5.0]] {
            let (linear, log) = (Axis::linear_tight("", values), Axis::log("", values));
            assert!(linear.range.0 < linear.range.1 && log.range.0 < log.range.1, "{values:?}");
            assert!(linear.ticks.len() < 20 && log.ticks.len() < 20);
        }
    }
}
