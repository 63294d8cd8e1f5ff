//! An echo server on the user-space datapath, over a shared-memory NIC that the next `abey load` attaches to.
//!
//! ```text
//! cargo run --release -p abey-datapath --example echo_server -- memory:echo suspend20 &
//! abey load rr 10.0.0.1:7 --nic memory:echo --rate 10k --duration 1s
//! ```
//!
//! It serves until its last client has disconnected.

use std::collections::HashMap;
use std::error::Error;

use abey_datapath::{Interest, Runtime, TcpListener, TcpStream};

/// The event token of the listener; connections count up from 0.
const LISTENER: u64 = u64::MAX;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let nic = arguments.next().unwrap_or_else(|| "memory:echo".to_owned());
    let mode = arguments.next().unwrap_or_else(|| "suspend20".to_owned());

    let runtime = Runtime::builder()
        .nic(&nic, Default::default())
        .address([10, 0, 0, 1].into(), 24)
        .mode(mode.parse()?)
        .build()?;
    let listener = TcpListener::bind(&runtime, "10.0.0.1:7".parse()?)?;
    listener.set_nonblocking(true);
    println!("listening on 10.0.0.1:7 ({nic}, {mode})");
    serve(&runtime, &listener)?;

    let counters = runtime.counters(None);
    println!("{} suspensions, {} interrupts", counters.suspensions, counters.interrupts);
    Ok(())
}

/// Echoes what clients send, until at least one client has connected and all have disconnected.
fn serve(runtime: &Runtime, listener: &TcpListener) -> Result<(), Box<dyn Error>> {
    let epoll = runtime.epoll();
    epoll.add(listener, LISTENER, Interest::IN)?;
    let mut streams = HashMap::<u64, TcpStream>::new();
    let mut events = Vec::new();
    let mut accepted = 0;
    while accepted == 0 || !streams.is_empty() {
        // This is where the server polls the NIC, or parks, depending on the mode.
        epoll.wait(&mut events, 64, None)?;
        for event in &events {
            if event.token == LISTENER {
                while let Ok((stream, _peer)) = listener.accept() {
                    epoll.add(&stream, accepted, Interest::IN | Interest::RDHUP)?;
                    streams.insert(accepted, stream);
                    accepted += 1;
                }
            } else if streams.get(&event.token).is_some_and(|stream| !echo(stream)) {
                // Dropping a stream closes it and removes it from the epoll instance.
                streams.remove(&event.token);
            }
        }
    }
    Ok(())
}

/// Echoes one message. Returns false when the connection has ended.
fn echo(stream: &TcpStream) -> bool {
    let mut buffer = [0; 4096];
    match stream.read(&mut buffer) {
        Ok(0) => false,
        Ok(count) => stream.write_all(&buffer[..count]).is_ok(),
        Err(error) => error.is_would_block(),
    }
}
