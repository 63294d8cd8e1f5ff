//! Requests and responses, bulk data, many connections: in every mode.

use crate::support::{EchoServer, connect, every_mode, pair, round_trip};

#[test]
fn requests_are_answered_in_every_mode() {
    for mode in every_mode() {
        eprintln!("{mode}");
        let (client, server) = pair(mode, 1);
        let echo = EchoServer::start(&server, 7);
        let stream = connect(&client, echo.address);
        for number in 0..200 {
            round_trip(&stream, number);
        }
        assert_eq!(stream.incoming_napi_id(), client.napi_ids()[0]);
        let counters = server.counters(None);
        eprintln!("{counters:?}");
        assert!(counters.packets >= 200, "{mode}: {counters:?}");
    }
}
