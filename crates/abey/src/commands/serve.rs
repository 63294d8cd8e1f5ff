//! `abey serve`: small epoll servers to point a load at.

use std::process::ExitCode;

use abey_datapath::control::{self, ControlError};
use abey_load::network::Network;
use abey_load::serve::{self, Listen, ServeError, Server};
use abey_load::{Kernel, RequestResponse};
use clap::Subcommand;
use serde_json::{Map, Value};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::nic_args::{End, NicArgs, Opened, resolve};
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
    /// Address and port to listen on; port 0 takes a free one [default: 127.0.0.1:11211; with --nic this end's own
    /// address].
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<String>,
    /// Threads, each with its own listener (SO_REUSEPORT) and epoll instance.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Run on these CPUs only.
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    cpu: Vec<usize>,
    /// At the end print what the datapath did in all and per request, as one JSON document on one line.
    #[arg(long, requires = "nic")]
    counters: bool,
    #[command(flatten)]
    nic: NicArgs,
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    // Before there are threads, so that no signal is lost.
    let mut signals =
        Signals::new([SIGINT, SIGTERM]).map_err(|error| Failure::lacks(format!("cannot catch signals: {error}")))?;
    let (common, exchange) = match args.server {
        ServerArgs::Kv { common } => (common, None),
        ServerArgs::Rr { common, exchange } => (common, Some(RequestResponse::from(exchange))),
    };
    let listen = common.listen()?;
    let Some(opened) = common.nic.open(End::Server, common.threads, &common.cpu)? else {
        serve(&Kernel, listen, exchange.as_ref(), &mut signals)?;
        return Ok(ExitCode::SUCCESS);
    };
    let control = reachable(&opened)?;
    let requests = serve(&opened.datapath, listen, exchange.as_ref(), &mut signals)?;
    drop(control);
    if common.counters {
        print_text(&format!("{}\n", counters(&opened, requests)))?;
    }
    opened.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// Where `abey status` and `abey set` reach the datapath; without a place for it the server serves all the same.
fn reachable(opened: &Opened) -> Result<Option<control::Server>, Failure> {
    match opened.datapath.runtime().serve_control() {
        Ok(server) => Ok(Some(server)),
        Err(error @ ControlError::NoDirectory) => {
            eprintln!("abey: `abey status` and `abey set` will not reach this server: {error}");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Serves until a signal comes; gives how many requests were answered.
fn serve<N: Network>(
    network: &N,
    listen: Listen,
    exchange: Option<&RequestResponse>,
    signals: &mut Signals,
) -> Result<u64, Failure> {
    let server: Server = match exchange {
        None => serve::kv::start_on(network, listen),
        Some(exchange) => serve::rr::start_on(network, listen, exchange),
    }
    .map_err(failure)?;
    print_text(&format!("listening on {}\n", server.local_addr()))?;
    signals.forever().next();
    server.stop().map_err(Failure::check)
}

impl Common {
    /// Where to listen.
    fn listen(&self) -> Result<Listen, Failure> {
        let address = match &self.listen {
            Some(listen) => resolve(listen, "127.0.0.1:11211 or 0.0.0.0:0")?,
            None => self.nic.default_listen(11211),
        };
        self.nic.check_listen(address)?;
        Ok(Listen { address, threads: self.threads })
    }
}

/// `{"rows": [{"requests": N, NAME: N, .., "per_request": {NAME: X, ..}}]}`; per request is `null` without requests.
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
