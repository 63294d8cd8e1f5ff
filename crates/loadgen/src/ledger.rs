//! The ledger of one thread's run: which requests and answers count, and as what.

use crate::connection::{Answer, Request};
use crate::tally::Tally;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Warmup,
    Measuring,
    /// Nothing more is sent; `announced` once the caller was notified of the interval's end.
    Draining {
        announced: bool,
    },
}

/// The counts of a run, separate from the sockets so that answers can be recorded while one of these is being read.
pub(crate) struct Ledger {
    pub(crate) tally: Tally,
    pub(crate) open_loop: bool,
    pub(crate) stage: Stage,
    /// The measured interval, ns.
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) outstanding: usize,
    /// Since when requests have been outstanding without any answer, ns.
    pub(crate) silent_since: Option<u64>,
    pub(crate) consecutive_losses: usize,
    /// All connections had their depth outstanding when a request was due.
    pub(crate) starved: bool,
    /// Requests due before this time had to wait because of `starved`, ns.
    pub(crate) queued_until: u64,
}

impl Ledger {
    /// Returns an empty ledger of a run that measures from `from` to `to`.
    pub(crate) fn new(open_loop: bool, from: u64, to: u64) -> Self {
        Self {
            tally: Tally::new(),
            open_loop,
            stage: Stage::Warmup,
            from,
            to,
            outstanding: 0,
            silent_since: None,
            consecutive_losses: 0,
            starved: false,
            queued_until: 0,
        }
    }

    pub(crate) fn measures(&self, time: u64) -> bool {
        self.from <= time && time < self.to
    }

    pub(crate) fn sent(&mut self, intended: u64, now: u64) {
        self.outstanding += 1;
        self.silent_since.get_or_insert(now);
        if !self.measures(intended) {
            return;
        }
        self.tally.due += 1;
        if !self.open_loop {
            return;
        }
        if intended <= self.queued_until {
            self.tally.queued += 1;
        } else {
            self.tally.send_lag.saturating_record(now - intended);
        }
    }

    pub(crate) fn answered(&mut self, request: Request, answer: Answer, now: u64) {
        self.outstanding -= 1;
        self.consecutive_losses = 0;
        self.silent_since = (self.outstanding > 0).then_some(now);
        if self.starved {
            self.starved = false;
            self.queued_until = now;
        }
        let within = self.stage == Stage::Measuring && self.measures(now);
        self.tally.answered += u64::from(within);
        if !(if self.open_loop { self.measures(request.intended) } else { within }) {
            return;
        }
        self.tally.latency.saturating_record(now.saturating_sub(request.intended).max(1));
        match answer {
            Answer::Hit => {
                self.tally.gets += 1;
                self.tally.hits += 1;
            }
            Answer::Miss => self.tally.gets += 1,
            Answer::Stored => self.tally.sets += 1,
            Answer::Exchanged => {}
        }
    }
}
