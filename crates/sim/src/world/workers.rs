//! Sleeping workers of the pool.

#[derive(Debug, Default)]
pub(super) struct Workers {
    /// Threads by CPU.
    threads: Vec<usize>,
    /// Whether they stay on their CPUs.
    pinned: bool,
    /// Sleeping workers; the one that slept last is at the end.
    pub(super) sleeping: Vec<usize>,
}

impl Workers {
    pub(super) fn new(pinned: bool) -> Self {
        Self { pinned, ..Self::default() }
    }

    /// Adds the worker of the next CPU.
    pub(super) fn add(&mut self, thread: usize) {
        self.threads.push(thread);
        // The first worker is woken first.
        self.sleeping.insert(0, thread);
    }

    /// Takes the worker to wake: the first one on this CPU or after it if workers are pinned, else the one that slept
    /// last.
    pub(super) fn take(&mut self, near: usize) -> Option<usize> {
        if !self.pinned {
            return self.sleeping.pop();
        }
        let count = self.threads.len();
        let place = |thread: usize| {
            let cpu = self.threads.binary_search(&thread).expect("a worker");
            (cpu + count - near) % count
        };
        let at = (0..self.sleeping.len()).min_by_key(|at| place(self.sleeping[*at]))?;
        Some(self.sleeping.swap_remove(at))
    }
}
