//! The client side of redis, without I/O: `GET` and `SET` as RESP arrays, and the replies to them.
//!
//! Source: the "Redis serialization protocol specification". Only what the generator sends; the replies to it are the same in
//! RESP2 and RESP3 as long as no client asks for the latter.

use crate::memcached::{Dialect, ProtocolError, Reply, ReplyParser, append_decimal, parse_decimal, shown};

/// Appends `GET KEY`.
pub fn append_get(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n");
    append_bulk(out, key);
}

/// Appends `SET KEY VALUE`.
pub fn append_set(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n");
    append_bulk(out, key);
    append_bulk(out, value);
}

fn append_bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'$');
    append_decimal(out, bytes.len());
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Reads the replies.
pub fn parser() -> ReplyParser {
    ReplyParser::of(Dialect::Redis)
}

/// The meaning of a reply's first line.
pub(crate) enum Line {
    Whole(Reply),
    /// A value of this many bytes follows.
    Value(usize),
}

/// Parses a line without its line end.
pub(crate) fn read_line(line: &[u8]) -> Result<Line, ProtocolError> {
    match line {
        b"$-1" => Ok(Line::Whole(Reply::Miss)),
        b"+OK" => Ok(Line::Whole(Reply::Stored)),
        [b'-', ..] => Err(ProtocolError::Refused(shown(line))),
        [b'$', size @ ..] => parse_decimal(size).map(Line::Value).ok_or_else(|| ProtocolError::NotRedis(shown(line))),
        _ => Err(ProtocolError::NotRedis(shown(line))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8], chunk: usize) -> Result<Vec<Reply>, ProtocolError> {
        let (mut parser, mut replies) = (parser(), Vec::new());
        for part in bytes.chunks(chunk) {
            parser.feed(part, |reply| {
                replies.push(reply);
                Ok(())
            })?;
        }
        Ok(replies)
    }

    #[test]
    fn requests_are_arrays_of_bulk_strings() {
        let mut out = Vec::new();
        append_get(&mut out, b"k1");
        append_set(&mut out, b"k2", b"abc");
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$2\r\nk1\r\n*3\r\n$3\r\nSET\r\n$2\r\nk2\r\n$3\r\nabc\r\n");
    }

    #[test]
    fn replies_do_not_depend_on_the_reads() {
        let stream = b"+OK\r\n$3\r\nab\n\r\n$-1\r\n$0\r\n\r\n$5\r\n+OK\r\n\r\n+OK\r\n";
        let want = [Reply::Stored, Reply::Hit(3), Reply::Miss, Reply::Hit(0), Reply::Hit(5), Reply::Stored];
        for chunk in 1..=stream.len() {
            assert_eq!(parse(stream, chunk).as_deref(), Ok(&want[..]), "{chunk}");
        }
    }

    #[test]
    fn errors_end_the_stream_with_their_text() {
        let refused = ProtocolError::Refused("-NOAUTH Authentication required.".to_owned());
        assert_eq!(parse(b"-NOAUTH Authentication required.\r\n", 7), Err(refused));
        for text in ["END\r\n", "$x\r\n", "$-2\r\n", ":1\r\n", "\r\n", "+OK\n"] {
            assert!(matches!(parse(text.as_bytes(), 2), Err(ProtocolError::NotRedis(_))), "{text:?}");
        }
    }
}
