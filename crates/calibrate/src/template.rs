//! The text of a profile before the fit, with the source of every figure.

use std::fmt::Write as _;

use abey_sim::profile::Delivery;

use crate::costs::{Costs, Operation};
use crate::fit::parameters;
use crate::training::FITTED_MODES;

/// The subject of a profile.
#[derive(Clone, Debug)]
pub struct Subject<'a> {
    /// The world.
    pub world: Delivery,
    /// The measured costs.
    pub costs: &'a Costs,
    /// Description of machine, server and wire.
    pub description: String,
    /// Number of connections of the bench.
    pub connections: u32,
    /// The fitted loads in requests per second.
    pub loads: (u64, u64),
}

/// The source of a figure.
enum Source {
    /// The cost of a measured operation.
    Measured(Operation),
    /// Fitted, beginning with the cost of a measured operation.
    From(Operation),
    /// A given value, with the reason.
    Because(&'static str),
}

use Source::{Because, From, Measured};

struct Writer<'a> {
    subject: &'a Subject<'a>,
    text: String,
    section: &'static str,
}

/// Returns the text of the profile.
pub fn text(subject: &Subject<'_>) -> String {
    let mut writer = Writer { subject, text: String::new(), section: "" };
    writer.head();
    match subject.world {
        Delivery::Linux => linux(&mut writer),
        Delivery::Datapath => datapath(&mut writer),
    }
    writer.text
}

impl Writer<'_> {
    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn head(&mut self) {
        let Subject { description, connections, world, .. } = self.subject;
        let quoted = toml::Value::String(description.clone());
        let head = format!(
            "# Written by `abey calibrate`. Costs are in nanoseconds: the processor has 1000 MHz and one cycle per\n\
             # instruction. \"measured\": in isolation, a low quantile of many batches. {}\n\
             description = {quoted}\n\n[calibrated]\nworld = \"{world}\"\nqueues = 1\nconnections = {connections}",
            self.fitted_to()
        );
        self.line(&head);
    }

    fn fitted_to(&self) -> String {
        let (low, high) = self.subject.loads;
        format!(
            "\"fitted\": to average, p50, p95\n# and CPU of {} at {low} and {high} requests per second.",
            FITTED_MODES.join(", ")
        )
    }

    fn section(&mut self, name: &'static str) {
        self.section = name;
        self.line(&format!("\n[{name}]"));
    }

    /// Writes a cost in nanoseconds.
    fn cost(&mut self, key: &str, ns: f64, source: Source) {
        let (ns, why) = self.figure(&format!("{key}.instructions"), ns, source);
        self.line(&format!("{:<50} # {why}", format!("{key} = {{ instructions = {ns} }}")));
    }

    /// Writes a number.
    fn plain(&mut self, key: &str, value: f64, source: Source) {
        let (value, why) = self.figure(key, value, source);
        self.line(&format!("{:<50} # {why}", format!("{key} = {value}")));
    }

    /// Writes another value, which is not fitted.
    fn word(&mut self, key: &str, value: &str, why: &str) {
        self.line(&format!("{:<50} # {why}", format!("{key} = {value}")));
    }

    fn figure(&self, key: &str, given: f64, source: Source) -> (u64, String) {
        let full = format!("{}.{key}", self.section);
        let parameter = parameters(self.subject.world).iter().find(|parameter| parameter.key == full);
        let measured = |operation| self.subject.costs.ns(operation);
        let (value, mut why) = match source {
            Measured(operation) => (measured(operation).unwrap_or(given), source_text(operation, measured(operation))),
            From(operation) => (measured(operation).unwrap_or(given), source_text(operation, measured(operation))),
            Because(why) => (given, why.to_owned()),
        };
        let value = match parameter {
            Some(parameter) => value.clamp(parameter.low, parameter.high),
            None => value,
        };
        if parameter.is_some() {
            why = match source {
                Because("") => "fitted".to_owned(),
                _ => format!("fitted, from {}: {why}", value.round()),
            };
        }
        (value.round() as u64, why)
    }
}

fn source_text(operation: Operation, ns: Option<f64>) -> String {
    match ns {
        Some(_) => format!("measured: {}", operation.how()),
        None => "estimated: it was not measured".to_owned(),
    }
}

