//! Any bytes as a frame to steer and to look at the checksum of: no panic, and a queue that exists.
#![no_main]

use std::sync::LazyLock;

use abey_nic::{checksum, rss};

static RSS: LazyLock<rss::Rss> = LazyLock::new(|| rss::Rss::new(rss::MICROSOFT_KEY, 5));

libfuzzer_sys::fuzz_target!(|frame: &[u8]| {
    assert!(RSS.queue(frame) < 5);
    checksum::is_partial(frame);
});
