//! The hand-over of a shard between a waiting application and the service thread: whatever happens when, a packet that
//! came is polled by one of them, and nobody is left asleep with it.
//!
//! The NIC's descriptor is a counter of signals, armed or not in the service thread's epoll; the application sleeps on it
//! directly. Masking is left out: the interrupt is always unmasked, which is the case in which responsibility matters.

use loom::sync::{Arc, Mutex, Notify};
use loom::thread;

use crate::cover::{Cover, Orders};
use crate::lock::{Held, PendingLock};

const INTERRUPT: u32 = 1;
const APPLICATION: u32 = 7;

/// What the kernel keeps, under locks of its own.
#[derive(Default)]
struct Kernel {
    /// Packets in the ring that were signalled: the descriptor is readable.
    packets: u32,
    /// The descriptor is armed in the service thread's epoll.
    armed: bool,
    /// The application is in `ppoll`.
    sleeping: bool,
    stop: bool,
}

#[derive(Default)]
struct State {
    cover: Cover,
    polled: u32,
}

struct Shard {
    lock: PendingLock<State>,
    kernel: Mutex<Kernel>,
    service: Notify,
    application: Notify,
    /// A deliberate fault, to see that the check notices: who lets go does not settle.
    forgets: bool,
}

impl Shard {
    fn new(forgets: bool) -> Arc<Self> {
        let shard = Self {
            lock: PendingLock::new(State::default()),
            kernel: Mutex::new(Kernel::default()),
            service: Notify::new(),
            application: Notify::new(),
            forgets: false,
        };
        shard.let_go(shard.lock.lock().0);
        Arc::new(Self { forgets, ..shard })
    }

    /// A change in the kernel, which wakes whoever waits for what is so now.
    fn kernel(&self, change: impl FnOnce(&mut Kernel)) {
        let mut kernel = self.kernel.lock().expect("not poisoned");
        change(&mut kernel);
        if kernel.stop || kernel.packets > 0 && kernel.armed {
            self.service.notify();
        }
        if kernel.packets > 0 && kernel.sleeping {
            self.application.notify();
        }
    }

    fn packet(&self) {
        self.kernel(|kernel| kernel.packets += 1);
    }

    fn poll(&self, state: &mut State) {
        self.kernel(|kernel| state.polled += std::mem::take(&mut kernel.packets));
    }

    fn execute(&self, orders: Orders) {
        if let Some(on) = orders.line {
            self.kernel(|kernel| kernel.armed = on);
        }
    }

    fn let_go(&self, mut held: Held<'_, State>) {
        loop {
            if held.take_marks() & INTERRUPT != 0 {
                held.cover.line_fired();
                self.poll(&mut held);
            }
            if !self.forgets {
                let orders = held.cover.settle(true, None);
                self.execute(orders);
            }
            match held.release() {
                None => return,
                Some(again) => held = again,
            }
        }
    }

    /// Until stopped, with nothing left to do.
    fn service_thread(&self) {
        loop {
            let mut kernel = self.kernel.lock().expect("not poisoned");
            // epoll_wait: one-shot.
            if kernel.packets > 0 && std::mem::take(&mut kernel.armed) {
                drop(kernel);
                if let Some(held) = self.lock.lock_or_mark(INTERRUPT) {
                    self.let_go(held);
                }
            } else if kernel.stop {
                return;
            } else {
                drop(kernel);
                self.service.wait();
            }
        }
    }

    fn fall_asleep(&self) {
        let mut held = self.lock.lock().0;
        assert!(held.cover.take(APPLICATION), "nobody else waits");
        let orders = held.cover.sleep(None, true);
        self.execute(orders);
        self.let_go(held);
    }

    fn leave(&self, poll: bool) {
        let mut held = self.lock.lock().0;
        held.cover.take(APPLICATION);
        if poll {
            self.poll(&mut held);
        }
        held.cover.leave(APPLICATION);
        self.let_go(held);
    }

    /// `ppoll` on the descriptor.
    fn sleep(&self) {
        self.kernel(|kernel| kernel.sleeping = true);
        while self.kernel.lock().expect("not poisoned").packets == 0 {
            self.application.wait();
        }
        self.kernel(|kernel| kernel.sleeping = false);
    }
}

fn bounded(check: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(check);
}

/// A packet comes while the application leaves its wait and then computes: the service thread polls it, if nobody else
/// did before.
fn hand_back(forgets: bool) {
    let shard = Shard::new(forgets);
    let (service, nic) = (shard.clone(), shard.clone());
    let service = thread::spawn(move || service.service_thread());
    shard.fall_asleep();
    let nic = thread::spawn(move || nic.packet());
    shard.leave(false);
    nic.join().expect("joined");
    shard.kernel(|kernel| kernel.stop = true);
    service.join().expect("joined");
    assert_eq!(shard.lock.lock().0.polled, 1, "somebody was responsible for the packet");
}

#[test]
fn a_packet_during_the_hand_over_back_is_polled() {
    bounded(|| hand_back(false));
}

#[test]
#[should_panic = "somebody was responsible"]
fn the_check_notices_when_nobody_settles() {
    bounded(|| hand_back(true));
}

/// A packet comes while the application falls asleep. The service thread may have seen it just before; if it did not poll
/// it, the application does not sleep on.
#[test]
fn a_packet_while_falling_asleep_is_polled() {
    bounded(|| {
        let shard = Shard::new(false);
        let nic = shard.clone();
        let nic = thread::spawn(move || nic.packet());
        shard.fall_asleep();
        shard.sleep();
        shard.leave(true);
        nic.join().expect("joined");
        assert_eq!(shard.lock.lock().0.polled, 1);
    });
}

/// An application that falls asleep and the service thread, which was woken for the same packet, meet at the lock.
#[test]
fn an_interrupt_that_the_service_thread_brings_is_not_lost() {
    bounded(|| {
        let shard = Shard::new(false);
        shard.packet();
        let service = shard.clone();
        let service = thread::spawn(move || service.service_thread());
        shard.fall_asleep();
        shard.leave(false);
        shard.kernel(|kernel| kernel.stop = true);
        service.join().expect("joined");
        assert_eq!(shard.lock.lock().0.polled, 1);
    });
}
