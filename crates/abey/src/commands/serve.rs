//! `abey serve`: small epoll servers for loads.

use std::process::ExitCode;

use abey_datapath::control::{self, ControlError};
use abey_loadgen::network::Network;
use abey_loadgen::serve::{self, Listen, ServeError, Server};
use abey_loadgen::{Kernel, RequestResponse};
use abey_supervise::signals::{Signals, TERMINATION};
use clap::Subcommand;
use serde_json::{Map, Value};

use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::nic_args::{End, NicArgs, Opened, resolve};
use crate::output::print_text;
use crate::signals;

/// Run a small epoll server until SIGINT or SIGTERM
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    server: ServerArgs,
}

#[derive(Subcommand)]
enum ServerArgs {
    /// Serve keys and values over memcached's text protocol (get, gets, set, delete, version, quit)
    Kv {
        #[command(flatten)]
        common: Common,
    },
    /// Answer requests of a fixed size with responses of a fixed size, over TCP or UDP
    Rr {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        exchange: Exchange,
    },
}

#[derive(clap::Args)]
struct Common {
    /// Address and port to listen on; port 0 takes a free one [default: 127.0.0.1:11211; with --nic this end's address]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<String>,
    /// Threads, each with its own listener (SO_REUSEPORT) and epoll instance
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Run on these CPUs only
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    cpu: Vec<usize>,
    /// Print the datapath's counters, in total and per request, as one line of JSON at the end
    #[arg(long, requires = "nic")]
    counters: bool,
    #[command(flatten)]
    nic: NicArgs,
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    // Before other threads start, so that no signal is lost.
    let signals = signals::catch(&TERMINATION)?;
    let (common, exchange) = match args.server {
        ServerArgs::Kv { common } => (common, None),
        ServerArgs::Rr { common, exchange } => (common, Some(RequestResponse::from(exchange))),
    };
    let listen = common.listen()?;
    let Some(opened) = common.nic.open(End::Server, common.threads, &common.cpu)? else {
        serve(&Kernel, listen, exchange.as_ref(), &signals)?;
        return Ok(ExitCode::SUCCESS);
    };
    let control = serve_control(&opened)?;
    let requests = serve(&opened.datapath, listen, exchange.as_ref(), &signals)?;
    drop(control);
    if common.counters {
        print_text(&format!("{}\n", counters(&opened, requests)))?;
    }
    opened.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// Opens the control socket for `abey status` and `abey set`. Without a directory for it, prints a warning.
fn serve_control(opened: &Opened) -> Result<Option<control::Server>, Failure> {
    match opened.datapath.runtime().serve_control() {
        Ok(server) => Ok(Some(server)),
        Err(error @ ControlError::NoDirectory) => {
            eprintln!("abey: `abey status` and `abey set` cannot reach this server: {error}");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Serves until a signal arrives. Returns the number of responses.
fn serve<N: Network>(
    network: &N,
    listen: Listen,
    exchange: Option<&RequestResponse>,
    signals: &Signals,
) -> Result<u64, Failure> {
    let server: Server = match exchange {
        None => serve::kv::start_on(network, listen),
        Some(exchange) => serve::rr::start_on(network, listen, exchange),
    }
    .map_err(failure)?;
    print_text(&format!("listening on {}\n", server.local_addr()))?;
    signals.wait_for_signal();
    server.stop().map_err(Failure::check)
}

impl Common {
    /// Returns the address to listen on.
    fn listen(&self) -> Result<Listen, Failure> {
        let address = match &self.listen {
            Some(listen) => resolve(listen, "127.0.0.1:11211 or 0.0.0.0:0")?,
            None => self.nic.default_listen(11211),
        };
        self.nic.check_listen(address)?;
        Ok(Listen { address, threads: self.threads })
    }
}

/// Returns `{"rows": [{"requests": N, NAME: N, .., "per_request": {NAME: X, ..}}]}`; values per request are `null` without requests.
fn counters(opened: &Opened, requests: u64) -> Value {
    let counters = opened.datapath.runtime().counters(None);
    let sums = [("polls", counters.polls()), ("system_calls", counters.system_calls())];
    let all = || sums.into_iter().chain(counters.iter());
    let mut row: Map<String, Value> = all().map(|(name, count)| (name.to_owned(), count.into())).collect();
    let share = |(name, count): (&str, u64)| {
        let share = (requests > 0).then(|| count as f64 / requests as f64);
        (name.to_owned(), share.into())
    };
    row.insert("requests".to_owned(), requests.into());
    row.insert("per_request".to_owned(), Value::Object(all().map(share).collect()));
    serde_json::json!({ "rows": [row] })
}

fn failure(error: ServeError) -> Failure {
    match error {
        ServeError::NotPermitted { .. } => Failure::lacks(error),
        ServeError::Threads(_) | ServeError::Sizes(_) | ServeError::NoSuchAddress { .. } => Failure::usage(error),
        _ => Failure::check(error),
    }
}
