//! The configuration of a load: target, workload, connections; checked when built.

use std::net::SocketAddr;
use std::time::Duration;

use crate::dist::SizeDist;

/// The longest key of the memcached protocol, in bytes.
pub(crate) const MAX_KEY_SIZE: usize = 250;
/// The largest value that is stored, in bytes: below memcached's default item size of 1 MiB, with room for the key.
pub(crate) const MAX_VALUE_SIZE: usize = 1_000_000;
/// The largest UDP payload over IPv4, in bytes.
const MAX_DATAGRAM: usize = 65_507;
/// The largest request or response of `rr` over TCP, in bytes.
const MAX_MESSAGE: usize = 16 << 20;
const MAX_CONNECTIONS: usize = 65_536;
const MAX_DEPTH: usize = 65_536;
const MAX_KEYS: usize = 10_000_000;

/// Why a configuration is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A count or size is out of range.
    #[error("{what} is {value}, which is out of range: it can be {low} to {high}")]
    OutOfRange {
        /// The setting.
        what: &'static str,
        /// The value.
        value: usize,
        /// The least it can be.
        low: usize,
        /// The most it can be.
        high: usize,
    },
    /// There are fewer connections than threads to drive them.
    #[error("{threads} threads cannot share {connections} connections: each thread needs at least one of its own")]
    TooFewConnections {
        /// Threads asked for.
        threads: usize,
        /// Connections asked for.
        connections: usize,
    },
    /// The share of sets is not between 0 and 1.
    #[error("the set ratio is {0}, which is out of range: it is a share of all requests, 0 to 1")]
    SetRatio(f64),
    /// There are fewer keys of this size than the key space needs.
    #[error("keys of {size} bytes cannot name {keys} different keys: use at least {needed} bytes, or fewer keys")]
    KeysTooShort {
        /// Key size asked for, bytes.
        size: usize,
        /// Key space asked for.
        keys: usize,
        /// Bytes that the largest key number takes.
        needed: usize,
    },
    /// The text is not a rate.
    #[error("`{0}` is not a rate: write requests per second such as 500, 50k or 1.2M (at most 10M), or `max`")]
    Rate(String),
    /// The run is empty or too long.
    #[error("the {what} is {value:?}, which is out of range: it can be {low:?} to 24 hours")]
    Duration {
        /// The setting.
        what: &'static str,
        /// The value.
        value: Duration,
        /// The least it can be.
        low: Duration,
    },
    /// A size is neither a number of bytes nor a named distribution.
    #[error("`{0}` is not a size: write a number of bytes, `fixed:N` or `etc`")]
    Size(String),
    /// The path is not a request path.
    #[error("`{0}` is not a path: write it from the slash, without spaces, as in /index.html")]
    Path(String),
    /// The port of the server is zero.
    #[error("port 0 of {0} is not a server's port: give the port that it listens on")]
    NoPort(SocketAddr),
}

/// The kind of requests.
#[derive(Clone, Debug, PartialEq)]
pub enum Workload {
    /// Memcached's text protocol over TCP, a mix of `get` and `set`.
    Memcached(Memcached),
    /// The same mix over redis's protocol.
    Redis(Memcached),
    /// `GET` over HTTP/1.1 connections that stay open.
    Http(HttpGet),
    /// Fixed-size requests and responses, as netperf's TCP_RR and UDP_RR.
    RequestResponse(RequestResponse),
}

/// The memcached mix.
#[derive(Clone, Debug, PartialEq)]
pub struct Memcached {
    /// Share of requests that are `set`, 0 to 1; the others are `get`.
    pub set_ratio: f64,
    /// Number of different keys, all stored before the first measurement and asked for uniformly.
    pub keys: usize,
    /// Key sizes, bytes; each key keeps its size.
    pub key_size: SizeDist,
    /// Value sizes, bytes; drawn anew for each `set`.
    pub value_size: SizeDist,
}

impl Default for Memcached {
    /// 3 % sets, 10,000 keys of 30 bytes, values of 200 bytes.
    fn default() -> Self {
        Self { set_ratio: 0.03, keys: 10_000, key_size: SizeDist::Fixed(30), value_size: SizeDist::Fixed(200) }
    }
}

/// The request to an HTTP server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpGet {
    /// Path and query, from the slash.
    pub path: String,
}

impl Default for HttpGet {
    fn default() -> Self {
        Self { path: "/".to_owned() }
    }
}

/// The transport of [`RequestResponse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// One TCP connection per flow.
    Tcp,
    /// One connected UDP socket per flow; a request without an answer for [`crate::rr::LOST_AFTER`] counts as lost.
    Udp,
}

/// The request/response exchange.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestResponse {
    /// TCP or UDP.
    pub transport: Transport,
    /// Bytes of each request.
    pub request_bytes: usize,
    /// Bytes of each response; must be the server's setting.
    pub response_bytes: usize,
}

impl Default for RequestResponse {
    /// One byte each way over TCP, as netperf.
    fn default() -> Self {
        Self { transport: Transport::Tcp, request_bytes: 1, response_bytes: 1 }
    }
}

