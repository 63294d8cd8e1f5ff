//! Validation of scenarios.

use abey_delivery::{Nanos, PollContext};

use super::{Arrivals, Load, NicSettings, Responder, Scenario};
use crate::distribution::Size;
use crate::input::InputError;
use crate::profile::{Cost, Profile};
use crate::topology::Topology;
use crate::wire::Framing;

/// Longest run in virtual time.
const LONGEST: Nanos = Nanos::from_millis(3_600_000);

impl Scenario {
    /// Checks the scenario.
    ///
    /// # Errors
    /// The first invalid value.
    pub fn validate(&self, profile: &Profile) -> Result<(), InputError> {
        let wrong = |key, value: String, allowed| Err(InputError::Value { key, value, allowed });
        if self.queues == 0 || self.queues > 1_024 {
            return wrong("queues", self.queues.to_string(), "a server has 1 to 1024 queues");
        }
        self.topology.validate(self.queues)?;
        if self.connections == 0 || self.connections > 10_000_000 {
            return wrong("connections", self.connections.to_string(), "clients open 1 to 10000000 connections");
        }
        let receives = matches!(self.responder, Responder::RoundTrip | Responder::Receive);
        if self.settings.socket_busy_poll.is_some() && !receives {
            let allowed =
                "an event loop does not block in a receive: add server = \"receive\", or choose napibusy or fullbusy";
            return wrong("modes", self.mode.to_string(), allowed);
        }
        if self.settings.epoll.is_some() && self.responder != Responder::EventLoop {
            let allowed = "only an event loop has an epoll context that busy polls: leave out `server`";
            return wrong("modes", self.mode.to_string(), allowed);
        }
        self.nic.validate(profile)?;
        if let Some(epoll) = self.settings.epoll {
            epoll.validate()?;
        }
        if self.responder == Responder::RoundTrip {
            self.validate_round_trip()?;
        }
        if self.responder == Responder::Stack && (self.service.is_some() || self.device.is_some()) {
            return wrong("service", "given".to_owned(), "what the stack answers itself reaches no application");
        }
        if self.duration.is_zero() {
            return wrong("duration", self.duration.to_string(), "measure for longer than nothing");
        }
        for (key, span) in [("duration", self.duration), ("warmup", self.warmup)] {
            if span > LONGEST {
                return wrong(key, span.to_string(), "a run takes at most an hour of virtual time");
            }
        }
        self.validate_polling(profile)?;
        self.validate_clients()?;
        self.validate_requests()?;
        self.validate_load(profile)
    }

    /// Checks that repeated polling takes time; otherwise virtual time would not advance.
    fn validate_polling(&self, profile: &Profile) -> Result<(), InputError> {
        let napi = &self.settings.napi;
        let spins = self.settings.epoll.is_some()
            || self.settings.socket_busy_poll.is_some()
            || napi.context == PollContext::BusyThread
            || napi.hold.is_some();
        let nothing = |cost: Cost| cost.instructions == 0 && cost.stall_cycles == 0;
        if spins && nothing(profile.softirq.poll) {
            let allowed = "a poll takes at least an instruction in a mode that polls again and again";
            return Err(InputError::Value { key: "softirq.poll", value: "nothing".to_owned(), allowed });
        }
        Ok(())
    }

    fn validate_clients(&self) -> Result<(), InputError> {
        let wrong = |key, value: String, allowed| Err(InputError::Value { key, value, allowed });
        if self.outstanding == 0 || u64::from(self.outstanding) * u64::from(self.connections) > 10_000_000 {
            let allowed = "a connection has 1 request outstanding or more, all together at most 10000000";
            return wrong("outstanding", self.outstanding.to_string(), allowed);
        }
        match self.arrivals {
            Arrivals::Bursts(burst) if !(1..=1_000_000).contains(&burst) => {
                return wrong("arrivals.bursts", burst.to_string(), "a burst has 1 to 1000000 requests");
            }
            Arrivals::Lognormal { cv } if !(cv.is_finite() && (0.0..=100.0).contains(&cv)) => {
                return wrong("arrivals.cv", cv.to_string(), "a coefficient of variation is from 0 to 100");
            }
            _ => {}
        }
        if self.load == Load::Closed && self.arrivals != Arrivals::Poisson {
            return wrong(
                "arrivals",
                "given".to_owned(),
                "a closed loop sends when it has the answer: give load a rate",
            );
        }
        if let Some(think) = self.think {
            think.validate("think")?;
            if self.load != Load::Closed {
                return wrong("think", "given".to_owned(), "only the clients of a closed loop (load = \"max\") think");
            }
        }
        Ok(())
    }

