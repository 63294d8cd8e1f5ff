//! The HTTP server: one thread for connections, of which there are few at a time, and one for samples.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};

use super::connections::Connections;
use super::{Exporter, ExporterError, ServiceEvent};

/// Time limit for a request to arrive.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a connection, so that slow readers do not occupy it.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay after a failed accept: file descriptors may be exhausted.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
const INDEX_PAGE: &str = "<!doctype html><title>abey exporter</title><p><a href=\"/metrics\">metrics</a>\n";

type SharedExporter = Arc<Mutex<Exporter>>;
type Reply = Response<Full<Bytes>>;

/// Serves `/metrics` until SIGINT or SIGTERM. `on_event` is called when the server is ready and when it stops.
///
/// # Errors
/// [`ExporterError`] if the server cannot start or the first sample fails.
pub fn serve(
    address: SocketAddr,
    exporter: Exporter,
    on_event: &mut dyn FnMut(ServiceEvent),
) -> Result<(), ExporterError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // One sample at a time.
        .max_blocking_threads(1)
        .build()
        .map_err(ExporterError::Serve)?;
    let exporter = Arc::new(Mutex::new(exporter));
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt()).map_err(ExporterError::Serve)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(ExporterError::Serve)?;
        let bound = TcpListener::bind(address).await;
        let listener = bound.map_err(|source| ExporterError::Listen { address, source })?;
        // The first sample starts the counters and reports failing collectors before the first request.
        scrape(&exporter).await?;
        let local = listener.local_addr().map_err(ExporterError::Serve)?;
        on_event(ServiceEvent::Ready(Some(local)));
        tokio::select! {
            () = accept(listener, exporter) => {}
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        on_event(ServiceEvent::Stopping);
        Ok(())
    })
}

async fn accept(listener: TcpListener, exporter: SharedExporter) {
    let mut connections = Connections::default();
    let mut has_failed = false;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                has_failed = false;
                let is_busy = Arc::new(AtomicBool::new(false));
                let task = tokio::spawn(handle_connection(stream, Arc::clone(&exporter), Arc::clone(&is_busy)));
                connections.add(task.abort_handle(), is_busy);
                // The connection reads a request that is there already, before further ones may replace it.
                tokio::task::yield_now().await;
            }
            Err(error) => {
                if !std::mem::replace(&mut has_failed, true) {
                    eprintln!("abey: a connection was not accepted: {error}");
                }
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

/// Handles one request and closes the connection. Sets `is_busy` when the request has arrived.
async fn handle_connection(stream: TcpStream, exporter: SharedExporter, is_busy: Arc<AtomicBool>) {
    let service = service_fn(|request| {
        is_busy.store(true, Ordering::Relaxed);
        handle_request(request, Arc::clone(&exporter))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // An error of one client does not concern the server.
    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await;
}

async fn handle_request(request: Request<Incoming>, exporter: SharedExporter) -> Result<Reply, Infallible> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut refusal = reply(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET and HEAD\n".to_owned());
        refusal.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return Ok(refusal);
    }
    Ok(match request.uri().path() {
        "/metrics" => match scrape(&exporter).await {
            Ok(text) => reply(StatusCode::OK, METRICS_TYPE, text),
            Err(error) => reply(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", format!("{error}\n")),
        },
        "/" => reply(StatusCode::OK, "text/html; charset=utf-8", INDEX_PAGE.to_owned()),
        _ => reply(StatusCode::NOT_FOUND, "text/plain", "the metrics are at /metrics\n".to_owned()),
    })
}

/// Takes a sample on the blocking thread: a stopped datapath may delay it.
async fn scrape(exporter: &SharedExporter) -> Result<String, ExporterError> {
    let exporter = Arc::clone(exporter);
    let scrape = move || exporter.lock().unwrap_or_else(PoisonError::into_inner).scrape();
    let joined = tokio::task::spawn_blocking(scrape).await;
    joined.map_err(|error| ExporterError::Sample(error.to_string()))?
}

fn reply(status: StatusCode, content_type: &'static str, text: String) -> Reply {
    let reply = Response::builder().status(status).header(CONTENT_TYPE, content_type).body(Full::new(text.into()));
    reply.expect("a valid head")
}
