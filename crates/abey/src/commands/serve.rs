//! `abey serve`: small epoll servers to point a load at.

use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;

use abey_load::serve::{self, Listen, ServeError, Server};
use abey_load::{RequestResponse, pin_to_cpus};
use clap::Subcommand;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::output::print_text;

/// Run a small epoll server to point a load at, until SIGINT or SIGTERM.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    server: ServerArgs,
}

#[derive(Subcommand)]
enum ServerArgs {
    /// A key-value server: memcached's text protocol (get, gets, set, delete, version, quit).
    Kv {
        #[command(flatten)]
        common: Common,
    },
    /// A request/response server: fixed sizes, over TCP or UDP.
    Rr {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        exchange: Exchange,
    },
}

#[derive(clap::Args)]
struct Common {
    /// Address and port to listen on; port 0 takes a free one.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:11211")]
    listen: String,
    /// Threads, each with its own listener (SO_REUSEPORT) and epoll instance.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Run on these CPUs only.
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    cpu: Vec<usize>,
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    // Before there are threads, so that no signal is lost.
    let mut signals =
        Signals::new([SIGINT, SIGTERM]).map_err(|error| Failure::lacks(format!("cannot catch signals: {error}")))?;
    let server = match args.server {
        ServerArgs::Kv { common } => serve::kv::start(common.prepare()?),
        ServerArgs::Rr { common, exchange } => {
            let sizes = RequestResponse::from(exchange);
            serve::rr::start(common.prepare()?, &sizes)
        }
    };
    let server: Server = server.map_err(failure)?;
    print_text(&format!("listening on {}\n", server.local_addr()))?;
    signals.forever().next();
    server.stop().map_err(Failure::check)?;
    Ok(ExitCode::SUCCESS)
}

impl Common {
    /// Where to listen; the process is on its CPUs afterwards.
    fn prepare(&self) -> Result<Listen, Failure> {
        let address = resolve(&self.listen)?;
        if !self.cpu.is_empty() {
            pin_to_cpus(&self.cpu).map_err(Failure::usage)?;
        }
        Ok(Listen { address, threads: self.threads })
    }
}

fn resolve(listen: &str) -> Result<SocketAddr, Failure> {
    let hint = "write an address and a port, such as 127.0.0.1:11211 or 0.0.0.0:0";
    let mut addresses = listen
        .to_socket_addrs()
        .map_err(|error| Failure::usage(format!("`{listen}` is no address ({error}): {hint}")))?;
    addresses.next().ok_or_else(|| Failure::usage(format!("`{listen}` has no address: {hint}")))
}

fn failure(error: ServeError) -> Failure {
    match error {
        ServeError::NotPermitted { .. } => Failure::lacks(error),
        ServeError::Threads(_) | ServeError::Sizes(_) | ServeError::NoSuchAddress { .. } => Failure::usage(error),
        _ => Failure::check(error),
    }
}
