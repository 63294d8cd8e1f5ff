//! Rejects two rules for one setting, with an error that names both.

use std::collections::BTreeMap;

use crate::error::PolicyError;
use crate::model::{DeviceRule, Policy};
use crate::spanned::Origin;
use crate::value::{Port, Queues};

/// Checks what is independent of the machine's devices: tables with the same criteria, and programs.
pub(crate) fn of_tables(policy: &Policy) -> Result<(), PolicyError> {
    for (at, rule) in policy.devices.iter().enumerate() {
        let same: Vec<&DeviceRule> =
            policy.devices[..=at].iter().filter(|other| other.selector == rule.selector).collect();
        of_device(&rule.selector.to_string(), &same)?;
    }
    let mut seen = Seen::new("the policy");
    for rule in &policy.programs {
        let what = match &rule.program.value {
            crate::model::Program::Unit(name) | crate::model::Program::Executable(name) => name,
        };
        seen.add(format!("the program {what}"), &rule.program.origin)?;
    }
    Ok(())
}

/// Checks the tables that match one device.
pub(crate) fn of_device(device: &str, rules: &[&DeviceRule]) -> Result<(), PolicyError> {
    let mut seen = Seen::new(device);
    for rule in rules {
        if let Some(channels) = &rule.channels {
            seen.add("the channels".to_owned(), &channels.origin)?;
        }
        if let Some(rss) = &rule.rss {
            seen.add("the RSS indirection table".to_owned(), &rss.origin)?;
        }
        if let Some(settings) = &rule.settings {
            seen.add("every queue".to_owned(), &settings.origin)?;
        }
        for queues in &rule.queues {
            match &queues.queues.value {
                Queues::Rest => seen.add("the rest of the queues".to_owned(), &queues.queues.origin)?,
                Queues::These(numbers) => {
                    for queue in numbers {
                        seen.add(format!("queue {queue}"), &queues.queues.origin)?;
                    }
                }
            }
        }
    }
    for (port, origin) in ports(rules) {
        seen.add(format!("port {port}"), origin)?;
    }
    Ok(())
}

fn ports<'a>(rules: &'a [&DeviceRule]) -> impl Iterator<Item = (Port, &'a Origin)> {
    rules.iter().flat_map(|rule| {
        let of_queues = rule.queues.iter().filter_map(|queues| queues.ports.as_ref());
        let of_flows = rule.flows.iter().map(|flows| &flows.ports);
        of_queues.chain(of_flows).flat_map(|ports| ports.value.iter().map(|port| (*port, &ports.origin)))
    })
}

/// The settings that have a rule so far, with its position.
struct Seen<'a> {
    of: &'a str,
    places: BTreeMap<String, Origin>,
}

impl<'a> Seen<'a> {
    fn new(of: &'a str) -> Self {
        Self { of, places: BTreeMap::new() }
    }

    fn add(&mut self, what: String, origin: &Origin) -> Result<(), PolicyError> {
        match self.places.insert(what.clone(), origin.clone()) {
            None => Ok(()),
            Some(first) => {
                let what = format!("{what} of {}", self.of);
                Err(PolicyError::TwoRules { what, first, second: origin.clone() })
            }
        }
    }
}
