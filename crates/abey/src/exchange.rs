//! The arguments that clients and servers of a request/response exchange have in common.

use abey_loadgen::{RequestResponse, Transport};

#[derive(clap::Args)]
pub(crate) struct Exchange {
    /// Use UDP instead of TCP.
    #[arg(long)]
    udp: bool,
    /// Length of each request in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 1)]
    request_size: usize,
    /// Length of each response in bytes.
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