    /// Checks the options of a round trip between two hosts, which allows few.
    fn validate_round_trip(&self) -> Result<(), InputError> {
        let wrong = |key, value: String, allowed| Err(InputError::Value { key, value, allowed });
        if self.queues != 2 {
            return wrong("queues", self.queues.to_string(), "a round trip between two hosts has two queues");
        }
        if self.topology != Topology::default() {
            let threads = self.topology.threads(2).to_string();
            return wrong("threads", threads, "a round trip has one CPU and one thread on each host, both pinned");
        }
        if self.load != Load::Closed {
            return wrong("load", self.load.to_string(), "round trips are a closed loop: max");
        }
        if self.outstanding != 1 {
            return wrong("outstanding", self.outstanding.to_string(), "a round trip is one request");
        }
        for (key, given) in [("sizes", self.sizes.is_some()), ("think", self.think.is_some())] {
            if given {
                return wrong(key, "given".to_owned(), "round trips have the profile's sizes and no pauses");
            }
        }
        Ok(())
    }

    fn validate_requests(&self) -> Result<(), InputError> {
        if let Some(service) = self.service {
            service.validate("service")?;
        }
        if let Some(device) = self.device {
            device.validate("device")?;
        }
        let Some(sizes) = &self.sizes else { return Ok(()) };
        sizes.request.validate("sizes.request")?;
        sizes.response.validate("sizes.response")
    }

    fn validate_load(&self, profile: &Profile) -> Result<(), InputError> {
        let Load::Open(rate) = self.load else { return Ok(()) };
        let wrong = |allowed| Err(InputError::Value { key: "load", value: rate.to_string(), allowed });
        if !(rate.is_finite() && rate > 0.0) {
            return wrong("a rate is above 0 requests per second");
        }
        let (request, response) = self.wire_bytes(profile);
        for (what, bytes) in [("requests", request), ("answers", response)] {
            let most = profile.nic.wire_mbits_per_s as f64 * 1e6 / (bytes.max(1.0) * 8.0);
            if rate > most {
                return Err(InputError::WireOverload { load: rate, what, most });
            }
        }
        Ok(())
    }

    /// Returns the mean bytes of a request and an answer on the wire.
    fn wire_bytes(&self, profile: &Profile) -> (f64, f64) {
        let Some(sizes) = &self.sizes else {
            return (profile.client.request_bytes as f64, profile.client.response_bytes as f64);
        };
        let framing = Framing::new(&profile.nic);
        let mean = |size: &Size| framing.message(size.mean() as u64).wire_bytes as f64;
        (mean(&sizes.request), mean(&sizes.response))
    }
}

impl NicSettings {
    fn validate(&self, profile: &Profile) -> Result<(), InputError> {
        let wrong = |key, value: String, allowed| Err(InputError::Value { key, value, allowed });
        let adaptive = self.adaptive.unwrap_or(profile.nic.adaptive);
        let ignored = "moderation that adapts itself ignores it: add adaptive = false";
        match (self.rx_usecs, self.rx_frames) {
            (Some(usecs), _) if adaptive => return wrong("nic.rx_usecs", usecs.to_string(), ignored),
            (_, Some(frames)) if adaptive => return wrong("nic.rx_frames", frames.to_string(), ignored),
            (Some(usecs), _) if usecs > 1_000_000 => {
                return wrong("nic.rx_usecs", usecs.to_string(), "an interrupt waits at most 1000000 us");
            }
            (_, Some(frames)) if !(1..=1_000_000).contains(&frames) => {
                return wrong("nic.rx_frames", frames.to_string(), "an interrupt comes after 1 to 1000000 packets");
            }
            _ => {}
        }
        match self.ring_packets {
            Some(packets) if !(1..=1_000_000).contains(&packets) => {
                wrong("nic.ring_packets", packets.to_string(), "a ring holds 1 to 1000000 packets")
            }
            _ => Ok(()),
        }
    }
}
