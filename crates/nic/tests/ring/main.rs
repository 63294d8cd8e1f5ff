//! The shared ring against its oracle, under every interleaving, and against a peer that scribbles over it.

mod interleavings;
mod oracle;

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn the_ring_is_a_queue_of_frames(script in prop::collection::vec(any::<u8>(), 0..400)) {
        oracle::check(&script);
    }
}

/// `ABEY_FUZZ_SECONDS=600 cargo test --release -p abey-nic --test ring long_run` where there is no fuzzer: the same
/// oracle on longer scripts of random bytes.
#[test]
fn long_run() {
    let seconds: u64 = std::env::var("ABEY_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(seconds);
    let mut scripts = 0_u64;
    // At least a few, so that the loop itself is always exercised.
    while scripts < 50 || std::time::Instant::now() < end {
        let mut random = rand_xoshiro::Xoshiro256PlusPlus::seed_from_u64(scripts);
        let mut script = vec![0; random.random_range(0..5_000)];
        random.fill(&mut script[..]);
        oracle::check(&script);
        scripts += 1;
    }
    eprintln!("{scripts} scripts");
}
