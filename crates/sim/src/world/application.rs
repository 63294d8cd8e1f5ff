//! What a request takes from the application: processor time, and time on a device.

use super::World;
use crate::events::Event;
use crate::profile::Cost;

impl World<'_> {
    /// The price of the oldest request of a connection that is not served yet, on an undisturbed processor.
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

    /// The application is done with the oldest request of a connection; a device may not be.
    pub(super) fn served(&mut self, conn: u32) {
        if self.scenario.device.is_none() {
            return self.answer(conn);
        }
        let ready_at = self.clients.start_device(conn, self.now);
        self.events.push(ready_at, Event::Device { conn });
    }
}
