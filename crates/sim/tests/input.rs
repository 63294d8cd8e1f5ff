//! Invalid input: one sentence with the file, the line, the key, the value and what is allowed.

use abey_delivery::Nanos;
use abey_sim::{InputError, Load, Profile, Scenario, ScenarioFile, Size, Sizes, run};
use proptest::prelude::*;

fn shipped() -> String {
    Profile::SHIPPED[0].1.to_owned()
}

fn profile_error(text: &str) -> String {
    Profile::parse("mine.toml", text).expect_err("bad input").to_string()
}

/// Returns the error of a scenario file, when it is parsed or checked.
fn scenario_error(text: &str) -> Result<(), InputError> {
    let file = ScenarioFile::parse("mine.toml", text)?;
    file.validate(&file.load_profile()?)
}

/// Checks that the message is one line and has all parts.
fn assert_message(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "no `{part}` in {message}");
    }
    assert!(!message.contains('\n'), "more than a line: {message}");
}

#[test]
fn shipped_profiles_are_valid() {
    for (name, _) in Profile::SHIPPED {
        Profile::load(name).expect(name);
    }
}

/// Profiles with one modified line: what the line contains, its replacement, and the message.
const PROFILES: [(&str, &str, &[&str]); 17] = [
    ("frequency_mhz", "frequency_ghz = 3", &["unknown field `frequency_ghz`", "frequency_mhz"]),
    ("frequency_mhz", "frequency_mhz = 0", &["processor.frequency_mhz = 0", "at least 1 MHz"]),
    ("frequency_mhz", "frequency_mhz = \"3 GHz\"", &["frequency_mhz", "3 GHz", "whole number"]),
    ("frequency_mhz", "frequency_mhz = 3280000000", &["processor.frequency_mhz = 3280000000", "at most 100000"]),
    ("recovery_instructions", "recovery_instructions = 0", &["recovery_instructions = 0", "at least 1"]),
    ("exit_ns", "exit_ns = -5", &["exit_ns = -5", "-5"]),
    ("exit_ns", "exit_ns = 1.5", &["exit_ns = 1.5", "whole number"]),
    ("exit_ns", "exit_ns = 1000000000000", &["idle.exit_ns = 1000000000000", "at most 100000000000"]),
    ("slice_ns", "slice_ns = 10", &["thread.slice_ns = 10", "at least 1000 ns"]),
    ("ring_packets", "ring_packets = 0", &["nic.ring_packets = 0", "at least 1 packet"]),
    ("rx_timer", "rx_timer = \"later\"", &["rx_timer", "later", "first-packet"]),
    ("adaptation_noise", "adaptation_noise_percent = 200", &["nic.adaptation_noise_percent = 200", "at most 100"]),
    ("wire_mbits", "wire_mbits_per_s = 0", &["nic.wire_mbits_per_s = 0", "at least 1 Mbit/s"]),
    ("wire_mbits", "mtu_bytes = 100\nwire_mbits_per_s = 1", &["nic.mtu_bytes = 100", "576 to 65535"]),
    ("max_events", "max_events = 0", &["server.max_events = 0", "at least 1 event"]),
    ("late_millionths", "late_millionths = 2000000", &["client.late_millionths = 2000000", "at most 1000000"]),
    ("description", "description = \"unfinished", &["description = \"unfinished"]),
];

#[test]
fn an_invalid_profile_is_rejected_with_its_line() {
    for (key, instead, parts) in PROFILES {
        let text = shipped();
        let line = 1 + text.lines().position(|line| line.starts_with(key)).expect(key);
        let changed: Vec<&str> =
            text.lines().enumerate().map(|(at, old)| if at + 1 == line { instead } else { old }).collect();
        let message = profile_error(&(changed.join("\n") + "\n"));
        assert_message(&message, &[&format!("mine.toml, line {line}: ")]);
        assert_message(&message, parts);
    }
}

#[test]
fn a_missing_key_is_named_with_its_section() {
    let missing: String =
        shipped().lines().filter(|line| !line.starts_with("base_ns")).map(|line| format!("{line}\n")).collect();
    let line = 1 + missing.lines().position(|line| line == "[client]").expect("the section");
    assert_message(
        &profile_error(&missing),
        &[&format!("mine.toml, line {line}"), "[client]", "missing field `base_ns`"],
    );
    assert_message(
        &profile_error("description = \"nothing else\"\n"),
        &["mine.toml, line 1", "missing field `processor`"],
    );
}

