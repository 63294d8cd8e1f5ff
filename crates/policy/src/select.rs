//! The criteria by which a table matches devices.

use std::fmt;

use abey_linux::machine::DeviceState;
use glob::Pattern;

/// The criteria by which a table matches devices. A device has to match all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// The interface's name.
    pub name: Option<Pattern>,
    /// Its driver.
    pub driver: Option<Pattern>,
    /// Its hardware address, in lower case.
    pub address: Option<String>,
    /// Its address on the PCI bus.
    pub pci: Option<Pattern>,
}

impl Selector {
    /// Whether there is no criterion.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the device matches. Loopback never does: it has no NAPI instance.
    pub fn matches(&self, state: &DeviceState) -> bool {
        let glob = |pattern: &Option<Pattern>, text: Option<&str>| match (pattern, text) {
            (None, _) => true,
            (Some(pattern), Some(text)) => pattern.matches(text),
            (Some(_), None) => false,
        };
        let driver = state.driver.as_ref().ok().map(|driver| driver.name.as_str());
        !state.device.loopback
            && glob(&self.name, Some(&state.device.name))
            && glob(&self.driver, driver)
            && glob(&self.pci, state.pci.as_deref())
            && self.address.as_ref().is_none_or(|wanted| state.address.as_ref() == Some(wanted))
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |what: &'static str, pattern: &Option<Pattern>| pattern.as_ref().map(|text| (what, text.to_string()));
        let parts = [
            of("name", &self.name),
            of("driver", &self.driver),
            self.address.clone().map(|text| ("address", text)),
            of("pci", &self.pci),
        ];
        let all: Vec<String> = parts.into_iter().flatten().map(|(what, text)| format!("{what} {text}")).collect();
        f.write_str(&all.join(" and "))
    }
}
