//! Fuzz targets with random bytes: 800 cases each by default, or as many as fit into `ABEY_FUZZ_SECONDS`. `ABEY_SEED`
//! runs one case alone. Inputs that a coverage-guided fuzzer stored in `fuzz/found` run first.

mod common;
mod targets;

use abey_tcpip::Counters;
use rand::{Rng, RngExt};

/// Runs `target` on cases that are generated from seeds. Together they must increment each counter in `reached`,
/// which shows that the code behind it is tested.
fn fuzz(name: &str, target: impl Fn(&[u8]) -> Counters, reached: &[&str]) {
    let found = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/found").join(name);
    for case in std::fs::read_dir(found).into_iter().flatten().flatten() {
        target(&std::fs::read(case.path()).unwrap());
    }
    let setting = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = setting("ABEY_SEED") {
        target(&case(seed));
        return;
    }
    let seconds = setting("ABEY_FUZZ_SECONDS");
    let begun = std::time::Instant::now();
    let mut seed = setting("ABEY_FUZZ_FROM").unwrap_or(0);
    let first = seed;
    let mut total = Counters::default();
    while seconds.map_or(seed - first < 800, |seconds| begun.elapsed().as_secs() < seconds) {
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| target(&case(seed)))) {
            Ok(counters) => total.add(&counters),
            Err(panic) => {
                eprintln!("case {seed} of {name} failed: run it alone with ABEY_SEED={seed}");
                std::panic::resume_unwind(panic);
            }
        }
        seed += 1;
    }
    eprintln!("{name}: {} cases in {:?}", seed - first, begun.elapsed());
    for (counter, value) in total.iter() {
        assert!(value > 0 || !reached.contains(&counter), "{counter} stayed zero");
        if std::env::var_os("ABEY_TRACE").is_some() {
            eprintln!("{counter} {value}");
        }
    }
}

/// Generates the input of a case.
fn case(seed: u64) -> Vec<u8> {
    let mut random = common::random_seed(seed);
    let mut bytes = vec![0; random.random_range(1..2000)];
    random.fill_bytes(&mut bytes);
    bytes
}

#[test]
fn segments_against_two_streams() {
    let reached = [
        "TcpExtTCPTimeouts",
        "TcpExtTCPSackRecovery",
        "TcpExtTCPSACKReneging",
        "TcpExtTCPSACKDiscard",
        "TcpExtTCPDSACKOldSent",
        "TcpExtTCPOFOQueue",
        "TcpExtTCPWinProbe",
        "TcpExtTCPChallengeACK",
        "TcpEcnConnections",
        "TcpEcnReductions",
        "IpExtInCEPkts",
    ];
    fuzz("segments", targets::segments::run, &reached);
}

#[test]
fn frames_with_bytes_changed() {
    let reached = ["IpInHdrErrors", "IpInCsumErrors", "TcpInErrs", "TcpInCsumErrors", "IcmpInErrors", "UdpInDatagrams"];
    fuzz("frames", targets::frames::run, &reached);
}