#[test]
fn an_unknown_profile_is_reported_with_the_shipped_ones() {
    let error = Profile::load("epyc-9999").expect_err("no such profile").to_string();
    assert_message(&error, &["epyc-9999", "epyc-7662"]);
    let error = Profile::load("/nowhere/at-all.toml").expect_err("no such file").to_string();
    assert_message(&error, &["/nowhere/at-all.toml"]);
}

/// Third lines of a scenario file, and the message.
const THIRD_LINES: [(&str, &[&str]); 59] = [
    ("cpus = 0", &["line 3", "cpus = 0", "1 to 1024 CPUs"]),
    ("cpus = -1", &["line 3", "cpus = -1", "whole number"]),
    ("threads = 0", &["line 3", "threads = 0", "1 to 1024 threads"]),
    ("hyperthreads = true", &["line 3", "hyperthreads = true", "even number of CPUs"]),
    ("irq_cpus = [0, 0]", &["line 3", "irq_cpus = [0, 0]", "one CPU for each queue"]),
    ("irq_cpus = [1]", &["line 3", "irq_cpus = [1]", "less than `cpus`"]),
    ("irq_cpus = 1", &["line 3", "irq_cpus = 1"]),
    ("pinned = \"no\"", &["line 3", "pinned = \"no\"", "boolean"]),
    ("pollers_pinned = 0", &["line 3", "pollers_pinned = 0", "boolean"]),
    ("queue = 2", &["line 3", "`queue`", "queues"]),
    ("queues = 0", &["line 3", "queues = 0", "1 to 1024 queues"]),
    ("queues = -1", &["line 3", "queues = -1", "whole number"]),
    ("queues = 2000", &["line 3", "queues = 2000", "1 to 1024"]),
    ("queues = \"2\"", &["line 3", "queues = \"2\"", "string", "whole number"]),
    ("connections = 0", &["line 3", "connections = 0", "1 to 10000000 connections"]),
    ("connections = 20000000", &["line 3", "connections = 20000000", "10000000"]),
    ("outstanding = 0", &["line 3", "outstanding = 0", "1 request outstanding or more"]),
    ("outstanding = 1000000", &["line 3", "outstanding = 1000000", "at most 10000000"]),
    ("duration = \"20\"", &["line 3", "duration = \"20\"", "no unit"]),
    ("duration = 20", &["line 3", "duration = 20", "a duration with its unit"]),
    ("duration = \"-20us\"", &["line 3", "duration = \"-20us\"", "20us"]),
    ("duration = \"0us\"", &["line 3", "duration = ", "longer than nothing"]),
    ("duration = \"90000s\"", &["line 3", "duration = ", "at most an hour"]),
    ("warmup = \"90000s\"", &["line 3", "warmup = ", "at most an hour"]),
    ("warmup = \"soon\"", &["line 3", "warmup", "soon"]),
    ("seed = -1", &["line 3", "seed = -1", "whole number"]),
    ("linux = \"yes\"", &["line 3", "linux", "boolean"]),
    ("profile = \"epyc-9999\"", &["line 3", "`epyc-9999`", "epyc-7662"]),
    ("profile = \"/nowhere/at-all.toml\"", &["line 3", "/nowhere/at-all.toml"]),
    ("modes = [\"base\"]", &["line 3", "duplicate key"]),
    ("load = ", &["line 3", "load ="]),
    ("arrivals = \"often\"", &["line 3", "often", "poisson"]),
    ("arrivals = { bursts = 0 }", &["line 3", "arrivals.bursts = 0", "1 to 1000000 requests"]),
    ("arrivals = { burst = 5 }", &["line 3", "burst", "bursts"]),
    ("arrivals = { cv = -1.0 }", &["line 3", "arrivals.cv = -1", "0 to 100"]),
    ("think = \"1ms\"", &["line 3", "think", "closed loop"]),
    ("service = \"8\"", &["line 3", "service = \"8\"", "no unit"]),
    ("service = 8", &["line 3", "service = 8", "a duration such as"]),
    ("service = { mean = \"8us\", distribution = \"normal\" }", &["line 3", "normal", "lognormal"]),
    ("service = { mean = \"8us\", cv = 1.0 }", &["line 3", "no distribution", "lognormal"]),
    ("service = { median = \"9us\", p99 = \"3us\" }", &["line 3", "service = median 9us, p99 3us", "not below"]),
    ("service = { mean = \"8us\", distribution = \"lognormal\", cv = nan }", &["line 3", "cv NaN", "0 to 100"]),
    ("device = { median = \"0us\", p99 = \"3us\" }", &["line 3", "device = ", "above 0"]),
    ("device = \"9000s\"", &["line 3", "device = ", "an hour at most"]),
    ("sizes = { request = 5 }", &["line 3", "missing field `response`"]),
    ("sizes = { request = 0, response = 5 }", &["line 3", "sizes.request = 0", "1 to 1073741824 bytes"]),
    ("sizes = { request = -1, response = 5 }", &["line 3", "a number of bytes"]),
    ("sizes = { request = 5, response = [] }", &["line 3", "sizes.response = a list of 0", "1 to 10000 sizes"]),
    ("sizes = { request = 5, response = [[100, -1]] }", &["line 3", "[100, -1]", "weight above 0"]),
    ("sizes = { request = { min = 9, max = 5 }, response = 5 }", &["line 3", "min 9, max 5", "not above max"]),
    ("sizes = { request = { median = 9, sigma = 9.0 }, response = 5 }", &["line 3", "sigma 9", "0 to 5"]),
    ("sizes = { request = 100000, response = 5 }", &["load = 400000", "requests"]),
    ("sizes = { request = 5, response = 100000 }", &["load = 400000", "answers"]),
    ("nic = { rx_usec = 5 }", &["line 3", "rx_usec", "rx_usecs"]),
    ("nic = { rx_usecs = 5 }", &["line 3", "nic.rx_usecs = 5", "adaptive = false"]),
    ("nic = { adaptive = false, rx_frames = 0 }", &["line 3", "nic.rx_frames = 0", "1 to 1000000"]),
    ("nic = { ring_packets = 0 }", &["line 3", "nic.ring_packets = 0", "1 to 1000000"]),
    ("server = \"threads\"", &["line 3", "threads", "event-loop"]),
    ("server = \"stack\"\nservice = \"5us\"", &["line 4", "service", "no application"]),
];

