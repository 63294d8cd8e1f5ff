//! The client side of HTTP/1.1 (RFC 9112), without I/O: `GET` over persistent connections, and the answers.
//!
//! Answers need a Content-Length. Chunked bodies are rejected with an error: a server that is measured for its delivery
//! should not spend time on them.

use crate::memcached::{parse_decimal, shown};

/// The longest accepted line of a header, bytes.
const MAX_LINE: usize = 16 << 10;

/// Why an answer cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The server answered with another status than 2xx or 3xx.
    #[error("the server answered `{0}`: ask for a path that it has")]
    Status(String),
    /// The line is not one of HTTP.
    #[error("`{0}` is not an answer of HTTP/1.1: is another kind of server listening there?")]
    NotHttp(String),
    /// The end of the answer is unknown.
    #[error("the server's answer has no Content-Length: let it serve a file, without chunks")]
    NoLength,
}

/// Appends `GET PATH` for `host`.
pub fn append_get(out: &mut Vec<u8>, host: &str, path: &str) {
    for part in ["GET ", path, " HTTP/1.1\r\nHost: ", host, "\r\n\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
}

#[derive(Clone, Copy, Debug)]
enum Expect {
    Status,
    Header,
    /// This many bytes of a body are still to come.
    Body(usize),
}

/// Counts answers in a byte stream that may be split anywhere.
#[derive(Clone, Debug)]
pub struct ResponseParser {
    expect: Expect,
    /// The start of a line without its end.
    partial: Vec<u8>,
    length: Option<usize>,
}

impl Default for ResponseParser {
    fn default() -> Self {
        Self { expect: Expect::Status, partial: Vec::new(), length: None }
    }
}

impl ResponseParser {
    /// Takes the next bytes of the stream, and returns how many answers they complete.
    ///
    /// # Errors
    ///
    /// [`HttpError`]; the stream cannot be read any further.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<usize, HttpError> {
        let mut complete = 0;
        while !bytes.is_empty() {
            if let Expect::Body(left) = self.expect {
                let taken = left.min(bytes.len());
                bytes = &bytes[taken..];
                self.expect = Expect::Body(left - taken);
                complete += self.end_of_body();
                continue;
            }
            let Some(end) = memchr::memchr(b'\n', bytes) else {
                self.partial.extend_from_slice(bytes);
                let long = self.partial.len() > MAX_LINE;
                return if long { Err(HttpError::NotHttp(shown(&self.partial))) } else { Ok(complete) };
            };
            let mut line = std::mem::take(&mut self.partial);
            line.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            if line.len() > MAX_LINE {
                return Err(HttpError::NotHttp(shown(&line)));
            }
            self.take_line(line.strip_suffix(b"\r").ok_or_else(|| HttpError::NotHttp(shown(&line)))?)?;
            line.clear();
            self.partial = line; // keeps its allocation
            complete += self.end_of_body();
        }
        Ok(complete)
    }

    /// 1 when there is no more of a body.
    fn end_of_body(&mut self) -> usize {
        let over = matches!(self.expect, Expect::Body(0));
        if over {
            self.expect = Expect::Status;
        }
        usize::from(over)
    }

    fn take_line(&mut self, line: &[u8]) -> Result<(), HttpError> {
        match self.expect {
            Expect::Status => {
                let code = line.strip_prefix(b"HTTP/1.1 ").ok_or_else(|| HttpError::NotHttp(shown(line)))?;
                if !matches!(code.first(), Some(b'2' | b'3')) {
                    return Err(HttpError::Status(shown(line)));
                }
                (self.expect, self.length) = (Expect::Header, None);
            }
            // Neither of these has a body (RFC 9112, section 6.3), and neither comes unasked.
            Expect::Header if line.is_empty() => {
                self.expect = Expect::Body(self.length.ok_or(HttpError::NoLength)?);
            }
            Expect::Header => {
                let colon = memchr::memchr(b':', line).ok_or_else(|| HttpError::NotHttp(shown(line)))?;
                if line[..colon].eq_ignore_ascii_case(b"content-length") {
                    let length = parse_decimal(line[colon + 1..].trim_ascii());
                    self.length = Some(length.ok_or_else(|| HttpError::NotHttp(shown(line)))?);
                }
            }
            Expect::Body(_) => unreachable!("a body has no lines"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8], chunk: usize) -> Result<usize, HttpError> {
        let mut parser = ResponseParser::default();
        bytes.chunks(chunk).map(|part| parser.feed(part)).sum()
    }

    #[test]
    fn the_count_does_not_depend_on_the_reads() {
        let stream = b"HTTP/1.1 200 OK\r\nServer: x\r\ncontent-LENGTH:  5\r\n\r\na\r\n\r\n\
            HTTP/1.1 304 Not Modified\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nH";
        for chunk in 1..=stream.len() {
            assert_eq!(parse(stream, chunk), Ok(3), "{chunk}");
        }
    }

    #[test]
    fn unusable_answers_are_errors() {
        let error = |text: &str| parse(text.as_bytes(), 3).expect_err("no answer").to_string();
        assert!(error("HTTP/1.1 404 Not Found\r\n").contains("404 Not Found"));
        assert!(error("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").contains("Content-Length"));
        for text in ["ERROR\r\n", "HTTP/1.0 200 OK\r\n", "HTTP/1.1 200 OK\r\nnothing\r\n", "HTTP/1.1 200 OK\n"] {
            assert!(error(text).contains("not an answer of HTTP/1.1"), "{text}");
        }
        assert!(parse(&[b'x'; 20_000], 1000).is_err(), "a line without end");
    }

    #[test]
    fn a_request_names_its_host() {
        let mut out = Vec::new();
        append_get(&mut out, "198.18.0.1:80", "/");
        assert_eq!(out, b"GET / HTTP/1.1\r\nHost: 198.18.0.1:80\r\n\r\n");
    }
}
