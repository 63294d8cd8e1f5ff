//! The hand-over of a shard between a waiting application and the service thread. In every interleaving one of the two
//! polls each packet, and neither stays asleep with a packet in the ring.
//!
//! The NIC's descriptor is a counter of signals, armed or not in the service thread's epoll. The application sleeps on it
//! directly. The interrupt is never masked, which is the case in which a thread must be responsible for it.

use abey_delivery::handoff::{Handoff, Rearm};
use loom::sync::{Arc, Mutex, Notify};
use loom::thread;

use crate::lock::{Held, PendingLock};

const INTERRUPT: u32 = 1;
const APPLICATION: u32 = 7;

/// The kernel's state, under its own lock.
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
    handoff: Handoff,
    polled: u32,
}

struct Shard {
    lock: PendingLock<State>,
    kernel: Mutex<Kernel>,
    service: Notify,
    application: Notify,
    /// A deliberate fault, which the test must detect: the lock is released without a call to `publish`.
    skips_publish: bool,
}

impl Shard {
    fn new(skips_publish: bool) -> Arc<Self> {
        let shard = Self {
            lock: PendingLock::new(State::default()),
            kernel: Mutex::new(Kernel::default()),
            service: Notify::new(),
            application: Notify::new(),
            skips_publish: false,
        };
        shard.unlock(shard.lock.lock().0);
        Arc::new(Self { skips_publish, ..shard })
    }

    /// Changes the kernel's state, and wakes the threads whose condition holds now.
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

    fn execute(&self, rearm: Rearm) {
        if let Some(on) = rearm.irq {
            self.kernel(|kernel| kernel.armed = on);
        }
    }

    fn unlock(&self, mut held: Held<'_, State>) {
        loop {
            if held.take_marks() & INTERRUPT != 0 {
                held.handoff.irq_fired();
                self.poll(&mut held);
            }
            if !self.skips_publish {
                let rearm = held.handoff.publish(true, None);
                self.execute(rearm);
            }
            match held.release() {
                None => return,
                Some(again) => held = again,
            }
        }
    }

    /// Runs until it is stopped and has nothing left to do.
    fn service_thread(&self) {
        loop {
            let mut kernel = self.kernel.lock().expect("not poisoned");
            // epoll_wait: one-shot.
            if kernel.packets > 0 && std::mem::take(&mut kernel.armed) {
                drop(kernel);
                if let Some(held) = self.lock.lock_or_mark(INTERRUPT) {
                    self.unlock(held);
                }
            } else if kernel.stop {
                return;
            } else {
                drop(kernel);
                self.service.wait();
            }
        }
    }

    fn park(&self) {
        let mut held = self.lock.lock().0;
        assert!(held.handoff.attach(APPLICATION), "there is no other waiter");
        let rearm = held.handoff.park(None, true);
        self.execute(rearm);
        self.unlock(held);
    }

    fn detach(&self, poll: bool) {
        let mut held = self.lock.lock().0;
        held.handoff.attach(APPLICATION);
        if poll {
            self.poll(&mut held);
        }
        held.handoff.detach(APPLICATION);
        self.unlock(held);
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

/// A packet arrives while the application ends its wait and then computes. The service thread polls it, unless the
/// application did before.
fn hand_back(skips_publish: bool) {
    let shard = Shard::new(skips_publish);
    let (service, nic) = (shard.clone(), shard.clone());
    let service = thread::spawn(move || service.service_thread());
    shard.park();
    let nic = thread::spawn(move || nic.packet());
    shard.detach(false);
    nic.join().expect("joined");
    shard.kernel(|kernel| kernel.stop = true);
    service.join().expect("joined");
    assert_eq!(shard.lock.lock().0.polled, 1, "the packet was polled");
}

#[test]
fn a_packet_during_the_hand_over_back_is_polled() {
    bounded(|| hand_back(false));
}

#[test]
#[should_panic = "the packet was polled"]
fn the_test_detects_a_missing_publish() {
    bounded(|| hand_back(true));
}

/// A packet arrives while the application parks. The service thread may have received the interrupt just before. If it did
/// not poll the packet, the application wakes.
#[test]
fn a_packet_while_the_application_parks_is_polled() {
    bounded(|| {
        let shard = Shard::new(false);
        let nic = shard.clone();
        let nic = thread::spawn(move || nic.packet());
        shard.park();
        shard.sleep();
        shard.detach(true);
        nic.join().expect("joined");
        assert_eq!(shard.lock.lock().0.polled, 1);
    });
}

/// An application that parks and the service thread, which was woken for the same packet, contend for the lock.
#[test]
fn an_interrupt_that_the_service_thread_receives_is_not_lost() {
    bounded(|| {
        let shard = Shard::new(false);
        shard.packet();
        let service = shard.clone();
        let service = thread::spawn(move || service.service_thread());
        shard.park();
        shard.detach(false);
        shard.kernel(|kernel| kernel.stop = true);
        service.join().expect("joined");
        assert_eq!(shard.lock.lock().0.polled, 1);
    });
}