/// The options of a [`Config`].
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The server.
    pub target: SocketAddr,
    /// The kind of requests.
    pub workload: Workload,
    /// Connections (flows) in all.
    pub connections: usize,
    /// Threads that share the connections; 1 runs on the calling thread.
    pub threads: usize,
    /// Requests that may be outstanding on one connection; further ones wait, and their latency still counts from
    /// their intended send time.
    pub depth: usize,
    /// How long the server may take to accept a connection, and how long every outstanding request may go without any
    /// answer before the run ends in an error.
    pub timeout: Duration,
}

impl Options {
    /// 20 connections, one thread, one outstanding request per connection, 5 s timeout.
    pub fn new(target: SocketAddr, workload: Workload) -> Self {
        Self { target, workload, connections: 20, threads: 1, depth: 1, timeout: Duration::from_secs(5) }
    }
}

/// Checked [`Options`].
#[derive(Clone, Debug, PartialEq)]
pub struct Config(Options);

impl Config {
    /// Checks `options`, and returns a configuration.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the first setting that is out of range, and the range.
    pub fn new(options: Options) -> Result<Self, ConfigError> {
        if options.target.port() == 0 {
            return Err(ConfigError::NoPort(options.target));
        }
        within("the number of connections", options.connections, 1, MAX_CONNECTIONS)?;
        within("the number of threads", options.threads, 1, 1024)?;
        within("the depth", options.depth, 1, MAX_DEPTH)?;
        if options.connections < options.threads {
            let Options { threads, connections, .. } = options;
            return Err(ConfigError::TooFewConnections { threads, connections });
        }
        check_duration("timeout", options.timeout, Duration::from_millis(1))?;
        match &options.workload {
            Workload::Memcached(mix) | Workload::Redis(mix) => mix.check()?,
            Workload::Http(get) => get.check()?,
            Workload::RequestResponse(exchange) => exchange.check()?,
        }
        Ok(Self(options))
    }

    /// Returns the options.
    pub fn options(&self) -> &Options {
        &self.0
    }
}

fn within(what: &'static str, value: usize, low: usize, high: usize) -> Result<(), ConfigError> {
    if (low..=high).contains(&value) { Ok(()) } else { Err(ConfigError::OutOfRange { what, value, low, high }) }
}

pub(crate) fn check_duration(what: &'static str, value: Duration, low: Duration) -> Result<(), ConfigError> {
    let day = Duration::from_secs(24 * 3600);
    if (low..=day).contains(&value) { Ok(()) } else { Err(ConfigError::Duration { what, value, low }) }
}

impl HttpGet {
    fn check(&self) -> Result<(), ConfigError> {
        let fits = self.path.starts_with('/') && self.path.bytes().all(|byte| byte.is_ascii_graphic());
        if fits { Ok(()) } else { Err(ConfigError::Path(self.path.clone())) }
    }
}

impl Memcached {
    fn check(&self) -> Result<(), ConfigError> {
        if !(0.0..=1.0).contains(&self.set_ratio) {
            return Err(ConfigError::SetRatio(self.set_ratio));
        }
        within("the number of keys", self.keys, 1, MAX_KEYS)?;
        if let SizeDist::Fixed(size) = self.value_size {
            within("the value size", size, 0, MAX_VALUE_SIZE)?;
        }
        if let SizeDist::Fixed(size) = self.key_size {
            within("the key size", size, 1, MAX_KEY_SIZE)?;
            let needed = digits(self.keys);
            if size < needed {
                return Err(ConfigError::KeysTooShort { size, keys: self.keys, needed });
            }
        }
        Ok(())
    }
}

/// Returns the number of decimal digits of the largest key number of a space of `keys`.
pub(crate) fn digits(keys: usize) -> usize {
    (keys - 1).checked_ilog10().map_or(1, |log| log as usize + 1)
}

impl RequestResponse {
    /// # Errors
    ///
    /// [`ConfigError::OutOfRange`] where the transport cannot carry such a message.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let most = match self.transport {
            Transport::Tcp => MAX_MESSAGE,
            Transport::Udp => MAX_DATAGRAM,
        };
        within("the request size", self.request_bytes, 1, most)?;
        within("the response size", self.response_bytes, 1, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_options_are_refused() {
        let good = Options::new(([127, 0, 0, 1], 1).into(), Workload::Memcached(Memcached::default()));
        assert!(Config::new(good.clone()).is_ok());
        type Change = fn(&mut Options);
        let bad: [Change; 9] = [
            |o| o.target.set_port(0),
            |o| o.connections = 0,
            |o| o.threads = 0,
            |o| o.depth = 0,
            |o| o.threads = 21,
            |o| o.timeout = Duration::ZERO,
            |o| o.workload = Workload::Memcached(Memcached { set_ratio: f64::NAN, ..Memcached::default() }),
            |o| o.workload = Workload::Memcached(Memcached { key_size: SizeDist::Fixed(3), ..Memcached::default() }),
            |o| {
                let (transport, request_bytes) = (Transport::Udp, 70_000);
                o.workload = Workload::RequestResponse(RequestResponse { transport, request_bytes, response_bytes: 1 });
            },
        ];
        for change in bad {
            let mut options = good.clone();
            change(&mut options);
            assert!(Config::new(options.clone()).is_err(), "{options:?}");
        }
    }

    #[test]
    fn key_numbers_take_their_digits() {
        for (keys, want) in [(1, 1), (2, 1), (10, 1), (11, 2), (100, 2), (101, 3), (10_000, 4)] {
            assert_eq!(digits(keys), want, "{keys}");
        }
    }
}