fn processor(writer: &mut Writer<'_>) {
    writer.section("processor");
    writer.plain("frequency_mhz", 1_000.0, Because("the unit: one cycle is a nanosecond"));
    writer.plain("warm_cycles_per_1000_instructions", 1_000.0, Because("the unit: so is one instruction"));
    writer.plain("recovery_instructions", 1_000.0, Because("estimated: a microsecond's work refills half"));
}

fn idle(writer: &mut Writer<'_>) {
    writer.section("idle");
    writer.cost("enter", 500.0, Because("estimated: on no request's path"));
    writer.plain("exit_ns", 10_000.0, From(Operation::WakeOtherCpu));
    writer.plain("cold_cycles", 2_000.0, Because(""));
    writer.plain("cold_half_ns", 10_000.0, Because(""));
}

fn linux(writer: &mut Writer<'_>) {
    let receive = writer.subject.costs.ns(Operation::VethReceive).unwrap_or(2_000.0);
    processor(writer);
    idle(writer);
    writer.section("interrupt");
    writer.cost("nic", receive * 0.1, Because("a tenth of what was measured for veth to receive: raising the softirq"));
    writer.cost("timer", 2_000.0, From(Operation::TimerInterrupt));
    writer.plain("timer_late_ns", 5_000.0, From(Operation::TimerLate));
    writer.plain("cold_cycles", 0.0, Because("in interrupt.timer"));
    writer.section("softirq");
    writer.cost("enter", receive * 0.1, Because("a tenth of what was measured for veth to receive"));
    writer.cost("poll", receive * 0.2, Because("begins with a fifth of what was measured for veth to receive"));
    writer.cost("request", receive * 0.6, Because("begins with the rest of it"));
    writer.cost("ack", 0.0, Because("the next request acknowledges"));
    writer.cost("unmask", 100.0, Because("estimated: a flag in memory"));
    disturbance(writer);
    threads(writer);
    writer.cost("remote_wake", 2_000.0, Measured(Operation::WakeCharged));
    writer.section("epoll");
    writer.cost("wait", 200.0, Measured(Operation::EpollWait));
    writer.cost("event", 50.0, Measured(Operation::EpollEvent));
    writer.section("busy_poll");
    writer.cost("iteration", 300.0, Because(""));
    writer.cost("end", 500.0, Because(""));
    server(writer, 7_000.0);
    nic(writer, "sender", "veth: the CPU that sends puts the packet into the ring and runs the softirq");
    client(writer, 8_000.0, (2.0, ""));
}

fn datapath(writer: &mut Writer<'_>) {
    let frame = writer.subject.costs.ns(Operation::MemoryDatagram).unwrap_or(1_000.0);
    processor(writer);
    idle(writer);
    writer.plain("exit_half_ns", 5_000.0, Because(""));
    writer.section("interrupt");
    writer.cost("nic", 3_000.0, From(Operation::WokenCpu));
    let timed = writer.subject.costs.ns(Operation::TimedSleep).unwrap_or(20_000.0);
    writer.cost("timer", timed * 0.5, Because("begins with half of a measured timed sleep"));
    writer.plain("timer_late_ns", 1_000.0, Because(""));
    writer.plain("cold_cycles", 0.0, Because("in interrupt.nic and interrupt.timer"));
    writer.section("softirq");
    writer.cost("enter", 50.0, Because("estimated: a call"));
    writer.cost("poll", 150.0, Measured(Operation::EmptyPoll));
    writer.cost("request", frame * 0.5, Because("begins with half of a measured datagram, both ends"));
    writer.cost("ack", 0.0, Because("the next request acknowledges"));
    writer.cost("unmask", 100.0, Because("estimated: a flag in memory"));
    disturbance(writer);
    threads(writer);
    writer.cost("remote_wake", 2_000.0, Measured(Operation::WakeCharged));
    writer.section("service_thread");
    writer.cost("wake", 10_000.0, From(Operation::WokenCpu));
    let timed = writer.subject.costs.ns(Operation::TimedSleep).unwrap_or(20_000.0);
    writer.cost("sleep", timed * 0.5, Because("begins with half of a measured timed sleep"));
    writer.cost("arm", 2_000.0, From(Operation::TimerSet));
    writer.cost("interrupt", 12_000.0, Measured(Operation::TimerInterrupt));
    writer.section("epoll");
    writer.cost("wait", 200.0, Because(""));
    writer.cost("event", 30.0, Because("estimated: no system call"));
    writer.section("busy_poll");
    writer.cost("iteration", 0.0, Because("in softirq.poll, which was measured by such iterations"));
    writer.cost("end", 200.0, Because(""));
    server(writer, 2_000.0);
    nic(writer, "server", "the peer's signal wakes a thread of the server");
    client(writer, 3_000.0, (0.0, "its one thread spins and receives each response at once"));
}

