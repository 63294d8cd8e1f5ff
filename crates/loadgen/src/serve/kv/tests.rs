use super::*;
use proptest::prelude::*;

/// Passes `chunks` to a new protocol engine as reads would. Returns all output, and whether the engine closes the
/// connection.
fn converse(chunks: &[&[u8]]) -> (String, bool) {
    let mut service = KeyValue { store: Arc::default() };
    let (mut session, mut input, mut all) = (Session::default(), Vec::new(), Vec::new());
    for chunk in chunks {
        input.extend_from_slice(chunk);
        loop {
            let mut out = Vec::new();
            let served = service.serve(&mut session, &input, &mut out);
            input.drain(..served.consumed);
            all.extend_from_slice(&out);
            if served.close {
                return (String::from_utf8(all).unwrap(), true);
            }
            if served.consumed == 0 || input.is_empty() {
                break;
            }
        }
    }
    (String::from_utf8(all).unwrap(), false)
}

fn replies(text: &str) -> String {
    converse(&[text.as_bytes()]).0
}

#[test]
fn a_value_is_returned_until_it_is_deleted() {
    assert_eq!(
        replies("set a 7 0 3\r\nx\r\n\r\nget a b\r\ndelete a\r\ndelete a\r\nget a\r\n"),
        "STORED\r\nVALUE a 7 3\r\nx\r\n\r\nEND\r\nDELETED\r\nNOT_FOUND\r\nEND\r\n"
    );
}

#[test]
fn several_keys_are_returned_in_order() {
    assert_eq!(
        replies("set a 0 0 1\r\n1\r\nset b 0 0 0\r\n\r\nget b a b\r\n"),
        "STORED\r\nSTORED\r\nVALUE b 0 0\r\n\r\nVALUE a 0 1\r\n1\r\nVALUE b 0 0\r\n\r\nEND\r\n"
    );
}

#[test]
fn gets_returns_a_number_that_changes_with_each_set() {
    let text = replies("set a 0 0 1\r\n1\r\ngets a\r\nset a 0 0 1\r\n2\r\ngets a\r\n");
    let numbers: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("VALUE a 0 1 ")).collect();
    assert_eq!(numbers.len(), 2);
    assert_ne!(numbers[0], numbers[1]);
}

#[test]
fn noreply_has_an_effect_and_no_reply() {
    assert_eq!(
        replies("set a 0 0 1 noreply\r\n1\r\nget a\r\ndelete a noreply\r\nget a\r\n"),
        "VALUE a 0 1\r\n1\r\nEND\r\nEND\r\n"
    );
}

#[test]
fn a_value_in_the_past_has_expired() {
    assert_eq!(replies("set a 0 -1 1\r\n1\r\nget a\r\n"), "STORED\r\nEND\r\n");
    assert_eq!(replies("set a 0 1000000000 1\r\n1\r\nget a\r\n"), "STORED\r\nEND\r\n");
    assert_eq!(replies("set a 0 1000 1\r\n1\r\nget a\r\n"), "STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\n");
}

#[test]
fn errors_are_answered_and_the_next_request_is_parsed() {
    let long = "k".repeat(251);
    for (text, reply) in [
        ("nonsense\r\n".to_owned(), "ERROR"),
        ("\r\n".to_owned(), "ERROR"),
        ("get\r\n".to_owned(), "ERROR"),
        ("set a 0 0\r\n".to_owned(), "ERROR"),
        (format!("get {long}\r\n"), "CLIENT_ERROR bad command line format"),
        ("set a x 0 1\r\n".to_owned(), "CLIENT_ERROR bad command line format"),
        ("set a 0 0 -1\r\n".to_owned(), "CLIENT_ERROR bad command line format"),
        ("set a 0 0 1\r\nabc".to_owned(), "CLIENT_ERROR bad data chunk"),
        (format!("set a 0 0 2000000\r\n{}\r\n", "v".repeat(2_000_000)), "SERVER_ERROR object too large for cache"),
        (format!("set {long} 0 0 1\r\nv\r\n"), "SERVER_ERROR object too large for cache"),
    ] {
        let got = replies(&format!("{text}version\r\n"));
        let version = concat!("VERSION abey-", env!("CARGO_PKG_VERSION"));
        assert_eq!(got, format!("{reply}\r\n{version}\r\n"), "{}", &text[..text.len().min(60)]);
    }
}

#[test]
fn quit_and_endless_lines_end_the_connection() {
    assert_eq!(converse(&[b"quit\r\nversion\r\n"]), (String::new(), true));
    assert_eq!(converse(&[&vec![b'x'; MAX_LINE + 1]]), ("CLIENT_ERROR line too long\r\n".into(), true));
}

#[test]
fn output_is_bounded_and_continues() {
    let big = format!("set a 0 0 500000\r\n{}\r\n", "v".repeat(500_000));
    let gets = "get a\r\n".repeat(10);
    let (text, _) = converse(&[big.as_bytes(), gets.as_bytes()]);
    assert_eq!(text.matches("END\r\n").count(), 10);
    let mut service = KeyValue { store: Arc::default() };
    let (mut session, mut out) = (Session::default(), Vec::new());
    service.serve(&mut session, big.as_bytes(), &mut out);
    service.serve(&mut session, gets.as_bytes(), &mut out);
    assert!(out.len() < OUT_LIMIT + 600_000, "{}", out.len());
}

proptest! {
    #[test]
    fn any_cutting_of_the_requests_is_answered_the_same(
        cuts in prop::collection::vec(0usize..200, 0..12),
    ) {
        let text = b"set a 1 0 5\r\nab\r\nc\r\nget a\r\nset b 0 0 0 noreply\r\n\r\ngets a b\r\nfoo\r\ndelete b\r\nget b a\r\nquit\r\n";
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut % text.len()).chain([0, text.len()]).collect();
        cuts.sort_unstable();
        let chunks: Vec<&[u8]> = cuts.windows(2).map(|w| &text[w[0]..w[1]]).collect();
        prop_assert_eq!(converse(&chunks), converse(&[text]));
    }

    #[test]
    fn nonsense_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut service = KeyValue { store: Arc::default() };
        let mut out = Vec::new();
        service.serve(&mut Session::default(), &bytes, &mut out);
    }
}