#[test]
fn an_invalid_scenario_is_rejected_with_its_line() {
    let good = "modes = [\"base\"]\nload = \"400k\"\n";
    scenario_error(good).expect("a good one");
    for (line, parts) in THIRD_LINES {
        let message = scenario_error(&format!("{good}{line}\n")).expect_err(line).to_string();
        assert_message(&message, &["mine.toml, line "]);
        assert_message(&message, parts);
    }
}

#[test]
fn invalid_modes_and_loads_are_refused() {
    for (modes, load, parts) in [
        ("[\"turbo\"]", "1k", ["line 1", "turbo", "suspendX"]),
        ("[]", "1k", ["line 1", "modes = []", "at least one mode"]),
        ("\"base\"", "1k", ["line 1", "modes = \"base\"", "a list in brackets"]),
        ("[\"sockbusy50\"]", "1k", ["line 1", "modes = sockbusy50", "server = \"receive\""]),
        ("[\"base\"]", "lots", ["line 2", "`lots` is not a load", "50k"]),
        ("[\"base\"]", "-5k", ["line 2", "-5k", "50k"]),
        ("[\"base\"]", "0", ["line 2", "`0` is not a load", "max"]),
        ("[\"base\"]", "900M", ["line 2", "load = 900000000", "the wire carries at most"]),
        ("[\"base\"]", "inf", ["line 2", "inf", "50k"]),
    ] {
        let text = format!("modes = {modes}\nload = \"{load}\"\n");
        assert_message(&scenario_error(&text).expect_err(&text).to_string(), &parts);
    }
}

#[test]
fn an_error_in_a_section_has_the_line_of_its_key() {
    let text = "modes = [\"base\"]\nload = \"max\"\n\n# how large\n[sizes]\nresponse = 5\nrequest = 0\n";
    let message = scenario_error(text).expect_err("no bytes").to_string();
    assert_eq!(message, "mine.toml, line 7: sizes.request = 0 is invalid: a message has 1 to 1073741824 bytes");
}