fn disturbance(writer: &mut Writer<'_>) {
    writer.section("disturbance");
    writer.plain("packet_cycles", 0.0, Because("not measured separately"));
    writer.plain("request_cycles", 0.0, Because("not measured separately"));
}

fn threads(writer: &mut Writer<'_>) {
    writer.section("thread");
    writer.cost("wake", 1_500.0, From(Operation::WakeSameCpu));
    writer.plain("cold_cycles", 0.0, Because("in wake"));
    writer.plain("slice_ns", 3_000_000.0, Because("the scheduler's base slice"));
}

fn server(writer: &mut Writer<'_>, request: f64) {
    writer.section("server");
    writer.cost("request", request, Because(""));
    writer.plain("backlog_cycles", 0.0, Because("not measured separately"));
    writer.plain("backlog_requests", 1.0, Because("no effect without backlog_cycles"));
    writer.plain("max_events", 64.0, Because("no effect with so few connections"));
}

fn nic(writer: &mut Writer<'_>, interrupts: &str, why: &str) {
    writer.section("nic");
    writer.word("interrupts", &format!("\"{interrupts}\""), why);
    writer.plain("ring_packets", 256.0, Because("the ring of a veth, and of the shared-memory NIC"));
    writer.word("adaptive", "false", "there is no moderation");
    writer.plain("adaptation_noise_percent", 0.0, Because("there is no moderation"));
    writer.word("rx_timer", "\"first-packet\"", "there is no moderation");
    writer.plain("rx_usecs", 0.0, Because("there is no moderation"));
    writer.plain("rx_frames", 1.0, Because("there is no moderation"));
    writer.plain("tx_complete_ns", 0.0, Because("transmissions do not interrupt"));
    writer.plain("tx_usecs", 10_000_000.0, Because("transmissions do not interrupt"));
    writer.plain("tx_frames", 1_000_000.0, Because("transmissions do not interrupt"));
    writer.plain("wire_mbits_per_s", 100_000.0, Because("estimated: memory"));
}

fn client(writer: &mut Writer<'_>, base: f64, (late, why): (f64, &'static str)) {
    writer.section("client");
    writer.plain("base_ns", base, Because(""));
    writer.plain("jitter_ns", 1_000.0, Because(""));
    writer.plain("late_millionths", 1_000_000.0, Because("every response is received by the client's one thread"));
    writer.plain("late_ns", 1.0, Because("which has nothing else to do"));
    writer.plain("late_ns_per_connection_rps", late, Because(why));
    writer.plain("ack_ns", 0.0, Because("there are no acknowledgements of their own"));
    writer.word("delayed_acks", "true", "the next request acknowledges");
    for key in ["stall_millionths", "stall_ns"] {
        writer.plain(key, 0.0, Because("not measured separately"));
    }
    writer.plain("skip_ns", 100_000_000_000.0, Because("a request that is due is sent, however late"));
    writer.plain("request_bytes", 100.0, Because("a get of a key of some tens of bytes, with headers"));
    writer.plain("response_bytes", 150.0, Because("its value, with headers"));
}

/// Returns the description of a profile: machine, server and wire.
pub fn description(machine: &str, server: &str, wire: &str) -> String {
    let mut text = String::new();
    let _ = write!(text, "{machine}; {server}; {wire}");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use abey_sim::Profile;

    use super::*;

    #[test]
    fn the_profile_of_each_world_has_every_parameter_and_a_source_for_every_figure() {
        let costs = Costs::default();
        for world in [Delivery::Linux, Delivery::Datapath] {
            let description = description("a \"machine\"", "a server", "a wire");
            let subject = Subject { world, costs: &costs, description, connections: 20, loads: (10_000, 40_000) };
            let text = text(&subject);
            let profile = Profile::parse("calibrated.toml", &text).expect("a profile");
            assert_eq!(profile.calibrated.map(|calibrated| calibrated.connections), Some(20));
            let figures = text.lines().filter(|line| line.contains(" = ")).skip(4);
            assert!(figures.into_iter().all(|line| line.contains("# ")), "{text}");
            let fitted = text.lines().filter(|line| line.contains("# fitted")).count();
            assert_eq!(fitted, parameters(world).len(), "{text}");
        }
    }
}
