//! The CPU time of an idle datapath with a thousand open connections, in every mode.
//!
//! A thread waits without a timeout in the epoll that holds all of them; in `sockbusy` it waits in a read of one. Each
//! connection has carried a request and its response.
//!
//! `cargo bench -p abey-datapath --bench idle [-- MODE...]`

mod common;

use std::time::{Duration, Instant};

use abey_datapath::{Error, Interest};
use abey_delivery::Mode;
use abey_nic::MemoryShape;

const CONNECTIONS: usize = 1000;
const SPAN: Duration = Duration::from_secs(3);

/// Returns the CPU time in percent, and the runtime's counters.
fn run(mode: Mode) -> (f64, abey_datapath::Counters) {
    let (client, server) = common::hosts(MemoryShape::default());
    let (ours, theirs) = common::connect(&client, &server, CONNECTIONS);
    server.set_mode(mode).expect("a mode");
    let epoll = server.epoll();
    for (token, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        for (from, to) in [(ours, theirs), (theirs, ours)] {
            from.write_all(&[7; 64]).expect("written");
            to.set_nonblocking(false);
            to.read_exact(&mut [0; 64]).expect("a message");
        }
        epoll.add(theirs, token as u64, Interest::IN).expect("new");
    }
    let by_epoll = mode.settings().socket_busy_poll.is_none();
    std::thread::scope(|scope| {
        let waiting = common::spawn_on(scope, common::SERVER_CPU, || {
            let mut events = Vec::new();
            if by_epoll {
                epoll.wait(&mut events, 64, None).expect("a wait");
            } else {
                let end: Result<usize, Error> = theirs[0].read(&mut [0; 64]);
                end.expect("the last message");
            }
        });
        // The last timers of the traffic expire.
        std::thread::sleep(Duration::from_millis(700));
        let names = ["server", "napi/server", "napi-work"];
        let (begun, spent, counters) = (Instant::now(), common::named_time(&names), server.counters(None));
        std::thread::sleep(SPAN);
        let spent = common::named_time(&names).saturating_sub(spent);
        let percent = spent.as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0;
        let counters = server.counters(None).since(&counters);
        ours[0].write_all(&[7]).expect("written");
        waiting.join().expect("woken");
        (percent, counters)
    })
}

fn main() {
    let chosen = common::chosen();
    println!("an idle datapath with {CONNECTIONS} connections, {} s (target 0.5 %)", SPAN.as_secs());
    println!("{:<16} {:>9} {:>9} {:>14}", "mode", "CPU %", "polls/s", "system calls/s");
    for name in Mode::EXAMPLES {
        if chosen.is_empty() || chosen.iter().any(|chosen| chosen == name) {
            let (percent, counters) = run(common::mode(name));
            let polls = counters.softirq_polls
                + counters.softirq_thread_polls
                + counters.thread_polls
                + counters.worker_polls
                + counters.busy_polls;
            let seconds = SPAN.as_secs_f64();
            let remark = match name {
                "fullbusy" | "threaded-busy" => "  (never sleeps)",
                _ if percent >= 0.5 => "  above the target",
                _ => "",
            };
            let (polls, calls) = (polls as f64 / seconds, counters.system_calls() as f64 / seconds);
            println!("{name:<16} {percent:>9.3} {polls:>9.1} {calls:>14.1}{remark}");
        }
    }
}
