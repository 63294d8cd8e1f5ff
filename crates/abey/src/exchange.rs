//! What a request/response exchange looks like: the options that its client and its server have in common.

use abey_load::{RequestResponse, Transport};

#[derive(clap::Args)]
pub(crate) struct Exchange {
    /// UDP instead of TCP.
    #[arg(long)]
    udp: bool,
    /// Bytes of each request.
    #[arg(long, value_name = "BYTES", default_value_t = 1)]
    request_size: usize,
    /// Bytes of each response.
    #[arg(long, value_name = "BYTES", default_value_t = 1)]
    response_size: usize,
}

impl From<Exchange> for RequestResponse {
    fn from(exchange: Exchange) -> Self {
        Self {
            transport: if exchange.udp { Transport::Udp } else { Transport::Tcp },
            request_bytes: exchange.request_size,
            response_bytes: exchange.response_size,
        }
    }
}
