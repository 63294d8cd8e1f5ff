//! Bad input: each wrong key, type, value, duplicate or overlap gives one sentence with file, line and key.

mod random;
mod targets;

use abey_policy::Policy;

const HEAD: &str = "version = 1\n[[device]]\nname = \"eth0\"\n";

fn refused(text: &str) -> String {
    let message = Policy::parse("mine.toml", text).map(|_| text).expect_err("bad input").to_string();
    assert!(!message.contains('\n'), "more than a line: {message}");
    message
}

#[track_caller]
fn assert_contains(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "no `{part}` in: {message}");
    }
}

/// What stands in line 4 or below of a `[[device]]` table, in which line the fault is, and what the message has to say.
const OF_A_DEVICE: [(&str, usize, &[&str]); 26] = [
    ("chanels = 4", 4, &["unknown field `chanels`", "channels"]),
    ("channels = \"4\"", 4, &["device.channels", "whole number"]),
    ("channels = 0", 4, &["device.channels", "1 to 4096"]),
    ("channels = -1", 4, &["device.channels", "-1"]),
    ("channels = 5000", 4, &["device.channels", "1 to 4096"]),
    ("channels = 4\nchannels = 5", 5, &["channels", "duplicate key"]),
    ("optional = \"yes\"", 4, &["device.optional", "boolean"]),
    ("on-unsupported = \"ignore\"", 4, &["device.on-unsupported", "`fail`", "`skip`"]),
    ("mode = \"turbo\"", 4, &["device.mode", "turbo"]),
    ("mode = 20", 4, &["device.mode", "a mode in quotes"]),
    ("mode = \"hold50\"", 4, &["device.mode", "datapath and sim"]),
    ("mode = \"base\"\nsettings = { defer-hard-irqs = 1 }", 5, &["device.settings", "not both"]),
    ("settings = { gro-flush = \"20us\" }", 4, &["unknown field `gro-flush`", "gro-flush-timeout"]),
    ("settings = { gro-flush-timeout = 20 }", 4, &["device.settings.gro-flush-timeout", "with its unit in quotes"]),
    ("settings = { gro-flush-timeout = \"20\" }", 4, &["device.settings.gro-flush-timeout", "unit"]),
    ("settings = { gro-flush-timeout = \"5s\" }", 4, &["gro-flush-timeout goes from 0 to"]),
    ("settings = { irq-suspend-timeout = \"20ms\" }", 4, &["device.settings.irq-suspend-timeout", "without deferral"]),
    (
        "settings = { defer-hard-irqs = 1, gro-flush-timeout = \"9us\", irq-suspend-timeout = \"9us\" }",
        4,
        &["device.settings.irq-suspend-timeout", "must be longer than gro-flush-timeout"],
    ),
    ("settings = { threaded = \"workqueue\" }", 4, &["device.settings", "workqueue", "datapath and sim"]),
    ("settings = { hold = \"50us\" }", 4, &["device.settings", "hold", "datapath and sim"]),
    ("address = \"aa:bb\"", 4, &["device.address", "six pairs"]),
    ("driver = \"\"", 4, &["device.driver", "leave the line out"]),
    ("driver = \"[\"", 4, &["device.driver", "no glob"]),
    ("pci = 3", 4, &["device.pci", "glob"]),
    ("rss = \"0-x\"", 4, &["device.rss", "no list of queues", "0-3,8"]),
    ("queues = \"0-3\"", 4, &["device.queues", "a list in brackets"]),
];

