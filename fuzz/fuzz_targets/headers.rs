//! Header parsers of `abey-nic` on arbitrary frames: they must not panic, and RSS must return an existing queue.
#![no_main]

use std::sync::LazyLock;

use abey_nic::{checksum, rss};

static RSS: LazyLock<rss::Rss> = LazyLock::new(|| rss::Rss::new(rss::MICROSOFT_KEY, 5));

libfuzzer_sys::fuzz_target!(|frame: &[u8]| {
    assert!(RSS.queue(frame) < 5);
    checksum::is_partial(frame);
});
