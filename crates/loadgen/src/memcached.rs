//! The client side of memcached's text protocol, without I/O: requests into a buffer, replies from a byte stream.
//!
//! Source: `doc/protocol.txt` of memcached. Only what the generator sends: `get` of one key, and `set`.

use crate::redis;

/// The longest accepted reply line, bytes; a `VALUE` line with the longest key is below 300.
const MAX_LINE: usize = 2048;

/// Why a stream is not that of memcached or redis.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The server refused a request.
    #[error("the server refused a request with `{0}`")]
    Refused(String),
    /// The line is not a reply of memcached's protocol.
    #[error("`{0}` is not a memcached reply: is another kind of server listening there?")]
    NotMemcached(String),
    /// The line is not a reply of redis's protocol.
    #[error("`{0}` is not a reply of redis: is another kind of server listening there?")]
    NotRedis(String),
    /// The reply belongs to no request, or to another kind of request.
    #[error("the server sent a reply that answers no request")]
    Unasked,
}

/// Appends `get KEY`.
pub fn append_get(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(b"get ");
    out.extend_from_slice(key);
    out.extend_from_slice(b"\r\n");
}

/// Appends `set KEY 0 0 LENGTH` and the value.
pub fn append_set(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    out.extend_from_slice(b"set ");
    out.extend_from_slice(key);
    out.extend_from_slice(b" 0 0 ");
    append_decimal(out, value.len());
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Appends `number` in decimal, without the formatting machinery.
pub(crate) fn append_decimal(out: &mut Vec<u8>, mut number: usize) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Parses an unsigned decimal number without a sign.
pub(crate) fn parse_decimal(text: &[u8]) -> Option<usize> {
    if text.is_empty() || text.len() > 19 {
        return None;
    }
    text.iter().try_fold(0usize, |n, b| b.is_ascii_digit().then(|| n * 10 + usize::from(b - b'0')))
}

/// One complete reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A `get` found its key; the value has this many bytes.
    Hit(usize),
    /// A `get` did not find its key.
    Miss,
    /// A `set` was done.
    Stored,
}

#[derive(Clone, Copy, Debug)]
enum Expect {
    Line,
    /// This many bytes of a value, and then the line end, are still to come.
    Value(usize),
    /// The line end after a value, of which this many bytes are still to come (2 or 1).
    ValueEnd(usize),
}

/// The protocol of the replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Memcached,
    Redis,
}

/// Parses replies from a byte stream that may be split anywhere; memcached's by default.
#[derive(Clone, Debug)]
pub struct ReplyParser {
    dialect: Dialect,
    expect: Expect,
    /// The start of a line without its end.
    partial: Vec<u8>,
    /// Bytes of the value of the `get` reply that is being read.
    hit: Option<usize>,
}

impl Default for ReplyParser {
    fn default() -> Self {
        Self::of(Dialect::Memcached)
    }
}

impl ReplyParser {
    pub(crate) fn of(dialect: Dialect) -> Self {
        Self { dialect, expect: Expect::Line, partial: Vec::new(), hit: None }
    }

    /// Takes the next bytes of the stream, and calls `on_reply` for each reply that they complete.
    ///
    /// # Errors
    ///
    /// Those of `on_reply`, and [`ProtocolError`] for an error reply or an invalid one. After an error, the stream cannot be
    /// read any further.
    pub fn feed(
        &mut self,
        mut bytes: &[u8],
        mut on_reply: impl FnMut(Reply) -> Result<(), ProtocolError>,
    ) -> Result<(), ProtocolError> {
        while !bytes.is_empty() {
            bytes = match self.expect {
                Expect::Line => self.feed_line(bytes, &mut on_reply)?,
                Expect::Value(left) => {
                    let taken = left.min(bytes.len());
                    self.expect = if taken == left { Expect::ValueEnd(2) } else { Expect::Value(left - taken) };
                    &bytes[taken..]
                }
                Expect::ValueEnd(left) => {
                    let want = if left == 2 { b'\r' } else { b'\n' };
                    if bytes[0] != want {
                        return Err(self.foreign(bytes));
                    }
                    self.expect = if left == 2 { Expect::ValueEnd(1) } else { Expect::Line };
                    // memcached repeats the error in a line of its own.
                    if let (1, Dialect::Redis, Some(size)) = (left, self.dialect, self.hit) {
                        self.hit = None;
                        on_reply(Reply::Hit(size))?;
                    }
                    &bytes[1..]
                }
            };
        }
        Ok(())
    }

    fn feed_line<'a>(
        &mut self,
        bytes: &'a [u8],
        on_reply: &mut impl FnMut(Reply) -> Result<(), ProtocolError>,
    ) -> Result<&'a [u8], ProtocolError> {
        let Some(end) = memchr::memchr(b'\n', bytes) else {
            self.partial.extend_from_slice(bytes);
            return if self.partial.len() > MAX_LINE { Err(self.foreign(&self.partial)) } else { Ok(&[]) };
        };
        let reply = if self.partial.is_empty() {
            self.take_line(&bytes[..end])?
        } else {
            let mut line = std::mem::take(&mut self.partial);
            line.extend_from_slice(&bytes[..end]);
            let reply = self.take_line(&line)?;
            line.clear();
            self.partial = line; // keeps its allocation
            reply
        };
        if let Some(reply) = reply {
            on_reply(reply)?;
        }
        Ok(&bytes[end + 1..])
    }

    /// Parses a line without its `\n`, and returns the reply that it completes.
    fn take_line(&mut self, line: &[u8]) -> Result<Option<Reply>, ProtocolError> {
        if line.len() > MAX_LINE {
            return Err(self.foreign(line));
        }
        let Some(line) = line.strip_suffix(b"\r") else { return Err(self.foreign(line)) };
        if self.dialect == Dialect::Redis {
            return self.take_redis_line(line);
        }
        if let Some(value) = line.strip_prefix(b"VALUE ") {
            if self.hit.is_some() {
                return Err(not_memcached(line)); // one key was asked for
            }
            // KEY FLAGS BYTES [CAS]
            let size = value.split(|&b| b == b' ').nth(2).and_then(parse_decimal).ok_or_else(|| not_memcached(line))?;
            self.expect_value(size);
            return Ok(None);
        }
        match (line, self.hit.take()) {
            (b"END", Some(size)) => Ok(Some(Reply::Hit(size))),
            (b"END", None) => Ok(Some(Reply::Miss)),
            (b"STORED", None) => Ok(Some(Reply::Stored)),
            (b"ERROR" | b"NOT_STORED", _) => Err(ProtocolError::Refused(shown(line))),
            _ if line.starts_with(b"CLIENT_ERROR") || line.starts_with(b"SERVER_ERROR") => {
                Err(ProtocolError::Refused(shown(line)))
            }
            _ => Err(not_memcached(line)),
        }
    }
}

