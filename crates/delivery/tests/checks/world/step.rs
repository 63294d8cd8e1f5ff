//! The steps of a world.

/// One step. Numbers identify instances, CPUs, workers and applications; `to` is the application to which a
/// poll's packets belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// A packet arrives.
    Arrive(usize),
    /// An interrupt is handled.
    Interrupt(usize),
    /// The queue is checked after its interrupt was unmasked.
    Recheck(usize),
    /// A timer fires.
    Timer(usize),
    /// A softirq run begins, in the softirq or in the CPU's softirq thread, and takes packets from its first instance.
    SoftirqRun(usize),
    /// The softirq run takes packets from its next instance, or ends.
    SoftirqTake(usize),
    /// The softirq run's poll is over.
    SoftirqDone {
        cpu: usize,
        to: Option<usize>,
    },
    /// The instance's thread takes packets.
    ThreadTake(usize),
    /// The thread's poll is over.
    ThreadDone {
        instance: usize,
        to: Option<usize>,
    },
    /// A worker takes packets from the next instance, or goes to sleep.
    WorkerTake(usize),
    /// The worker's poll is over.
    WorkerDone {
        worker: usize,
        to: Option<usize>,
    },
    /// An application waits for events without a time limit.
    Wait(usize),
    /// An application asks for events without waiting.
    WaitZero(usize),
    /// An application waits for one tick at most.
    WaitShort(usize),
    /// A waiting application makes its next step.
    AppNext(usize),
    /// An application's busy poll is over.
    AppDone {
        app: usize,
        to: Option<usize>,
    },
    /// An application has taken all events.
    Consume(usize),
    /// A signal ends an application's wait.
    Signal(usize),
    /// An application closes its epoll context.
    Close(usize),
    /// An instance receives the nth of the scope's settings.
    Settings {
        instance: usize,
        nth: usize,
    },
    Disable(usize),
    Enable(usize),
    /// A thread wakes spuriously.
    SpuriousWake(usize),
    /// A timer fires that was not armed, or too early.
    SpuriousTimer(usize),
    /// An interrupt arrives that was not raised.
    SpuriousInterrupt(usize),
    /// Time passes.
    Tick,
}

impl Step {
    /// Returns whether the step continues work under way, rather than being a new event from outside.
    pub(crate) fn is_progress(self) -> bool {
        match self {
            Self::Interrupt(_)
            | Self::Recheck(_)
            | Self::Timer(_)
            | Self::SoftirqRun(_)
            | Self::SoftirqTake(_)
            | Self::SoftirqDone { .. }
            | Self::ThreadTake(_)
            | Self::ThreadDone { .. }
            | Self::WorkerTake(_)
            | Self::WorkerDone { .. }
            | Self::AppNext(_)
            | Self::AppDone { .. } => true,
            Self::Arrive(_)
            | Self::Wait(_)
            | Self::WaitZero(_)
            | Self::WaitShort(_)
            | Self::Consume(_)
            | Self::Signal(_)
            | Self::Close(_)
            | Self::Settings { .. }
            | Self::Disable(_)
            | Self::Enable(_)
            | Self::SpuriousWake(_)
            | Self::SpuriousTimer(_)
            | Self::SpuriousInterrupt(_)
            | Self::Tick => false,
        }
    }
}
