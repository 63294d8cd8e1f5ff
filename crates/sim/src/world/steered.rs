//! Runs whose load and settings change while they are simulated.

use abey_delivery::record::Call;
use abey_delivery::{Nanos, NapiSettings};

use super::World;
use crate::events::Event;
use crate::outcome::Outcome;
use crate::profile::{InputError, Profile};
use crate::scenario::{Load, Scenario};

/// Load and settings of the next interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Next {
    /// Settings of every NAPI instance. The settings of epoll contexts and event loops do not change.
    pub napi: NapiSettings,
    /// Requests per second, greater than 0.
    pub load: f64,
}

/// Simulates an open-loop scenario in intervals of its `duration`, and calls `steer` with the time since the warm-up
/// and the figures of each interval. The returned load and settings take effect immediately, whatever is in progress;
/// `None` ends the run. [`Outcome::requests`], [`answers`](Outcome::answers), [`skipped`](Outcome::skipped) and
/// [`packets`](Outcome::packets) count from the beginning; all other figures are those of the interval.
///
/// # Errors
/// If the scenario is invalid or has no open loop, or if `steer` returns something invalid.
///
/// # Panics
/// As [`run`](crate::run).
pub fn run_steered(
    profile: &Profile,
    scenario: &Scenario,
    steer: &mut dyn FnMut(Nanos, &Outcome) -> Option<Next>,
) -> Result<(), InputError> {
    profile.validate()?;
    scenario.validate(profile)?;
    let Load::Open(mut load) = scenario.load else {
        let allowed = "a run whose load changes is an open loop, with requests per second";
        return Err(InputError::Value { key: "load", value: scenario.load.to_string(), allowed });
    };
    let host = scenario.nic.apply(profile);
    let mut world = World::new(&host, scenario, None);
    world.begin(None);
    let begin = scenario.warmup;
    loop {
        world.run();
        let at = world.clock().saturating_sub(begin);
        let Some(next) = steer(at, &world.figures()) else { return Ok(()) };
        world.go_on(&next, next.load != load)?;
        load = next.load;
    }
}

impl World<'_> {
    fn go_on(&mut self, next: &Next, other_load: bool) -> Result<(), InputError> {
        if let Err(error) = next.napi.validate() {
            let allowed = "settings make sense together";
            return Err(InputError::Value { key: "settings", value: error.to_string(), allowed });
        }
        if !(next.load.is_finite() && next.load > 0.0) {
            let allowed = "a number of requests per second above 0";
            return Err(InputError::Value { key: "load", value: next.load.to_string(), allowed });
        }
        self.measure();
        if next.napi != self.settings.napi {
            self.settings.napi = next.napi;
            for queue in &mut self.queues {
                // A change of settings requests no action; it takes effect at the next schedule.
                let _ = queue.napi.act(Call::Settings(next.napi));
                if let Some(monitor) = &mut queue.monitor {
                    monitor.handle_settings(&next.napi);
                }
            }
        }
        if other_load {
            self.clients.set_rate(self.profile, self.scenario, next.load, self.now);
        }
        self.events.push(self.now + self.scenario.duration.as_nanos(), Event::End);
        self.start_touched();
        Ok(())
    }
}
