use abey_delivery::Mode;
use proptest::option;
use proptest::prelude::*;

use super::*;

fn error_of(text: &str) -> String {
    SettingsFile::parse("mine.toml", text).expect_err("an invalid file").to_string()
}

fn settings() -> impl Strategy<Value = ModeSettings> {
    let time = || (1..5_000_000_000u64).prop_map(Nanos::from_nanos);
    let context = prop_oneof![
        Just(PollContext::Softirq),
        Just(PollContext::Thread),
        Just(PollContext::BusyThread),
        Just(PollContext::Workqueue)
    ];
    let hold = option::of(prop_oneof![time().prop_map(Hold::Spin), time().prop_map(Hold::Timer)]);
    let napi = (0..=i32::MAX as u32, option::of(time()), option::of(time()), context, hold);
    let epoll = option::of((0..=i32::MAX as u32, 1..=u16::MAX, any::<bool>()));
    (napi, epoll, option::of(time()), option::of(time())).prop_map(
        |((defer_hard_irqs, flush, suspend, context, hold), epoll, max_wait, socket_busy_poll)| ModeSettings {
            napi: NapiSettings {
                defer_hard_irqs,
                gro_flush_timeout: flush.unwrap_or_default(),
                irq_suspend_timeout: suspend.unwrap_or_default(),
                context,
                hold,
            },
            epoll: epoll.map(|(usecs, budget, prefer)| EpollBusyPoll { usecs, budget, prefer }),
            max_wait,
            socket_busy_poll,
        },
    )
}

proptest! {
    #[test]
    fn written_settings_are_read_back(settings in settings(), header in "\\PC{0,40}\n?\\PC{0,40}") {
        let text = SettingsFile::text(&settings, &header);
        let read = SettingsFile::parse("mine.toml", &text);
        if settings.validate().is_ok() {
            prop_assert_eq!(read.expect(&text).settings, settings);
        } else {
            prop_assert!(read.is_err(), "{}", text);
        }
    }

    #[test]
    fn parsing_never_panics(text in "\\PC{0,30}\n?(\\[napi\\]\n)?\\PC{0,30}") {
        let _ = SettingsFile::parse("mine.toml", &text);
    }
}

#[test]
fn every_mode_is_read_back() {
    for name in Mode::EXAMPLES {
        let settings = name.parse::<Mode>().expect(name).settings();
        let text = SettingsFile::text(&settings, name);
        assert!(text.starts_with(&format!("# {name}\n\n")), "{text}");
        assert_eq!(SettingsFile::parse(name, &text).expect(name).settings, settings, "{text}");
    }
}

#[test]
fn errors_name_file_line_key_and_allowed_values() {
    let napi = |line: &str| format!("# mine\n[napi]\ndefer-hard-irqs = 100\n{line}\n");
    for (text, parts) in [
        (napi("gro-flush = \"20us\""), ["line 4", "gro-flush", "gro-flush-timeout"]),
        (napi("gro-flush-timeout = 20"), ["line 4", "gro-flush-timeout = 20", "its unit"]),
        (napi("gro-flush-timeout = \"20\""), ["line 4", "gro-flush-timeout", "20us"]),
        (napi("gro-flush-timeout = \"-20us\""), ["line 4", "gro-flush-timeout", "`-20us` is not a duration"]),
        (napi("threaded = \"maybe\""), ["line 4", "threaded", "workqueue"]),
        (napi("hold = \"0us\""), ["line 4", "hold", "50us-timer"]),
        (napi("irq-suspend-timeout = \"20ms\""), ["line 4", "irq-suspend-timeout", "without deferral"]),
        ("[napi]\ndefer-hard-irqs = 2147483648\n".to_owned(), ["line 2", "defer-hard-irqs", "out of range"]),
        ("[napi]\ndefer-hard-irqs = -1\n".to_owned(), ["line 2", "defer-hard-irqs", "-1"]),
        ("max-wait = \"0us\"\n[napi]\n".to_owned(), ["line 1", "max-wait", "above 0"]),
        ("[epoll]\nbusy-poll = \"0us\"\n".to_owned(), ["line 1", "[epoll]", "budget"]),
        (
            "[napi]\n[epoll]\nbusy-poll = \"0us\"\nbudget = 0\nprefer = true\n".to_owned(),
            ["line 4", "budget = 0", "1 to 64"],
        ),
        (
            "[napi]\n[epoll]\nbusy-poll = \"1500ns\"\nbudget = 8\nprefer = true\n".to_owned(),
            ["line 3", "busy-poll", "whole number"],
        ),
        (String::new(), ["line 1", "napi", "missing"]),
        ("[napi".to_owned(), ["line 1", "[napi", "]"]),
    ] {
        let message = error_of(&text);
        assert!(message.starts_with("mine.toml, line "), "{message}");
        assert!(!message.contains('\n'), "{message}");
        for part in parts {
            assert!(message.contains(part), "no `{part}` in {message}");
        }
    }
}

#[test]
fn a_missing_file_is_named() {
    let error = SettingsFile::load(Path::new("/nowhere/at-all.toml")).expect_err("no such file").to_string();
    assert!(error.contains("/nowhere/at-all.toml"), "{error}");
}
