//! Bad input: the key, the line, what is allowed.

use abey_sim::{Load, Profile, Scenario, ScenarioFile, run};

fn shipped() -> String {
    Profile::SHIPPED[0].1.to_owned()
}

fn profile_error(text: &str) -> String {
    Profile::parse("mine.toml", text).expect_err("bad input").to_string()
}

#[test]
fn shipped_profiles_are_valid() {
    for (name, _) in Profile::SHIPPED {
        Profile::load(name).expect(name);
    }
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_the_ones_there_are() {
    let text = shipped().replace("frequency_mhz", "frequency_ghz");
    let line = 1 + text.lines().position(|line| line.contains("frequency_ghz")).expect("the key");
    let error = profile_error(&text);
    for part in ["mine.toml", "frequency_ghz", &format!("line {line}"), "frequency_mhz"] {
        assert!(error.contains(part), "no `{part}` in {error}");
    }
}

#[test]
fn a_negative_cost_a_missing_key_and_an_impossible_share_are_refused() {
    let negative = shipped().replace("exit_ns = ", "exit_ns = -");
    assert!(profile_error(&negative).contains("exit_ns"));
    let missing: String =
        shipped().lines().filter(|line| !line.starts_with("base_ns")).map(|line| format!("{line}\n")).collect();
    assert!(profile_error(&missing).contains("base_ns"));
    let share: String = shipped()
        .lines()
        .map(|line| {
            if line.starts_with("late_millionths") { "late_millionths = 2000000\n".into() } else { format!("{line}\n") }
        })
        .collect();
    assert!(profile_error(&share).contains("client.late_millionths = 2000000 cannot be"));
}

#[test]
fn a_profile_that_is_not_there_is_named_with_those_that_are() {
    let error = Profile::load("epyc-9999").expect_err("no such profile").to_string();
    assert!(error.contains("epyc-9999") && error.contains("epyc-7662"), "{error}");
    let error = Profile::load("/nowhere/at-all.toml").expect_err("no such file").to_string();
    assert!(error.contains("/nowhere/at-all.toml"), "{error}");
}

#[test]
fn a_scenario_says_what_is_wrong_with_it() {
    let error = |text: &str| ScenarioFile::parse("mine.toml", text).expect_err("bad input").to_string();
    let good = "modes = [\"base\"]\nload = \"400k\"\n";
    assert!(ScenarioFile::parse("mine.toml", good).is_ok());
    for (text, parts) in [
        (format!("{good}queue = 2\n"), ["line 3", "queue", "queues"]),
        (format!("{good}duration = \"20\"\n"), ["line 3", "duration", "no unit"]),
        (format!("{good}duration = \"-20us\"\n"), ["line 3", "duration", "20us"]),
        ("modes = [\"turbo\"]\nload = \"1k\"\n".to_owned(), ["line 1", "turbo", "suspendX"]),
        ("modes = [\"base\"]\nload = \"lots\"\n".to_owned(), ["line 2", "lots", "50k"]),
    ] {
        let message = error(&text);
        for part in parts {
            assert!(message.contains(part), "no `{part}` in {message}");
        }
    }
}

#[test]
fn what_cannot_be_is_refused_before_it_is_run() {
    let profile = Profile::load("epyc-7662").expect("shipped");
    let refused = |change: fn(&mut Scenario)| {
        let mut scenario = Scenario::new("base".parse().expect("a mode"), Load::Open(1e5));
        change(&mut scenario);
        run(&profile, &scenario).expect_err("bad input").to_string()
    };
    assert!(refused(|scenario| scenario.queues = 0).contains("queues = 0"));
    let socket = refused(|scenario| scenario.settings.socket_busy_poll = Some(abey_delivery::Nanos::from_micros(50)));
    assert!(socket.contains("choose napibusy or fullbusy"), "{socket}");
    assert!(refused(|scenario| scenario.connections = 0).contains("connections = 0"));
    assert!(refused(|scenario| scenario.load = Load::Open(1e9)).contains("the wire does not carry"));
    assert!(refused(|scenario| scenario.load = Load::Open(f64::NAN)).contains("load"));
    assert!(refused(|scenario| scenario.duration = abey_delivery::Nanos::ZERO).contains("duration"));
}
