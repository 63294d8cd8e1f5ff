//! Recording of the calls to a NAPI instance, each with its time, and of the answers.
//!
//! The datapath and the simulator call their instances through [`Recorded`]. [`first_divergence`] compares two recordings;
//! [`first_difference`] replays one recording on a plain [`Napi`]. Without a recorder a call costs one branch more than a
//! direct call.

use crate::{Actions, Nanos, Napi, NapiConfig, NapiSettings, PollContext, PollDone, Poller};

/// A call to a NAPI instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// [`Napi::enable`].
    Enable,
    /// [`Napi::disable`].
    Disable,
    /// [`Napi::handle_interrupt`].
    Interrupt(Nanos),
    /// [`Napi::handle_unmasked`], with whether packets were pending.
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
    /// [`Napi::begin_busy_poll`], with poller, budget and prefer.
    BeginBusyPoll(Poller, u16, bool),
    /// [`Napi::handle_poll_done`], with the number of packets that the poll took.
    PollDone(Nanos, u16),
    /// [`Napi::end_busy_poll`].
    EndBusyPoll(Nanos, Poller),
}

/// The answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The actions that the call returned; [`Actions::NONE`] for a call that returns nothing.
    Actions(Actions),
    /// The budget of a poll that begins; `None` if the instance refused it.
    Budget(Option<u16>),
    /// The end of a poll.
    Done(PollDone),
    /// The end of a busy poll: the budget of the last poll, if one is due, and the actions.
    Last(Option<u16>, Actions),
}

/// A call and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The call.
    pub call: Call,
    /// The answer.
    pub answer: Answer,
}

/// A callback that receives every transition.
pub type Recorder = Box<dyn FnMut(Transition) + Send>;

impl Call {
    /// Makes the call and returns its answer.
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

/// Makes the recorded calls to a new instance. Returns the first transition whose answer differs, with its index and the
/// new instance's answer; `None` if all answers are equal.
///
/// `settings` are those that the recorded instance was made with.
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

/// Returns the index of the first transition in which two recordings differ, and the transition of each there (`None` past a
/// recording's end). The numbers of busy pollers are not compared.
pub fn first_divergence(
    left: &[Transition],
    right: &[Transition],
) -> Option<(usize, Option<Transition>, Option<Transition>)> {
    let at = (0..left.len().max(right.len()))
        .find(|at| left.get(*at).map(without_poller) != right.get(*at).map(without_poller))?;
    Some((at, left.get(at).copied(), right.get(at).copied()))
}

/// Returns the transition with its poller's number set to 0.
fn without_poller(transition: &Transition) -> Transition {
    const ANY: Poller = Poller(0);
    let call = match transition.call {
        Call::BeginBusyPoll(_, budget, prefer) => Call::BeginBusyPoll(ANY, budget, prefer),
        Call::EndBusyPoll(now, _) => Call::EndBusyPoll(now, ANY),
        other => other,
    };
    Transition { call, ..*transition }
}

/// A [`Napi`] with an optional recorder.
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
    /// Wraps an instance.
    pub fn new(napi: Napi, recorder: Option<Recorder>) -> Self {
        Self { napi, recorder }
    }

    /// Returns the instance.
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

    /// Makes a call that returns actions, or nothing.
    ///
    /// # Panics
    /// If the call begins or ends a poll.
    #[inline]
    pub fn act(&mut self, call: Call) -> Actions {
        let actions = call.act(&mut self.napi);
        self.record(call, || Answer::Actions(actions));
        actions
    }

    /// Makes a call that begins a poll. Returns the poll's budget in packets, as the call does.
    ///
    /// # Panics
    /// If the call does not begin a poll.
    #[inline]
    pub fn begin(&mut self, call: Call) -> Option<u16> {
        let budget = call.begin(&mut self.napi);
        self.record(call, || Answer::Budget(budget));
        budget
    }

    /// Ends a poll that took `work` packets ([`Napi::handle_poll_done`]).
    #[inline]
    pub fn poll_done(&mut self, now: Nanos, work: u16) -> PollDone {
        let done = self.napi.handle_poll_done(now, work);
        self.record(Call::PollDone(now, work), || Answer::Done(done));
        done
    }

    /// Ends a busy poll ([`Napi::end_busy_poll`]).
    #[inline]
    pub fn end_busy_poll(&mut self, now: Nanos, poller: Poller) -> (Option<u16>, Actions) {
        let (last, actions) = self.napi.end_busy_poll(now, poller);
        self.record(Call::EndBusyPoll(now, poller), || Answer::Last(last, actions));
        (last, actions)
    }
}
