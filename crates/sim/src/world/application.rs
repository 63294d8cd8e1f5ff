//! Cost of a request in the application: processor time, and time on a device.

use super::World;
use crate::events::Event;
use crate::profile::Cost;

impl World<'_> {
    /// Returns the cost of the oldest unserved request of a connection on an undisturbed processor.
    pub(super) fn request_cost(&self, conn: u32) -> Cost {
        let profile = self.profile;
        if !self.clients.varied {
            return profile.server.request;
        }
        let flight = self.clients.unserved(conn);
        let mut cost = match self.scenario.service {
            None => profile.server.request,
            Some(_) => {
                let processor = &profile.processor;
                let instructions =
                    flight.service_ns * processor.frequency_mhz / processor.warm_cycles_per_1000_instructions;
                Cost { instructions, stall_cycles: 0 }
            }
        };
        if let (Some(_), Some(copy)) = (&self.scenario.sizes, profile.server.kilobyte) {
            let bytes = u64::from(flight.request_bytes) + u64::from(flight.response_bytes);
            let part = |figure: u64| figure * bytes / 1_024;
            cost = cost + Cost { instructions: part(copy.instructions), stall_cycles: part(copy.stall_cycles) };
        }
        cost
    }

    /// Ends the service of the oldest request of a connection, and starts the device if there is one.
    pub(super) fn served(&mut self, conn: u32) {
        if self.scenario.device.is_none() {
            return self.answer(conn);
        }
        let ready_at = self.clients.start_device(conn, self.now);
        self.events.push(ready_at, Event::Device { conn });
    }
}
