//! Serves the metrics over HTTP: one thread for connections, of which there are few at a time, and one for samples.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use sd_notify::NotifyState;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::scrape::Exporter;
use crate::failure::Failure;
use crate::service::notify;

/// Most connections at a time; more wait until one of them has its answer.
const CONNECTIONS: usize = 16;
/// How long a client may take to ask.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long one may take in all: for slow readers.
const LONGEST: Duration = Duration::from_secs(30);

const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
const PAGE: &str = "<!doctype html><title>abey exporter</title><p><a href=\"/metrics\">metrics</a>\n";

type Shared = Arc<Mutex<Exporter>>;
type Reply = Response<Full<Bytes>>;

/// Until SIGINT or SIGTERM.
pub(super) fn run(listen: SocketAddr, exporter: Exporter) -> Result<ExitCode, Failure> {
    let lacks = |error: std::io::Error| Failure::lacks(format!("cannot serve: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Samples are taken one after the other.
        .max_blocking_threads(1)
        .build()
        .map_err(lacks)?;
    let exporter = Arc::new(Mutex::new(exporter));
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt()).map_err(lacks)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(lacks)?;
        let listener = TcpListener::bind(listen).await.map_err(|error| {
            Failure::lacks(format!("cannot listen on {listen}: {error}; choose another address with --listen"))
        })?;
        // The first sample says what cannot be read, and begins to count, before anybody asks.
        answer(&exporter).await?;
        let address = listener.local_addr().map_err(lacks)?;
        eprintln!("abey: metrics at http://{address}/metrics");
        notify(&[NotifyState::Ready]);
        tokio::select! {
            () = accept(listener, exporter) => {}
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        notify(&[NotifyState::Stopping]);
        Ok(ExitCode::SUCCESS)
    })
}

async fn accept(listener: TcpListener, exporter: Shared) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let permit = Arc::clone(&room).acquire_owned().await.expect("never closed");
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(converse(stream, Arc::clone(&exporter), permit))),
            // The other end is gone already, or there are no descriptors just now.
            Err(error) => {
                eprintln!("abey: a connection was not accepted: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// One request and its answer.
async fn converse(stream: TcpStream, exporter: Shared, _permit: OwnedSemaphorePermit) {
    let service = service_fn(|request| reply(request, Arc::clone(&exporter)));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // What goes wrong with a client is the client's.
    let _ = tokio::time::timeout(LONGEST, connection).await;
}

async fn reply(request: Request<Incoming>, exporter: Shared) -> Result<Reply, Infallible> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut refusal = with(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET and HEAD\n".to_owned());
        refusal.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return Ok(refusal);
    }
    Ok(match request.uri().path() {
        "/metrics" => match answer(&exporter).await {
            Ok(text) => with(StatusCode::OK, METRICS, text),
            Err(failure) => with(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", format!("{failure}\n")),
        },
        "/" => with(StatusCode::OK, "text/html; charset=utf-8", PAGE.to_owned()),
        _ => with(StatusCode::NOT_FOUND, "text/plain", "the metrics are at /metrics\n".to_owned()),
    })
}

/// The metrics, on the thread for samples: one may wait for a datapath that is stopped.
async fn answer(exporter: &Shared) -> Result<String, Failure> {
    let exporter = Arc::clone(exporter);
    let scrape = move || exporter.lock().unwrap_or_else(PoisonError::into_inner).scrape();
    let done = tokio::task::spawn_blocking(scrape).await;
    done.map_err(|error| Failure::check(format!("the sample was not taken: {error}")))?
}

fn with(status: StatusCode, kind: &'static str, text: String) -> Reply {
    let reply = Response::builder().status(status).header(CONTENT_TYPE, kind).body(Full::new(text.into()));
    reply.expect("a valid head")
}
