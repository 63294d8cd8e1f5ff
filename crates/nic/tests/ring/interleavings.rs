//! The hand-over between producer and consumer under loom: every interleaving of two threads that the memory model of
//! C11 allows. Frames arrive once and in order, no slot is read while it is written, and no wake-up is lost.

use std::sync::atomic::Ordering;
use std::task::Poll;

use abey_nic::Frame;
use abey_nic::ring::{Consumer, Full, Layout, Producer, Shared, SlotHeader, Word, doorbell};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, fence};
use loom::thread;

/// A ring of loom's atomics and loom's cells, which report data races.
struct Memory {
    layout: Layout,
    words: [AtomicU32; Word::COUNT],
    slots: Vec<UnsafeCell<(SlotHeader, [u8; 14])>>,
    /// Leaves the fences out, to see that the check notices.
    fenceless: bool,
}

#[derive(Clone)]
struct Ring(Arc<Memory>);

impl Ring {
    fn new(slots: u32, fenceless: bool) -> Self {
        let layout = Layout::new(slots, 14).expect("a layout");
        let empty = SlotHeader { length: 0, flags: 0 };
        let slots = (0..slots).map(|_| UnsafeCell::new((empty, [0; 14]))).collect();
        Self(Arc::new(Memory { layout, words: [0; Word::COUNT].map(AtomicU32::new), slots, fenceless }))
    }

    fn slot(&self, index: u32) -> &UnsafeCell<(SlotHeader, [u8; 14])> {
        &self.0.slots[(index % self.0.layout.slots()) as usize]
    }
}

impl Shared for Ring {
    fn layout(&self) -> Layout {
        self.0.layout
    }

    fn load(&self, word: Word, order: Ordering) -> u32 {
        self.0.words[word as usize].load(order)
    }

    fn store(&self, word: Word, value: u32, order: Ordering) {
        // The one word that both ends write: the other end's swap must not overlook this, see `Interrupt::raise`.
        if word == Word::Armed {
            self.0.words[word as usize].swap(value, order);
        } else {
            self.0.words[word as usize].store(value, order);
        }
    }

    fn swap(&self, word: Word, value: u32, order: Ordering) -> u32 {
        self.0.words[word as usize].swap(value, order)
    }

    fn fetch_or(&self, word: Word, bits: u32, order: Ordering) -> u32 {
        self.0.words[word as usize].fetch_or(bits, order)
    }

    fn fence(&self) {
        if !self.0.fenceless {
            fence(Ordering::SeqCst);
        }
    }

    fn write_slot(&self, index: u32, header: SlotHeader, frame: &[u8]) {
        // SAFETY: loom reports an access at the same time, which is what this is for.
        self.slot(index).with_mut(|slot| unsafe { *slot = (header, frame.try_into().expect("14 bytes")) });
    }

    fn read_header(&self, index: u32) -> SlotHeader {
        // SAFETY: as above.
        self.slot(index).with(|slot| unsafe { (*slot).0 })
    }

    fn read_slot(&self, index: u32, into: &mut [u8]) {
        // SAFETY: as above.
        self.slot(index).with(|slot| into.copy_from_slice(unsafe { &(&(*slot).1)[..into.len()] }));
    }
}

/// An interrupt: a flag that wakes a sleeper once. Sleeping for ever is a deadlock, which loom reports.
struct Interrupt {
    raised: AtomicBool,
    notify: loom::sync::Notify,
}

impl Interrupt {
    fn new() -> Arc<Self> {
        Arc::new(Self { raised: AtomicBool::new(false), notify: loom::sync::Notify::new() })
    }

    fn raise(&self) {
        // A swap, because loom lets a later swap overlook a plain store that no earlier one was ordered against.
        self.raised.swap(true, Ordering::AcqRel);
        self.notify.notify();
    }

    fn sleep(&self) {
        while !self.raised.swap(false, Ordering::AcqRel) {
            self.notify.wait();
        }
    }
}

fn frame_of(number: u8) -> [u8; 14] {
    [number; 14]
}

/// Takes what is there; `Pending` when nothing was.
fn poll(consumer: &mut Consumer<Ring>, frame: &mut Frame, expected: &mut u8) -> Poll<()> {
    let found = consumer.refresh().expect("an honest index");
    for _ in 0..found {
        consumer.pop(frame).expect("was found").expect("an honest frame");
        assert_eq!(**frame, frame_of(*expected), "once and in order");
        *expected += 1;
    }
    if found == 0 { Poll::Pending } else { Poll::Ready(()) }
}

/// Every schedule with at most three preemptions: more take minutes and have shown nothing new.
fn bounded() -> loom::model::Builder {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model
}

/// A producer that does not wait for room, a consumer that sleeps on its interrupt.
fn frames_wake_the_consumer(frames: u8, fenceless: bool) {
    bounded().check(move || {
        let ring = Ring::new(4, fenceless);
        let interrupt = Interrupt::new();
        let producer = thread::spawn({
            let (ring, interrupt) = (ring.clone(), interrupt.clone());
            move || {
                let mut producer = Producer::new(ring.clone());
                for number in 0..frames {
                    producer.push(&frame_of(number), 0).expect("there is room for all");
                    producer.publish();
                    if doorbell(&ring) {
                        interrupt.raise();
                    }
                }
            }
        });
        let mut consumer = Consumer::new(ring);
        let (mut frame, mut expected) = (Frame::with_capacity(14), 0);
        while expected < frames {
            let _ = poll(&mut consumer, &mut frame, &mut expected);
            assert_eq!(consumer.release(), 0);
            if expected < frames && !consumer.unmask() {
                interrupt.sleep();
            }
            consumer.mask();
        }
        producer.join().expect("the producer ends");
    });
}

#[test]
fn no_frame_is_left_to_a_sleeping_consumer() {
    frames_wake_the_consumer(2, false);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_fences_a_wake_up_is_lost() {
    frames_wake_the_consumer(1, true);
}

/// A producer that fills the ring and sleeps until there is room, and a consumer that sleeps when there is nothing.
#[test]
fn no_room_is_left_to_a_sleeping_producer() {
    bounded().check(|| {
        const FRAMES: u8 = 3;
        let ring = Ring::new(2, false);
        let (arrival, room) = (Interrupt::new(), Interrupt::new());
        let producer = thread::spawn({
            let (ring, arrival, room) = (ring.clone(), arrival.clone(), room.clone());
            move || {
                let mut producer = Producer::new(ring.clone());
                for number in 0..FRAMES {
                    while let Err(full) = producer.push(&frame_of(number), 0) {
                        assert_eq!(full, Full::Full);
                        if !producer.request_room(5) {
                            room.sleep();
                        }
                    }
                    producer.publish();
                    if doorbell(&ring) {
                        arrival.raise();
                    }
                }
            }
        });
        let mut consumer = Consumer::new(ring);
        let (mut frame, mut expected) = (Frame::with_capacity(14), 0);
        while expected < FRAMES {
            let _ = poll(&mut consumer, &mut frame, &mut expected);
            match consumer.release() {
                0 => {}
                waiting => {
                    assert_eq!(waiting, 1 << 5);
                    room.raise();
                }
            }
            if expected < FRAMES && !consumer.unmask() {
                arrival.sleep();
            }
            consumer.mask();
        }
        producer.join().expect("the producer ends");
    });
}