impl ReplyParser {
    fn take_redis_line(&mut self, line: &[u8]) -> Result<Option<Reply>, ProtocolError> {
        match redis::read_line(line)? {
            redis::Line::Whole(reply) => Ok(Some(reply)),
            redis::Line::Value(size) => {
                self.expect_value(size);
                Ok(None)
            }
        }
    }

    fn expect_value(&mut self, size: usize) {
        self.hit = Some(size);
        self.expect = if size == 0 { Expect::ValueEnd(2) } else { Expect::Value(size) };
    }

    fn foreign(&self, line: &[u8]) -> ProtocolError {
        match self.dialect {
            Dialect::Memcached => not_memcached(line),
            Dialect::Redis => ProtocolError::NotRedis(shown(line)),
        }
    }
}

fn not_memcached(line: &[u8]) -> ProtocolError {
    ProtocolError::NotMemcached(shown(line))
}

/// Returns the start of the received bytes, printable.
pub(crate) fn shown(line: &[u8]) -> String {
    line[..line.len().min(80)].escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(chunks: &[&[u8]]) -> Result<Vec<Reply>, ProtocolError> {
        let mut parser = ReplyParser::default();
        let mut replies = Vec::new();
        for chunk in chunks {
            parser.feed(chunk, |reply| {
                replies.push(reply);
                Ok(())
            })?;
        }
        Ok(replies)
    }

    /// A reply of the server, and what it is read as.
    fn reply() -> impl Strategy<Value = (Vec<u8>, Reply)> {
        prop_oneof![
            Just((b"END\r\n".to_vec(), Reply::Miss)),
            Just((b"STORED\r\n".to_vec(), Reply::Stored)),
            // Values may contain anything, line ends and replies included.
            (
                prop_oneof![prop::collection::vec(any::<u8>(), 0..40), Just(b"\r\nEND\r\nERROR\r\n".to_vec())],
                any::<bool>()
            )
                .prop_map(|(value, cas)| {
                    let cas = if cas { " 77" } else { "" };
                    let mut bytes = format!("VALUE key 0 {}{cas}\r\n", value.len()).into_bytes();
                    bytes.extend_from_slice(&value);
                    bytes.extend_from_slice(b"\r\nEND\r\n");
                    (bytes, Reply::Hit(value.len()))
                }),
        ]
    }

    proptest! {
        #[test]
        fn any_cutting_of_the_stream_reads_the_same(
            replies in prop::collection::vec(reply(), 0..12),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let stream: Vec<u8> = replies.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|w| &stream[w[0]..w[1]]).collect();
            let want: Vec<Reply> = replies.iter().map(|(_, reply)| *reply).collect();
            prop_assert_eq!(parse(&chunks), Ok(want.clone()));
            let bytes: Vec<&[u8]> = stream.chunks(1).collect();
            prop_assert_eq!(parse(&bytes), Ok(want));
        }

        #[test]
        fn nonsense_never_panics(bytes: Vec<u8>) {
            let _ = parse(&[&bytes]);
        }

        #[test]
        fn decimals_are_read_back(number: u32) {
            let mut text = Vec::new();
            append_decimal(&mut text, number as usize);
            let want = number.to_string();
            prop_assert_eq!(&text, want.as_bytes());
            prop_assert_eq!(parse_decimal(&text), Some(number as usize));
        }
    }

    #[test]
    fn requests_follow_the_protocol() {
        let mut out = Vec::new();
        append_get(&mut out, b"k1");
        append_set(&mut out, b"k2", b"abc");
        append_set(&mut out, b"k3", b"");
        assert_eq!(out, b"get k1\r\nset k2 0 0 3\r\nabc\r\nset k3 0 0 0\r\n\r\n");
    }

    #[test]
    fn errors_end_the_stream_with_their_text() {
        use ProtocolError::{NotMemcached, Refused};
        assert_eq!(parse(&[b"SERVER_ERROR out of ", b"memory\r\n"]), Err(Refused("SERVER_ERROR out of memory".into())));
        assert_eq!(parse(&[b"ERROR\r\n"]), Err(Refused("ERROR".into())));
        for text in ["HTTP/1.1 400\r\n", "END\n", "STORED \r\n", "VALUE k 0 x\r\n", "VALUE k 0\r\n", "\r\n"] {
            assert!(matches!(parse(&[text.as_bytes()]), Err(NotMemcached(_))), "{text:?}");
        }
        assert!(matches!(parse(&[b"VALUE k 0 1\r\nabc"]), Err(NotMemcached(_))), "value longer than announced");
        assert!(matches!(parse(&[&[b'x'; 5000]]), Err(NotMemcached(_))), "a line without end");
    }
}
