//! A small key-value server that speaks memcached's text protocol: `get`, `gets`, `set`, `delete`, `version`, `quit`.
//!
//! Nothing is evicted: above [`MEMORY_LIMIT`] a `set` fails.

mod request;
mod store;

use std::sync::Arc;

use self::request::Request;
pub use self::store::MEMORY_LIMIT;
use self::store::Store;
use super::tcp::{OUT_LIMIT, Served, Service};
use super::{Listen, ServeError, Server, tcp};
use crate::kernel::Kernel;
use crate::memcached::append_decimal;
use crate::network::Network;

/// The longest request line, bytes: a `get` of about 250 of the longest keys.
const MAX_LINE: usize = 64 << 10;

/// Starts the server on the kernel's sockets; its threads share one store.
///
/// # Errors
///
/// [`ServeError`] if the address cannot be listened on.
pub fn start(listen: Listen) -> Result<Server, ServeError> {
    start_on(&Kernel, listen)
}

/// Starts the server on any network; see [`start`].
///
/// # Errors
///
/// Those of [`start`].
pub fn start_on<N: Network>(network: &N, listen: Listen) -> Result<Server, ServeError> {
    let store = Arc::new(Store::default());
    Server::start(network, listen, N::listen, || {
        let service = KeyValue { store: Arc::clone(&store) };
        move |place| tcp::serve(&place, service)
    })
}

struct KeyValue {
    store: Arc<Store>,
}

/// The state of a connection: bytes of a rejected value that are still to be discarded.
#[derive(Default)]
struct Session {
    swallow: usize,
}

impl Service for KeyValue {
    type Session = Session;

    fn serve(&mut self, session: &mut Session, input: &[u8], out: &mut Vec<u8>) -> Served {
        let (mut consumed, mut requests) = (0, 0);
        while out.len() < OUT_LIMIT {
            let swallowed = session.swallow.min(input.len() - consumed);
            session.swallow -= swallowed;
            consumed += swallowed;
            let rest = &input[consumed..];
            let Some(end) = memchr::memchr(b'\n', rest) else {
                if rest.len() <= MAX_LINE {
                    break;
                }
                out.extend_from_slice(b"CLIENT_ERROR line too long\r\n");
                return Served { consumed: input.len(), close: true, requests };
            };
            let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
            match request::parse(line) {
                Request::Quit => return Served { consumed: consumed + end + 1, close: true, requests },
                Request::Set(set) => {
                    let Some(block) = rest[end + 1..].get(..set.size + 2) else { break };
                    self.set(&set, block, out);
                    consumed += end + 1 + block.len();
                    requests += 1;
                    continue;
                }
                Request::TooLarge { size, noreply } => {
                    session.swallow = size + 2;
                    if !noreply {
                        out.extend_from_slice(b"SERVER_ERROR object too large for cache\r\n");
                    }
                }
                Request::Get { keys, with_cas } => {
                    for key in keys.split(|&b| b == b' ').filter(|key| !key.is_empty()) {
                        self.store.append_value(key, with_cas, out);
                    }
                    out.extend_from_slice(b"END\r\n");
                }
                Request::Delete { key, noreply } => {
                    let deleted = self.store.delete(key);
                    if !noreply {
                        out.extend_from_slice(if deleted { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" });
                    }
                }
                Request::Version => {
                    out.extend_from_slice(concat!("VERSION abey-", env!("CARGO_PKG_VERSION"), "\r\n").as_bytes());
                }
                Request::Bad(reply) => {
                    out.extend_from_slice(reply.as_bytes());
                    out.extend_from_slice(b"\r\n");
                }
            }
            consumed += end + 1;
            requests += 1;
        }
        Served { consumed, close: false, requests }
    }
}

impl KeyValue {
    fn set(&self, set: &request::Set<'_>, block: &[u8], out: &mut Vec<u8>) {
        let reply: &[u8] = match block.strip_suffix(b"\r\n") {
            None => b"CLIENT_ERROR bad data chunk\r\n",
            Some(value) if self.store.set(set.key, set.flags, set.expires, value) => b"STORED\r\n",
            Some(_) => b"SERVER_ERROR out of memory storing object\r\n",
        };
        if !set.noreply {
            out.extend_from_slice(reply);
        }
    }
}

/// Appends `VALUE KEY FLAGS BYTES [CAS]` and the value.
fn append_value_reply(out: &mut Vec<u8>, key: &[u8], flags: u32, cas: Option<u64>, value: &[u8]) {
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    out.push(b' ');
    append_decimal(out, flags as usize);
    out.push(b' ');
    append_decimal(out, value.len());
    if let Some(cas) = cas {
        out.push(b' ');
        append_decimal(out, cas as usize);
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests;
