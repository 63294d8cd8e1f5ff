//! Records what a world asks of an instance of the delivery core, and what it answers: every call with its time.
//!
//! The datapath and the simulator call their instances through [`Recorded`]. Two recordings are compared with each other, or
//! one with a plain [`Napi`] that is given the same calls ([`first_difference`]).

#![forbid(unsafe_code)]

use abey_delivery::{Actions, Nanos, Napi, NapiConfig, NapiSettings, PollContext, PollDone, Poller};

/// One call to the delivery core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// [`Napi::enable`].
    Enable,
    /// [`Napi::disable`].
    Disable,
    /// [`Napi::handle_interrupt`].
    Interrupt(Nanos),
    /// [`Napi::handle_unmasked`], and whether packets were pending.
    Unmasked(Nanos, bool),
    /// [`Napi::handle_timer`].
    Timer(Nanos),
    /// [`Napi::handle_settings`].
    Settings(NapiSettings),
    /// [`Napi::suspend`].
    Suspend(Nanos),
    /// [`Napi::resume`].
    Resume(Nanos),
    /// [`Napi::begin_poll`].
    BeginPoll(PollContext),
    /// [`Napi::begin_busy_poll`]: poller, budget, prefer.
    BeginBusyPoll(Poller, u16, bool),
    /// [`Napi::handle_poll_done`], and how many packets the poll took.
    PollDone(Nanos, u16),
    /// [`Napi::end_busy_poll`].
    EndBusyPoll(Nanos, Poller),
}

/// The answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Of calls that answer with actions; those that answer with nothing have [`Actions::NONE`].
    Actions(Actions),
    /// Of the calls that begin a poll.
    Budget(Option<u16>),
    /// Of the end of a poll.
    Done(PollDone),
    /// Of the end of a busy poll.
    Last(Option<u16>, Actions),
}

/// One transition of the delivery core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// What happened.
    pub call: Call,
    /// What the core said.
    pub answer: Answer,
}

/// What is told of every transition.
pub type Recorder = Box<dyn FnMut(Transition) + Send>;

impl Call {
    /// Makes the call.
    pub fn apply(self, napi: &mut Napi) -> Answer {
        match self {
            Self::BeginPoll(_) | Self::BeginBusyPoll(..) => Answer::Budget(self.begin(napi)),
            Self::PollDone(now, work) => Answer::Done(napi.handle_poll_done(now, work)),
            Self::EndBusyPoll(now, poller) => {
                let (last, actions) = napi.end_busy_poll(now, poller);
                Answer::Last(last, actions)
            }
            _ => Answer::Actions(self.act(napi)),
        }
    }

    #[inline]
    fn act(self, napi: &mut Napi) -> Actions {
        match self {
            Self::Enable => napi.enable(),
            Self::Disable => napi.disable(),
            Self::Interrupt(now) => napi.handle_interrupt(now),
            Self::Unmasked(now, pending) => napi.handle_unmasked(now, pending),
            Self::Timer(now) => napi.handle_timer(now),
            Self::Settings(settings) => {
                napi.handle_settings(settings);
                Actions::NONE
            }
            Self::Suspend(now) => napi.suspend(now),
            Self::Resume(now) => napi.resume(now),
            other => unreachable!("{other:?} is not answered with actions"),
        }
    }

    #[inline]
    fn begin(self, napi: &mut Napi) -> Option<u16> {
        match self {
            Self::BeginPoll(context) => napi.begin_poll(context),
            Self::BeginBusyPoll(poller, budget, prefer) => napi.begin_busy_poll(poller, budget, prefer),
            other => unreachable!("{other:?} begins no poll"),
        }
    }
}

/// Gives a fresh instance the recorded calls, and returns the first transition at which it answers differently.
///
/// `settings` are those that the recorded instance began with.
pub fn first_difference(
    config: NapiConfig,
    settings: NapiSettings,
    recorded: &[Transition],
) -> Option<(usize, Transition, Answer)> {
    let mut napi = Napi::new(config, settings);
    recorded.iter().enumerate().find_map(|(at, transition)| {
        let answer = transition.call.apply(&mut napi);
        (answer != transition.answer).then_some((at, *transition, answer))
    })
}

/// The first place at which two recordings differ, and what stands there; who busy polls may have other numbers.
pub fn first_divergence(
    left: &[Transition],
    right: &[Transition],
) -> Option<(usize, Option<Transition>, Option<Transition>)> {
    let at = (0..left.len().max(right.len())).find(|at| left.get(*at).map(unnamed) != right.get(*at).map(unnamed))?;
    Some((at, left.get(at).copied(), right.get(at).copied()))
}

/// The transition with every poller called by the same number.
fn unnamed(transition: &Transition) -> Transition {
    const ANYBODY: Poller = Poller(0);
    let call = match transition.call {
        Call::BeginBusyPoll(_, budget, prefer) => Call::BeginBusyPoll(ANYBODY, budget, prefer),
        Call::EndBusyPoll(now, _) => Call::EndBusyPoll(now, ANYBODY),
        other => other,
    };
    Transition { call, ..*transition }
}

/// A [`Napi`] that is recorded if somebody wants that.
pub struct Recorded {
    napi: Napi,
    recorder: Option<Recorder>,
}

impl std::fmt::Debug for Recorded {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.napi.fmt(formatter)
    }
}

impl Recorded {
    /// With a recorder, or without.
    pub fn new(napi: Napi, recorder: Option<Recorder>) -> Self {
        Self { napi, recorder }
    }

    /// The instance.
    #[inline]
    pub fn get(&self) -> &Napi {
        &self.napi
    }

    #[inline]
    fn record(&mut self, call: Call, answer: impl FnOnce() -> Answer) {
        if let Some(recorder) = &mut self.recorder {
            recorder(Transition { call, answer: answer() });
        }
    }

    /// A call that answers with actions.
    ///
    /// # Panics
    /// For a call that does not.
    #[inline]
    pub fn act(&mut self, call: Call) -> Actions {
        let actions = call.act(&mut self.napi);
        self.record(call, || Answer::Actions(actions));
        actions
    }

    /// A call that begins a poll.
    ///
    /// # Panics
    /// For another call.
    #[inline]
    pub fn begin(&mut self, call: Call) -> Option<u16> {
        let budget = call.begin(&mut self.napi);
        self.record(call, || Answer::Budget(budget));
        budget
    }

    /// The end of a poll.
    #[inline]
    pub fn poll_done(&mut self, now: Nanos, work: u16) -> PollDone {
        let done = self.napi.handle_poll_done(now, work);
        self.record(Call::PollDone(now, work), || Answer::Done(done));
        done
    }

    /// The end of a busy poll.
    #[inline]
    pub fn end_busy_poll(&mut self, now: Nanos, poller: Poller) -> (Option<u16>, Actions) {
        let (last, actions) = self.napi.end_busy_poll(now, poller);
        self.record(Call::EndBusyPoll(now, poller), || Answer::Last(last, actions));
        (last, actions)
    }
}
