//! Runs a fuzz target on the inputs that are kept in `fuzz/seeds` and `fuzz/found`, and on random bytes: 400 cases by default,
//! or as many as fit into `ABEY_FUZZ_SECONDS`. `ABEY_SEED` runs one case alone.

use std::path::Path;
use std::time::Instant;

pub(crate) fn fuzz(name: &str, target: impl Fn(&[u8])) {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let kept = ["seeds", "found"].map(|kind| fuzz.join(kind).join(name));
    let mut count = 0;
    for file in kept.iter().flat_map(std::fs::read_dir).flatten().flatten() {
        target(&std::fs::read(file.path()).expect("a kept input"));
        count += 1;
    }
    assert!(count > 0, "no seeds of {name}");
    let setting = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = setting("ABEY_SEED") {
        return target(&case(seed));
    }
    let (seconds, begun) = (setting("ABEY_FUZZ_SECONDS"), Instant::now());
    let more = |seed| seconds.map_or(seed < 400, |seconds| begun.elapsed().as_secs() < seconds);
    for seed in (0..).take_while(|seed| more(*seed)) {
        let run = std::panic::AssertUnwindSafe(|| target(&case(seed)));
        if let Err(panic) = std::panic::catch_unwind(run) {
            eprintln!("case {seed} of {name} failed: run it alone with ABEY_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

/// Generates the input of a case: mostly a few changes of a valid file.
fn case(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut random = || {
        // splitmix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    };
    let is_text = random() % 8 == 0;
    let length = if is_text { random() % 200 } else { 3 * (random() % 12) };
    let mut bytes = vec![if is_text { 200 } else { (random() % 128) as u8 }];
    bytes.extend((0..length).map(|_| random() as u8));
    bytes
}
