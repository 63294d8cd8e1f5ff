//! The fuzz target of this crate: what a server that is measured answers. It runs in `cargo test` on changed inputs, and under a
//! coverage-guided fuzzer in `fuzz/`.

use abey_loadgen::memcached::ReplyParser;
use abey_loadgen::{http, redis};

/// Replies of the protocol that the first byte selects. The result does not depend on how the stream is cut, and an error is
/// one line of printable text.
pub(crate) fn loadgen(data: &[u8]) {
    let Some((protocol, stream)) = data.split_first() else { return };
    let read = |chunk: usize| match protocol % 3 {
        0 => http(stream, chunk),
        1 => replies(ReplyParser::default(), stream, chunk),
        _ => replies(redis::parser(), stream, chunk),
    };
    let whole = read(stream.len().max(1));
    for chunk in [1, 2, 7] {
        let cut = read(chunk);
        assert_eq!(cut.is_ok(), whole.is_ok());
        if whole.is_ok() {
            assert_eq!(cut, whole);
        }
    }
    if let Err(error) = whole {
        assert!(!error.is_empty() && error.len() < 1000 && !error.contains(char::is_control), "{error:?}");
    }
}

fn http(stream: &[u8], chunk: usize) -> Result<usize, String> {
    let mut parser = http::ResponseParser::default();
    stream.chunks(chunk).map(|part| parser.feed(part)).sum::<Result<_, _>>().map_err(|error| error.to_string())
}

fn replies(mut parser: ReplyParser, stream: &[u8], chunk: usize) -> Result<usize, String> {
    let mut count = 0;
    let mut read = |part| {
        parser.feed(part, |_| {
            count += 1;
            Ok(())
        })
    };
    stream.chunks(chunk).try_for_each(&mut read).map_err(|error| error.to_string())?;
    Ok(count)
}
