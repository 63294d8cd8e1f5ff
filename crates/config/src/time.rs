//! Times in a TOML file: strings with a unit.

use abey_delivery::Nanos;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};

/// A time as a string with a unit: `"20us"`, `"1.5ms"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(pub Nanos);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Time;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a time with its unit in quotes, such as \"20us\" or \"1.5ms\"")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Time, E> {
                text.parse().map(Time).map_err(E::custom)
            }
        }
        from.deserialize_str(Text)
    }
}

pub(crate) fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Nanos, D::Error> {
    Time::deserialize(from).map(|time| time.0)
}
