use super::*;
use proptest::option;
use proptest::prelude::*;

fn configs() -> impl Strategy<Value = LibraryConfig> {
    let mode = (0..Mode::EXAMPLES.len()).prop_map(|n| Mode::EXAMPLES[n].parse::<Mode>().expect("an example"));
    let epoll = (prop_oneof![Just(0), 0..=i32::MAX as u32], 1..u16::MAX, any::<bool>());
    let epoll = epoll.prop_map(|(usecs, budget, prefer)| EpollBusyPoll { usecs, budget, prefer });
    let span = || option::of((1..u64::MAX).prop_map(Nanos::from_nanos));
    let steering = option::of(any::<u32>().prop_map(|n| Steering { queues: NonZeroU32::new(n) }));
    let skip = proptest::collection::vec("[^,\0]{1,8}", 0..4);
    let places = (option::of(datapaths()), option::of("[^\0]{1,9}".prop_map(std::path::PathBuf::from)));
    let flags = any::<[bool; 4]>();
    (option::of(mode), option::of(epoll), span(), span(), steering, skip, flags, places).prop_map(
        |(
            mode,
            epoll,
            max_wait,
            socket_busy_poll,
            steering,
            skip,
            [poll_on_zero_timeout, strict, allows_io_uring, disabled],
            (datapath, control_directory),
        )| {
            LibraryConfig {
                mode,
                epoll,
                max_wait,
                socket_busy_poll,
                poll_on_zero_timeout: poll_on_zero_timeout && epoll.is_none_or(|epoll| epoll.usecs == 0),
                steering,
                datapath,
                control_directory,
                strict,
                allows_io_uring,
                disabled,
                skip,
            }
        },
    )
}

fn datapaths() -> impl Strategy<Value = DatapathConfig> {
    let mode = (0..Mode::EXAMPLES.len()).prop_map(|n| Mode::EXAMPLES[n].parse::<Mode>().expect("an example"));
    let addresses = proptest::collection::vec(any::<(std::net::IpAddr, u8)>(), 0..3);
    let gateways = proptest::collection::vec(any::<std::net::IpAddr>(), 0..3);
    let cpus = proptest::collection::vec(any::<usize>(), 0..3);
    let broker = ("\\PC{0,9}", "\\PC{0,9}").prop_map(|(socket, token)| BrokerAddress { socket, token });
    ("\\PC{0,9}", mode, addresses, gateways, option::of(any::<usize>()), cpus, option::of(broker)).prop_map(
        |(nic, mode, addresses, gateways, queues, cpus, broker)| DatapathConfig {
            nic,
            mode,
            addresses,
            gateways,
            queues,
            cpus,
            broker,
        },
    )
}

proptest! {
    #[test]
    fn variables_are_read_back(config in configs()) {
        let variables = config.to_env();
        prop_assert_eq!(unknown_variables(variables.iter().map(|(name, _)| name)), vec![]);
        prop_assert_eq!(LibraryConfig::from_env(variables), Ok(config));
    }

    #[test]
    fn reading_never_panics(known in 0..KNOWN.len(), name in "(ABEY_)?\\PC{0,9}", value in "\\PC{0,12}") {
        let _ = LibraryConfig::from_env([(KNOWN[known], &value), (name.as_str(), &value)]);
    }
}

#[test]
fn a_mode_has_settings_for_the_library() {
    let config = |name: &str| {
        let mode: Mode = name.parse().expect("a mode");
        LibraryConfig::new(Some(mode), &mode.settings())
    };
    assert!(config("base").is_passive());
    assert!(config("defer50").is_passive());
    let env = config("fullbusy").to_env();
    for (name, value) in [("ABEY_MODE", "fullbusy"), ("ABEY_EPOLL", "1000,64,1"), ("ABEY_MAX_WAIT", "1ms")] {
        assert!(env.contains(&(name.to_owned(), value.to_owned())), "{env:?}");
    }
    assert_eq!(config("sockbusy50").socket_busy_poll, Some(Nanos::from_micros(50)));
}

#[test]
fn an_unknown_variable_is_named_with_the_closest_one_and_is_an_error_when_strict() {
    let unknown = unknown_variables(["ABEY_SKIPP", "ABEYANCE", "PATH", "ABEY_STEER", "ABEY_EPOL"]);
    let closest: Vec<_> = unknown.iter().map(|unknown| (unknown.name.as_str(), unknown.closest)).collect();
    assert_eq!(closest, [("ABEY_SKIPP", "ABEY_SKIP"), ("ABEY_EPOL", "ABEY_EPOLL")]);
    assert!(LibraryConfig::from_env([("ABEY_SKIPP", "sh")]).is_ok());
    let strict = LibraryConfig::from_env([("ABEY_SKIPP", "sh"), ("ABEY_STRICT", "1")]);
    assert!(matches!(strict, Err(ConfigError::Unknown(_))), "{strict:?}");
}

#[test]
fn a_poll_on_timeout_0_is_refused_with_a_busy_poll_time() {
    let read = |epoll| LibraryConfig::from_env([("ABEY_ZERO_TIMEOUT", "poll"), ("ABEY_EPOLL", epoll)]);
    assert_eq!(read("1000,64,1"), Err(ConfigError::ZeroTimeoutLasts { usecs: 1000 }));
    assert!(read("0,64,1").is_ok());
}

#[test]
fn a_malformed_value_is_named_with_what_to_write() {
    for (name, value) in [
        ("ABEY_MODE", "turbo"),
        ("ABEY_EPOLL", "64,64"),
        ("ABEY_EPOLL", "64,0,1"),
        ("ABEY_EPOLL", "64,64,1,1"),
        ("ABEY_MAX_WAIT", "1"),
        ("ABEY_MAX_WAIT", "0"),
        ("ABEY_SOCKET_BUSY_POLL", "50"),
        ("ABEY_ZERO_TIMEOUT", "1"),
        ("ABEY_STEER", "queues:0"),
        ("ABEY_STEER", "cpus"),
        ("ABEY_STRICT", "yes"),
    ] {
        let error = LibraryConfig::from_env([(name, value)]).expect_err(name).to_string();
        assert!(error.starts_with(&format!("{name}={value} is not usable: ")), "{error}");
    }
    assert_eq!(LibraryConfig::from_env([("ABEY_EPOLL", "")]), Ok(LibraryConfig::default()));
}