/// The same for a `[[device.queues]]` table, which begins in line 5.
const OF_QUEUES: [(&str, usize, &[&str]); 37] = [
    ("mode = \"base\"", 4, &["device.queues", "missing field `queues`"]),
    ("queues = \"0-3\"", 5, &["device.queues.queues", "sets nothing"]),
    ("queues = 3\nmode = \"base\"", 5, &["device.queues.queues", "in quotes"]),
    ("queues = \"\"\nmode = \"base\"", 5, &["device.queues.queues", "no queue is named"]),
    ("queues = \"3-0\"\nmode = \"base\"", 5, &["device.queues.queues", "3-0", "0-3,8"]),
    ("queues = \"all\"\nmode = \"base\"", 5, &["device.queues.queues", "\"rest\""]),
    ("queues = \"9999\"\nmode = \"base\"", 5, &["device.queues.queues", "9999", "4095"]),
    ("queues = \"0\"\nmodes = \"base\"", 6, &["unknown field `modes`", "mode"]),
    ("queues = \"0\"\nports = \"tcp/80\"", 6, &["device.queues.ports", "a list in brackets"]),
    ("queues = \"0\"\nports = []", 6, &["device.queues.ports", "no port is named"]),
    ("queues = \"0\"\nports = [80]", 6, &["device.queues.ports", "in quotes"]),
    ("queues = \"0\"\nports = [\"80\"]", 6, &["device.queues.ports", "tcp/ or udp/"]),
    ("queues = \"0\"\nports = [\"sctp/80\"]", 6, &["device.queues.ports", "sctp/80"]),
    ("queues = \"0\"\nports = [\"tcp/0\"]", 6, &["device.queues.ports", "1 to 65535"]),
    ("queues = \"0\"\nports = [\"tcp/65536\"]", 6, &["device.queues.ports", "65536"]),
    ("queues = \"0\"\nports = [\"tcp/+80\"]", 6, &["device.queues.ports", "tcp/+80"]),
    ("queues = \"0\"\nports = [\"tcp/80\", \"tcp/80\"]", 6, &["port tcp/80", "two rules", "device.queues.ports"]),
    ("queues = \"0\"\nirq-cpus = \"2-\"", 6, &["device.queues.irq-cpus", "2-"]),
    ("queues = \"0\"\nirq-cpus = \"2:each\"", 6, &["device.queues.irq-cpus", ":each", ":all"]),
    ("queues = \"0\"\nxps-cpus = \"\"", 6, &["device.queues.xps-cpus", "no CPU is named"]),
    ("queues = \"0\"\nxps-cpus = 2", 6, &["device.queues.xps-cpus", "CPUs in quotes"]),
    ("queues = \"0\"\nthread = {}", 6, &["device.queues.thread", "it sets nothing for the thread"]),
    ("queues = \"0\"\nthread = { policy = \"realtime\" }", 6, &["device.queues.thread.policy", "fifo"]),
    ("queues = \"0\"\nthread = { policy = \"fifo\" }", 6, &["device.queues.thread", "priority", "1 to 99"]),
    (
        "queues = \"0\"\nthread = { policy = \"fifo\", priority = 100 }",
        6,
        &["device.queues.thread.priority", "100", "1 to 99"],
    ),
    (
        "queues = \"0\"\nthread = { policy = \"fifo\", priority = 1000 }",
        6,
        &["device.queues.thread.priority", "1000", "whole number"],
    ),
    ("queues = \"0\"\nthread = { cpus = \"1\", priority = 5 }", 6, &["device.queues.thread.priority", "no priority"]),
    ("queues = \"0\"\ntune = {}", 6, &["device.queues.tune", "goal"]),
    ("queues = \"0\"\ntune = { goal = \"fast\" }", 6, &["device.queues.tune.goal", "fast", "p99=250us"]),
    ("queues = \"0\"\ntune = { goal = 5 }", 6, &["device.queues.tune.goal", "a goal in quotes"]),
    (
        "queues = \"0\"\ntune = { goal = \"cpu=50%\", gro-flush-timeout = [\"10us\"] }",
        6,
        &["device.queues.tune.gro-flush-timeout"],
    ),
    (
        "queues = \"0\"\ntune = { goal = \"cpu=50%\", gro-flush-timeout = [\"20us\", \"10us\"] }",
        6,
        &["device.queues.tune", "gro-flush-timeout from 20us to 10us"],
    ),
    (
        "queues = \"0\"\ntune = { goal = \"p99=1ms\", latencies = \"here\" }",
        6,
        &["device.queues.tune.latencies", "whole path"],
    ),
    ("queues = \"0\"\ntune = { goal = \"cpu=50%\", modes = [\"fullbusy\"] }", 6, &["device.queues.tune", "fullbusy"]),
    ("queues = \"0\"\ntune = { goal = \"cpu=50%\", modes = [\"hold\"] }", 6, &["device.queues.tune", "hold"]),
    (
        "queues = \"0\"\nmode = \"suspend500\"\ntune = { goal = \"cpu=50%\" }",
        6,
        &["device.queues.mode", "outside the bounds in line 7"],
    ),
    ("queues = \"0\"\nthread = { policy = \"batch\", nice = 20 }", 6, &["device.queues.thread.nice", "-20 to 19"]),
];

/// The same for a `[[program]]` table, which begins in line 2.
const OF_A_PROGRAM: [(&str, usize, &[&str]); 12] = [
    ("cpus = \"1\"", 2, &["program", "write `unit` or `executable`"]),
    ("unit = \"a.service\"", 2, &["program", "it sets nothing for the program"]),
    ("unit = \"a.service\"\nexecutable = \"/a\"\ncpus = \"1\"", 4, &["program.executable", "leave one of them out"]),
    ("unit = \"../a.service\"\ncpus = \"1\"", 3, &["program.unit", "memcached.service"]),
    ("unit = \"a\"\ncpus = \"1\"", 3, &["program.unit", "full name"]),
    ("unit = 5\ncpus = \"1\"", 3, &["program.unit", "string"]),
    ("executable = \"memcached\"\ncpus = \"1\"", 3, &["program.executable", "whole path"]),
    ("unit = \"a.service\"\nqueues = \"0\"\nmode = \"base\"", 4, &["program.queues", "`device`"]),
    ("unit = \"a.service\"\nmode = \"workqueue\"", 4, &["program.mode", "datapath and sim"]),
    ("unit = \"a.service\"\ncpus = \"x\"", 4, &["program.cpus", "x"]),
    ("unit = \"a.service\"\nnice = 5", 4, &["unknown field `nice`"]),
    (
        "unit = \"a.service\"\nepoll = { busy-poll = \"0us\", budget = 0, prefer = true }",
        4,
        &["program.epoll.budget", "polls nothing"],
    ),
];

