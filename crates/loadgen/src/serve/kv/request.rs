//! The parser of a request line of memcached's text protocol.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::config::MAX_KEY_SIZE;
use crate::memcached::parse_decimal;

/// The largest value, bytes: memcached's default item size.
const MAX_VALUE: usize = 1 << 20;
/// Expiry times up to this are relative, above it they are Unix time (`doc/protocol.txt`).
const RELATIVE_UP_TO: u64 = 30 * 24 * 3600;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expires {
    Never,
    At(Instant),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Set<'a> {
    pub(super) key: &'a [u8],
    pub(super) flags: u32,
    pub(super) expires: Expires,
    pub(super) size: usize,
    pub(super) noreply: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request<'a> {
    /// At least one key; all of legal length.
    Get {
        keys: &'a [u8],
        with_cas: bool,
    },
    /// A value of `size` bytes and a line end follow.
    Set(Set<'a>),
    /// A value follows, which is discarded.
    TooLarge {
        size: usize,
        noreply: bool,
    },
    Delete {
        key: &'a [u8],
        noreply: bool,
    },
    Version,
    Quit,
    /// The reply to an invalid line.
    Bad(&'static str),
}

const BAD_FORMAT: Request<'static> = Request::Bad("CLIENT_ERROR bad command line format");

/// Parses `line`, without its line end.
pub(super) fn parse(line: &[u8]) -> Request<'_> {
    let mut words = line.split(|&b| b == b' ').filter(|word| !word.is_empty());
    match words.next() {
        Some(command @ (b"get" | b"gets")) => {
            let keys = &line[command.len()..];
            let mut any = false;
            for key in words {
                any = true;
                if key.len() > MAX_KEY_SIZE {
                    return BAD_FORMAT;
                }
            }
            if any { Request::Get { keys, with_cas: command == b"gets" } } else { Request::Bad("ERROR") }
        }
        Some(b"set") => {
            let mut next = || words.next();
            let (Some(key), Some(flags), Some(expiry), Some(size)) = (next(), next(), next(), next()) else {
                return Request::Bad("ERROR");
            };
            parse_set(key, flags, expiry, size, words.next() == Some(b"noreply"))
        }
        Some(b"delete") => match words.next() {
            Some(key) if key.len() <= MAX_KEY_SIZE => {
                Request::Delete { key, noreply: words.next_back() == Some(b"noreply") }
            }
            Some(_) => BAD_FORMAT,
            None => Request::Bad("ERROR"),
        },
        Some(b"version") => Request::Version,
        Some(b"quit") => Request::Quit,
        _ => Request::Bad("ERROR"),
    }
}

fn parse_set<'a>(key: &'a [u8], flags: &[u8], expiry: &[u8], size: &[u8], noreply: bool) -> Request<'a> {
    let flags = parse_decimal(flags).and_then(|flags| u32::try_from(flags).ok());
    let (Some(flags), Some(expires), Some(size)) = (flags, parse_expiry(expiry), parse_decimal(size)) else {
        return BAD_FORMAT;
    };
    // Limits the size, so that `size + 2` cannot overflow and a connection does not discard its input for ever.
    if size > i32::MAX as usize {
        return Request::Bad("CLIENT_ERROR bad data chunk");
    }
    if size > MAX_VALUE || key.len() > MAX_KEY_SIZE {
        // The value follows in any case.
        return Request::TooLarge { size, noreply };
    }
    Request::Set(Set { key, flags, expires, size, noreply })
}

fn parse_expiry(text: &[u8]) -> Option<Expires> {
    if let Some(negative) = text.strip_prefix(b"-") {
        return parse_decimal(negative).map(|_| Expires::At(Instant::now()));
    }
    let seconds = parse_decimal(text)? as u64;
    let left = if seconds <= RELATIVE_UP_TO {
        Duration::from_secs(seconds)
    } else {
        Duration::from_secs(seconds).saturating_sub(SystemTime::now().duration_since(UNIX_EPOCH).ok()?)
    };
    if seconds == 0 {
        return Some(Expires::Never);
    }
    Some(Instant::now().checked_add(left).map_or(Expires::Never, Expires::At))
}