#[test]
fn an_invalid_scenario_is_refused_before_its_run() {
    let profile = Profile::load("epyc-7662").expect("shipped");
    let refused = |change: fn(&mut Scenario)| {
        let mut scenario = Scenario::new("base".parse().expect("a mode"), Load::Open(1e5));
        change(&mut scenario);
        run(&profile, &scenario).expect_err("bad input").to_string()
    };
    assert_message(&refused(|scenario| scenario.queues = 0), &["queues = 0"]);
    assert_message(
        &refused(|scenario| scenario.settings.socket_busy_poll = Some(Nanos::from_micros(50))),
        &["choose napibusy or fullbusy"],
    );
    assert_message(&refused(|scenario| scenario.connections = 0), &["connections = 0"]);
    assert_message(&refused(|scenario| scenario.load = Load::Open(1e9)), &["the wire carries at most"]);
    assert_message(&refused(|scenario| scenario.load = Load::Open(f64::NAN)), &["load"]);
    assert_message(&refused(|scenario| scenario.duration = Nanos::ZERO), &["duration"]);
    let large = Sizes { request: Size::Fixed(200_000), response: Size::Fixed(1) };
    let mut scenario = Scenario::new("base".parse().expect("a mode"), Load::Open(1e5));
    scenario.sizes = Some(large);
    assert_message(&run(&profile, &scenario).expect_err("too much").to_string(), &["carries at most"]);
}

/// Scenario file that uses every key.
const FULL: &str = r#"
profile = "e5-2680"
modes = ["base", "suspend20"]
load = "40k"
queues = 2
connections = 64
outstanding = 2
arrivals = { bursts = 4 }
service = { mean = "8us", distribution = "lognormal", cv = 1.5 }
device = { median = "80us", p99 = "400us" }
warmup = "1ms"
duration = "2ms"
seed = 7
linux = true
server = "event-loop"

[sizes]
request = { median = 1000, sigma = 0.8 }
response = [[100, 9], [5000, 1.5]]

[nic]
adaptive = false
rx_usecs = 20
rx_frames = 32
ring_packets = 512
"#;

#[test]
fn a_file_with_every_key_runs() {
    let file = ScenarioFile::parse("full.toml", FULL).expect("it parses");
    let profile = file.load_profile().expect("a shipped profile");
    file.validate(&profile).expect("it can be");
    for scenario in file.scenarios() {
        let outcome = run(&profile, &scenario).expect("it runs");
        assert_eq!(outcome.requests, outcome.answers + outcome.outstanding);
        assert!(outcome.answers > 10, "{outcome:?}");
    }
}

/// Modifies a text: replaces, inserts or removes parts.
fn mutate(text: &str, changes: &[(usize, usize, String)]) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for (at, count, instead) in changes {
        let at = at % (chars.len() + 1);
        let end = (at + count).min(chars.len());
        chars.splice(at..end, instead.chars());
    }
    chars.into_iter().collect()
}

fn any_changes() -> impl Strategy<Value = Vec<(usize, usize, String)>> {
    let snippet = prop_oneof![
        4 => "[0-9]{1,3}",
        2 => prop::sample::select(vec!["-", "\"", "= ", "\n", "[", "]", "{", "}", "max", "0", "nan", "inf", "1e300", "us", "999999999999"])
            .prop_map(str::to_owned),
        1 => "\\PC{0,3}",
    ];
    prop::collection::vec((any::<usize>(), 0usize..4, snippet), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, failure_persistence: None, ..ProptestConfig::default() })]

    /// A randomly modified scenario file runs, or is rejected with a message that names it.
    #[test]
    fn a_mutated_scenario_is_refused_or_runs(changes in any_changes()) {
        let text = mutate(FULL, &changes);
        match scenario_error(&text) {
            Err(error) => assert_message(&error.to_string(), &["mine.toml"]),
            Ok(()) => {
                let file = ScenarioFile::parse("mine.toml", &text).expect("it was read before");
                let profile = file.load_profile().expect("it was read before");
                for mut scenario in file.scenarios() {
                    shorten(&mut scenario);
                    let _ = run(&profile, &scenario);
                }
            }
        }
    }

    /// A randomly modified profile works, or is rejected with a message that names it.
    #[test]
    fn a_mutated_profile_is_refused_or_runs(changes in any_changes()) {
        match Profile::parse("mine.toml", &mutate(&shipped(), &changes)) {
            Err(error) => assert_message(&error.to_string(), &["mine.toml"]),
            Ok(profile) => {
                for mode in ["base", "suspend20"] {
                    let mut scenario = Scenario::new(mode.parse().expect("a mode"), Load::Open(1e5));
                    shorten(&mut scenario);
                    let _ = run(&profile, &scenario);
                }
            }
        }
    }
}

/// Limits the size of a scenario, so that it runs quickly.
fn shorten(scenario: &mut Scenario) {
    scenario.warmup = Nanos::ZERO;
    scenario.duration = scenario.duration.min(Nanos::from_millis(1));
    scenario.connections = scenario.connections.min(200);
    scenario.outstanding = scenario.outstanding.min(8);
    scenario.queues = scenario.queues.min(8);
}