#[test]
fn every_fault_names_file_line_and_key() {
    for (lines, line, parts) in OF_A_DEVICE {
        let message = refused(&format!("{HEAD}{lines}\n"));
        assert_contains(&message, &[&format!("mine.toml, line {line}")]);
        assert_contains(&message, parts);
    }
    for (lines, line, parts) in OF_QUEUES {
        let message = refused(&format!("{HEAD}[[device.queues]]\n{lines}\n"));
        assert_contains(&message, &[&format!("mine.toml, line {line}")]);
        assert_contains(&message, parts);
    }
    for (lines, line, parts) in OF_A_PROGRAM {
        let message = refused(&format!("version = 1\n[[program]]\n{lines}\n"));
        assert_contains(&message, &[&format!("mine.toml, line {line}")]);
        assert_contains(&message, parts);
    }
}

#[test]
fn the_file_itself_can_be_wrong() {
    for (text, line, parts) in [
        ("", 1, &["missing field `version`"][..]),
        ("version = 2\n", 1, &["version", "`version = 1`"]),
        ("version = \"1\"\n", 1, &["version", "whole number"]),
        ("version = 1\ndevice = 3\n", 2, &["device", "a list in brackets"]),
        ("version = 1\n[device]\nname = \"eth0\"\n", 2, &["device", "a list in brackets"]),
        ("version = 1\n[[devices]]\nname = \"eth0\"\n", 2, &["unknown field `devices`", "device"]),
        ("version = 1\n[[device]]\nmode = \"base\"\n", 2, &["device", "it has no criteria", "`name`"]),
        ("version = 1\non-unsupported = true\n", 2, &["on-unsupported"]),
        ("version = 1\n[[device]\n", 2, &["[[device]"]),
        ("version = 1\n[[device]]\nname = \"eth0\n", 3, &["name = \"eth0"]),
    ] {
        let message = refused(text);
        assert_contains(&message, &[&format!("mine.toml, line {line}")]);
        assert_contains(&message, parts);
    }
}

#[test]
fn two_rules_for_one_thing_name_both_lines() {
    let queues = |queues: &str| format!("[[device.queues]]\nqueues = \"{queues}\"\nmode = \"base\"\n");
    let flows = "[[device.flows]]\nports = [\"udp/53\"]\nqueues = \"1\"\n";
    for (first, second, what, lines) in [
        (queues("0-3"), queues("3,5"), "queue 3 of name eth0", [5, 8]),
        (queues("rest"), queues("rest"), "the rest of the queues of name eth0", [5, 8]),
        (flows.to_owned(), flows.to_owned(), "port udp/53 of name eth0", [5, 8]),
    ] {
        let message = refused(&format!("{HEAD}{first}{second}"));
        assert_contains(&message, &[what, &format!("line {}", lines[0]), &format!("line {}", lines[1])]);
    }
    let message = refused(
        "version = 1\n[[program]]\nexecutable = \"/a\"\ncpus = \"1\"\n[[program]]\nexecutable = \"/a\"\ncpus = \"2\"\n",
    );
    assert_contains(&message, &["the program /a", "line 3", "line 6"]);
}

#[test]
fn two_files_that_overlap_name_both_files() {
    let table = |keys: &str| format!("{HEAD}{keys}\n");
    for (first, second, parts) in [
        ("channels = 4", "channels = 4", &["the channels of name eth0", "device.channels"][..]),
        ("mode = \"base\"", "settings = {}", &["every queue of name eth0", "device.mode", "device.settings"]),
        ("rss = \"0\"", "rss = \"1\"", &["the RSS indirection table of name eth0"]),
        (
            "[[device.queues]]\nqueues = \"2\"\nmode = \"base\"",
            "[[device.queues]]\nqueues = \"0-7\"\nirq-cpus = \"0\"",
            &["queue 2 of name eth0"],
        ),
    ] {
        let (first, second) = (table(first), table(second));
        let error = Policy::parse_all([("a.toml", first.as_str()), ("b.toml", second.as_str())]).expect_err("overlap");
        assert_contains(&error.to_string(), &["a.toml, line", "b.toml, line"]);
        assert_contains(&error.to_string(), parts);
    }
    let said = "version = 1\non-unsupported = \"skip\"\n";
    let error = Policy::parse_all([("a.toml", said), ("b.toml", said)]).expect_err("said twice");
    assert_contains(&error.to_string(), &["on-unsupported", "a.toml, line 2", "b.toml, line 2"]);
    // What does not overlap is one policy.
    let parts = [table("channels = 4"), table("mode = \"base\"")];
    Policy::parse_all([("a.toml", parts[0].as_str()), ("b.toml", parts[1].as_str())]).expect("no overlap");
}

#[test]
fn arbitrary_policies_give_one_sentence() {
    random::fuzz("policy", targets::policy);
}

#[test]
fn arbitrary_settings_files_give_one_sentence() {
    random::fuzz("settings", targets::settings);
}
