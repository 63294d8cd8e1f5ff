//! Axes: how a quantity is mapped to the straight scale that is drawn, and where its ticks stand.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

use crate::figure::{grouped, short};

/// An axis: its label, range and ticks on the drawn scale, and the text of each tick.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    /// What is shown and its unit.
    pub label: String,
    /// Both ends, on the drawn scale.
    pub range: (f64, f64),
    /// Ticks on the drawn scale with their texts.
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
    /// From zero to just above the largest value, or to at least `least`.
    pub(crate) fn linear(label: &str, values: &[f64], least: f64) -> Self {
        let top = values.iter().copied().fold(least, f64::max).max(f64::MIN_POSITIVE);
        let step = nice_step(top / 4.0);
        let end = (top / step - 1e-9).ceil() * step;
        let count = (end / step).round() as u32;
        let ticks = (0..=count).map(|at| (f64::from(at) * step, tick_text(f64::from(at) * step))).collect();
        Self { label: label.to_owned(), range: (0.0, end), ticks, scale: Scale::Linear }
    }

    /// As [`Axis::linear`], but it ends just behind the largest value, so that names of lines stand beside the grid.
    pub(crate) fn linear_tight(label: &str, values: &[f64]) -> Self {
        let mut axis = Self::linear(label, values, 0.0);
        let end = values.iter().copied().fold(0.0, f64::max) * 1.03;
        if end > 0.0 {
            axis.range.1 = end;
            axis.ticks.retain(|(at, _)| *at <= end);
        }
        axis
    }

    /// Logarithmic, over all values that are above zero, with ticks at 1, 2 and 5 of each decade, or more or fewer where
    /// that suits the range.
    pub(crate) fn log(label: &str, values: &[f64]) -> Self {
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

    /// Percentiles, each nine as wide as the one before: 0, 50, 90, 99, 99.9, ... up to the largest given.
    pub(crate) fn nines(label: &str, largest: f64) -> Self {
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

    /// Where a value stands on the drawn scale; `None` for one the scale has no place for (zero on a logarithmic one).
    pub(crate) fn place(&self, value: f64) -> Option<f64> {
        let place = match self.scale {
            Scale::Linear => value,
            Scale::Log => value.log10(),
            Scale::Nines => nines(value),
        };
        place.is_finite().then_some(place)
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, place: &f64, (first, last): (i32, i32)) -> i32 {
        let share = (place - self.range.0) / (self.range.1 - self.range.0);
        first + (share * f64::from(last - first)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // Light points are those between ticks: none.
        let light = hint.weight().allow_light_points();
        self.ticks.iter().map(|(at, _)| *at).filter(|_| !light).collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.0..self.range.1
    }
}

impl ValueFormatter<f64> for Axis {
    fn format(place: &f64) -> String {
        place.to_string()
    }

    fn format_ext(&self, place: &f64) -> String {
        let tick = self.ticks.iter().find(|(at, _)| (at - place).abs() < 1e-9);
        tick.map(|(_, text)| text.clone()).unwrap_or_default()
    }
}

/// The tick just below a value where one is near, so that the axis starts with a figure; else the value.
fn lower_end(value: f64) -> f64 {
    let decade = 10f64.powf(value.log10().floor());
    let tick = [5.0, 2.0, 1.0].map(|step| step * decade).into_iter().find(|tick| *tick <= value);
    tick.filter(|tick| value / tick < 1.35).unwrap_or(value)
}

/// How many nines a percentile has: 90 has one, 99 two; 0 has none.
fn nines(percentile: f64) -> f64 {
    // Adding zero turns -0 into 0.
    -(1.0 - percentile / 100.0).log10() + 0.0
}

/// The least of 1, 2, 2.5 and 5 times a power of ten that is not below `least`.
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
        let place = |percentile| axis.place(percentile).expect("on the scale");
        assert!((place(99.0) - place(90.0) - 1.0).abs() < 1e-9);
        assert_eq!(axis.place(100.0), None);
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
    fn odd_input_still_makes_an_axis() {
        for values in [&[][..], &[0.0], &[5.0], &[5.0, 5.0]] {
            let (linear, log) = (Axis::linear_tight("", values), Axis::log("", values));
            assert!(linear.range.0 < linear.range.1 && log.range.0 < log.range.1, "{values:?}");
            assert!(linear.ticks.len() < 20 && log.ticks.len() < 20);
        }
    }
}
