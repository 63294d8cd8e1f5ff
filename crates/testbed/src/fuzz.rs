//! Runs a fuzz target in an ordinary test: on the inputs that are kept in `fuzz/seeds` and `fuzz/found`, and on changes of them,
//! 400 by default or as many as fit into `ABEY_FUZZ_SECONDS`. `ABEY_SEED` runs one case alone.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::time::Instant;

/// Number of changed inputs, unless a time is given.
const CASES: u64 = 400;

/// Runs `target` on the inputs of `name`. `manifest` is the directory of the calling crate, `CARGO_MANIFEST_DIR`.
///
/// # Panics
/// When the target does, after a line with the number of the case; when no input is kept.
pub fn fuzz(manifest: &str, name: &str, target: impl Fn(&[u8])) {
    let kept = kept(&Path::new(manifest).join("../../fuzz"), name);
    kept.iter().for_each(|input| target(input));
    let setting = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = setting("ABEY_SEED") {
        return target(&case(&kept, seed));
    }
    let (seconds, begun) = (setting("ABEY_FUZZ_SECONDS"), Instant::now());
    let more = |seed| seconds.map_or(seed < CASES, |seconds| begun.elapsed().as_secs() < seconds);
    for seed in (0..).take_while(|seed| more(*seed)) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(&case(&kept, seed)))) {
            eprintln!("case {seed} of {name} failed: run it alone with ABEY_SEED={seed}");
            resume_unwind(panic);
        }
    }
}

/// Returns the inputs that are kept for a target, in the order of their names.
fn kept(directory: &Path, name: &str) -> Vec<Vec<u8>> {
    let folders = ["seeds", "found"].map(|kind| directory.join(kind).join(name));
    let mut files: Vec<_> =
        folders.iter().flat_map(std::fs::read_dir).flatten().flatten().map(|file| file.path()).collect();
    files.sort();
    let kept: Vec<_> = files.iter().map(|file| std::fs::read(file).expect("a kept input")).collect();
    assert!(!kept.is_empty(), "no inputs of {name} in fuzz/seeds");
    kept
}

/// Returns a kept input after a few changes.
fn case(kept: &[Vec<u8>], seed: u64) -> Vec<u8> {
    let mut random = SplitMix(seed);
    let mut bytes = kept[random.below(kept.len())].clone();
    for _ in 0..random.below(6) {
        let at = random.below(bytes.len() + 1);
        match random.below(5) {
            0 => bytes.insert(at, random.next() as u8),
            1 if at < bytes.len() => drop(bytes.remove(at)),
            2 => bytes.truncate(at),
            3 => {
                let other = &kept[random.below(kept.len())];
                bytes.truncate(at);
                bytes.extend_from_slice(&other[random.below(other.len() + 1)..]);
            }
            _ if at < bytes.len() => bytes[at] = random.next() as u8,
            _ => bytes.extend(std::iter::repeat_n(random.next() as u8, random.below(5000))),
        }
    }
    bytes
}

/// The generator splitmix64.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns a number below `limit`; 0 if that is 0.
    fn below(&mut self, limit: usize) -> usize {
        (self.next() % (limit as u64).max(1)) as usize
    }
}
