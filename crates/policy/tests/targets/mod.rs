//! Fuzz targets of this crate: policies and settings files. They run here on random bytes, and under a coverage-guided
//! fuzzer in `fuzz/`. An error is one line of printable text that names the file.

use abey_config::SettingsFile;
use abey_policy::Policy;

const NAME: &str = "fuzz.toml";

const SAMPLES: [&str; 3] = [
    include_str!("../../../../packaging/profiles/memcached.toml"),
    include_str!("../../../../packaging/etc/policy.toml"),
    "version = 1\n[[device]]\nname = \"eth*\"\nchannels = 4\nmode = \"suspend20\"\nrss-queues = \"0-3\"\n\
     [[device.queues]]\nqueues = \"1,2\"\nsettings = { defer-hard-irqs = 1, gro-flush-timeout = \"9us\" }\nxps-cpus = \"0\"\n\
     [[program]]\nunit = \"demo.service\"\nmode = \"suspend20\"\ncpus = \"0\"\n",
];

/// Parses a policy: `data` is the file, or, after a first byte below 128, changes of a valid one.
pub(crate) fn policy(data: &[u8]) {
    let text = text_of(data);
    if let Err(error) = Policy::parse(NAME, &text) {
        check(&error.to_string());
    }
    if let Err(error) = Policy::parse_all([(NAME, text.as_str()), ("other.toml", SAMPLES[2])]) {
        check(&error.to_string());
    }
}

/// Parses a settings file: `data` as for [`policy`].
pub(crate) fn settings(data: &[u8]) {
    if let Err(error) = SettingsFile::parse(NAME, &text_of(data)) {
        check(&error.to_string());
    }
}

fn check(message: &str) {
    assert!(message.contains(".toml"), "{message}");
    assert!(!message.contains('\n'), "more than one line: {message}");
}

fn text_of(data: &[u8]) -> String {
    match data {
        [first, script @ ..] if *first < 128 => mutated(SAMPLES[usize::from(*first) % SAMPLES.len()], script),
        [_, text @ ..] => String::from_utf8_lossy(text).into_owned(),
        [] => String::new(),
    }
}

/// Returns a text after changes: three bytes of `script` for each.
fn mutated(text: &str, script: &[u8]) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for change in script.chunks_exact(3) {
        if bytes.is_empty() {
            break;
        }
        let at = (usize::from(change[0]) << 8 | usize::from(change[1])) % bytes.len();
        match change[2] {
            value if value < 128 => bytes[at] = value,
            value if value < 160 => drop(bytes.drain(at..(at + usize::from(value - 127)).min(bytes.len()))),
            value => {
                let piece = bytes[at..(at + usize::from(value - 159)).min(bytes.len())].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
