//! Parsing of values in scenario files: modes, loads, durations and distributions, with messages that name what is
//! allowed.

use abey_delivery::{Mode, Nanos};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};

use super::{Arrivals, Load};
use crate::distribution::{Delay, Size};

pub(super) fn modes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Mode>, D::Error> {
    let names = Vec::<String>::deserialize(from)?;
    if names.is_empty() {
        return Err(D::Error::custom("name at least one mode, such as [\"base\", \"suspend20\"]"));
    }
    names.iter().map(|name| name.parse().map_err(D::Error::custom)).collect()
}

pub(super) fn span<'de, D: Deserializer<'de>>(from: D) -> Result<Nanos, D::Error> {
    from.deserialize_str(Expecting("a duration with its unit, such as \"20us\""))?.parse().map_err(D::Error::custom)
}

/// Visitor for a string, with a message about what is expected.
struct Expecting(&'static str);

impl Visitor<'_> for Expecting {
    type Value = String;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }
}

pub(super) fn load<'de, D: Deserializer<'de>>(from: D) -> Result<Load, D::Error> {
    let text = from.deserialize_str(Expecting("a rate in quotes, such as \"50k\", or \"max\""))?;
    parse_load(&text).ok_or_else(|| {
        D::Error::custom(format!(
            "`{text}` is not a load: write a rate such as 500, 50k or 1.2M (requests per second), or max"
        ))
    })
}

fn parse_load(text: &str) -> Option<Load> {
    if text.eq_ignore_ascii_case("max") {
        return Some(Load::Closed);
    }
    let (number, scale) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 1e3),
        b'M' => (&text[..text.len() - 1], 1e6),
        _ => (text, 1.0),
    };
    let plain = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let rate = number.parse::<f64>().ok().filter(|_| plain)? * scale;
    (rate > 0.0).then_some(Load::Open(rate))
}

/// Name of an arrival process, or a table.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected \"poisson\", \"constant\", { bursts = 8 } or { cv = 2.0 }")]
enum ArrivalsValue {
    Name(String),
    Table(toml::Table),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ArrivalsTable {
    bursts: Option<u32>,
    cv: Option<f64>,
}

pub(super) fn arrivals<'de, D: Deserializer<'de>>(from: D) -> Result<Arrivals, D::Error> {
    let forms = "write \"poisson\", \"constant\", { bursts = 8 } or { cv = 2.0 }";
    let table = match ArrivalsValue::deserialize(from)? {
        ArrivalsValue::Name(name) => {
            return match name.as_str() {
                "poisson" => Ok(Arrivals::Poisson),
                "constant" => Ok(Arrivals::Constant),
                _ => Err(D::Error::custom(format!("`{name}` is no process of arrivals: {forms}"))),
            };
        }
        ArrivalsValue::Table(table) => {
            ArrivalsTable::deserialize(table).map_err(|error| D::Error::custom(error.message()))?
        }
    };
    match (table.bursts, table.cv) {
        (Some(bursts), None) => Ok(Arrivals::Bursts(bursts)),
        (None, Some(cv)) => Ok(Arrivals::Lognormal { cv }),
        _ => Err(D::Error::custom(format!("these keys make no process of arrivals: {forms}"))),
    }
}

/// Duration, or a table of a distribution.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a duration such as \"8us\", or a table with `mean` or `median`")]
enum DelayValue {
    Constant(String),
    Table(toml::Table),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DelayTable {
    mean: Option<String>,
    distribution: Option<Shape>,
    cv: Option<f64>,
    median: Option<String>,
    p99: Option<String>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Shape {
    Constant,
    Exponential,
    Lognormal,
}

const DELAY_FORMS: &str = "write { mean = \"8us\" } with distribution = \"constant\", \"exponential\" or \"lognormal\" (which \
                           takes cv), or { median = \"80us\", p99 = \"400us\" }";

pub(super) fn delay<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Delay>, D::Error> {
    let nanos = |text: &str| text.parse::<Nanos>().map_err(D::Error::custom);
    let table = match DelayValue::deserialize(from)? {
        DelayValue::Constant(text) => return nanos(&text).map(|span| Some(Delay::Constant(span))),
        DelayValue::Table(table) => {
            DelayTable::deserialize(table).map_err(|error| D::Error::custom(error.message()))?
        }
    };
    let delay = match (&table.mean, table.distribution, table.cv, &table.median, &table.p99) {
        (Some(mean), None | Some(Shape::Constant), None, None, None) => Delay::Constant(nanos(mean)?),
        (Some(mean), Some(Shape::Exponential), None, None, None) => Delay::Exponential { mean: nanos(mean)? },
        (Some(mean), Some(Shape::Lognormal), Some(cv), None, None) => Delay::Lognormal { mean: nanos(mean)?, cv },
        (None, None | Some(Shape::Lognormal), None, Some(median), Some(p99)) => {
            Delay::Quantiles { median: nanos(median)?, p99: nanos(p99)? }
        }
        _ => return Err(D::Error::custom(format!("these keys make no distribution: {DELAY_FORMS}"))),
    };
    Ok(Some(delay))
}

/// Number of bytes, a table of a distribution, or a list of sizes with weights.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a number of bytes, a table with `min` and `max` or with `median`, or [[bytes, weight], ...]"
)]
enum SizeValue {
    Fixed(u64),
    Weighted(Vec<(u64, f64)>),
    Table(toml::Table),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SizeTable {
    min: Option<u64>,
    max: Option<u64>,
    median: Option<u64>,
    p99: Option<u64>,
    sigma: Option<f64>,
}

const SIZE_FORMS: &str =
    "write { min = 100, max = 300 }, { median = 1000, p99 = 20000 } or { median = 1000, sigma = 0.8 }";

pub(super) fn size<'de, D: Deserializer<'de>>(from: D) -> Result<Size, D::Error> {
    let table = match SizeValue::deserialize(from)? {
        SizeValue::Fixed(bytes) => return Ok(Size::Fixed(bytes)),
        SizeValue::Weighted(list) => return Ok(Size::Weighted(list)),
        SizeValue::Table(table) => SizeTable::deserialize(table).map_err(|error| D::Error::custom(error.message()))?,
    };
    match (table.min, table.max, table.median, table.p99, table.sigma) {
        (Some(min), Some(max), None, None, None) => Ok(Size::Uniform { min, max }),
        (None, None, Some(median), Some(p99), None) => Ok(Size::Quantiles { median, p99 }),
        (None, None, Some(median), None, Some(sigma)) => Ok(Size::Lognormal { median, sigma }),
        _ => Err(D::Error::custom(format!("these keys make no distribution: {SIZE_FORMS}"))),
    }
}
