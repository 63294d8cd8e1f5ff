//! The oracle of the ring: runs a list of operations, given as bytes, on a real ring and on a queue of frames, and
//! compares. Property tests and the fuzz target share it.
//!
//! As long as both ends are honest the two must agree on everything. Once the list has scribbled over the memory, what
//! must hold is that nothing panics, loops or leaves the ring, and that what is handed out is a frame that fits.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use abey_nic::Frame;
use abey_nic::ring::{Consumer, Full, Layout, Producer, Region, Shared, SlotHeader, Word, doorbell};

const CANARY: u8 = 0xc5;
const GUARD: usize = 4096;

#[repr(align(128))]
struct Lines(UnsafeCell<[u8; 128]>);

/// The ring's memory in the middle of memory that must stay as it is.
struct Arena(Box<[Lines]>);

// SAFETY: a test of one thread.
unsafe impl Sync for Arena {}

impl Arena {
    fn new(layout: Layout) -> Arc<Self> {
        let guard = || (0..GUARD / 128).map(|_| Lines(UnsafeCell::new([CANARY; 128])));
        let ring = (0..layout.bytes() / 128).map(|_| Lines(UnsafeCell::new([0; 128])));
        Arc::new(Self(guard().chain(ring).chain(guard()).collect()))
    }

    fn region(self: &Arc<Self>, layout: Layout) -> Region {
        let base = NonNull::from(&*self.0).cast::<u8>();
        // SAFETY: the ring lies GUARD bytes into the arena, a multiple of its alignment; the arena is kept alive.
        unsafe { Region::new(base.add(GUARD), layout, self.clone()) }
    }

    fn assert_guards(&self) {
        let guards = self.0[..GUARD / 128].iter().chain(&self.0[self.0.len() - GUARD / 128..]);
        // SAFETY: no other thread runs.
        let intact = guards.into_iter().all(|lines| unsafe { *lines.0.get() } == [CANARY; 128]);
        assert!(intact, "memory outside the ring was touched");
    }
}

/// A list of operations as bytes; at its end everything is 0.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes([0; 4].map(|_: u8| self.byte()))
    }
}

struct World {
    arena: Arc<Arena>,
    layout: Layout,
    memory: Region,
    producer: Producer<Region>,
    consumer: Consumer<Region>,
    frame: Frame,
    /// What an honest ring holds: put in but not shown, shown but not found, found but not taken, taken but not released.
    hidden: VecDeque<Vec<u8>>,
    shown: VecDeque<Vec<u8>>,
    found: VecDeque<Vec<u8>>,
    taken: usize,
    armed: bool,
    waiting: u32,
    honest: bool,
}

/// Runs the operations in `script`. Panics when the ring does what it must not.
pub(crate) fn check(script: &[u8]) {
    let mut script = Script(script);
    let layout = Layout::new(2 << (script.byte() % 4), 14 + usize::from(script.byte() % 120)).expect("a layout");
    let arena = Arena::new(layout);
    let memory = arena.region(layout);
    // A small buffer now and then, so that frames that fit a slot may not fit it.
    let capacity = if script.byte().is_multiple_of(8) { 20 } else { layout.room() };
    let mut world = World {
        producer: Producer::new(memory.clone()),
        consumer: Consumer::new(memory.clone()),
        arena,
        layout,
        memory,
        frame: Frame::with_capacity(capacity),
        hidden: VecDeque::new(),
        shown: VecDeque::new(),
        found: VecDeque::new(),
        taken: 0,
        armed: false,
        waiting: 0,
        honest: true,
    };
    while !script.0.is_empty() {
        world.step(&mut script);
    }
    world.arena.assert_guards();
}

impl World {
    fn step(&mut self, script: &mut Script<'_>) {
        match script.byte() % 16 {
            0..=3 => self.push(script),
            4 => self.publish(),
            5 => self.ring_doorbell(),
            6 => self.refresh(),
            7..=9 => self.pop(),
            10 => self.release(),
            11 => {
                self.consumer.mask();
                self.armed = false;
            }
            12 => self.unmask(),
            13 => self.request_room(script),
            // One in eight: a whole run without a hostile step is likely enough at the usual lengths.
            _ if script.byte() < 32 => self.scribble(script),
            _ => self.refresh(),
        }
    }

    fn in_ring(&self) -> usize {
        self.hidden.len() + self.shown.len() + self.found.len() + self.taken
    }

    fn push(&mut self, script: &mut Script<'_>) {
        let length = 14 + usize::from(script.byte()) % (self.layout.room() - 13);
        let seed = script.byte();
        let bytes: Vec<u8> = (0..length).map(|at| seed.wrapping_add(at as u8)).collect();
        let result = self.producer.push(&bytes, 0);
        if self.honest {
            let expected = if self.in_ring() < self.layout.slots() as usize { Ok(()) } else { Err(Full::Full) };
            assert_eq!(result, expected);
            if result.is_ok() {
                self.hidden.push_back(bytes);
            }
        }
    }

    fn publish(&mut self) {
        let new = self.producer.publish();
        if self.honest {
            assert_eq!(new, !self.hidden.is_empty());
            self.shown.append(&mut self.hidden);
        }
    }

    fn ring_doorbell(&mut self) {
        let raise = doorbell(&self.memory);
        if self.honest {
            assert_eq!(raise, self.armed, "an interrupt exactly when armed, and once");
            self.armed = false;
        }
    }

    fn refresh(&mut self) {
        let found = self.consumer.refresh();
        assert!(found.is_none_or(|found| found <= self.layout.slots()));
        assert_eq!(found.unwrap_or(0), self.consumer.found());
        if self.honest {
            self.found.append(&mut self.shown);
            assert_eq!(found, Some(self.found.len() as u32));
        }
    }

    fn pop(&mut self) {
        let before = self.consumer.found();
        let result = self.consumer.pop(&mut self.frame);
        assert_eq!(self.consumer.found(), before.saturating_sub(1), "each pop is one frame nearer to the end");
        if let Some(Ok(())) = result {
            assert!((14..=self.layout.room().min(self.frame.capacity())).contains(&self.frame.len()));
        }
        if self.honest {
            let expected = self.found.pop_front();
            self.taken += usize::from(expected.is_some());
            match (result, expected) {
                (None, None) => {}
                (Some(Ok(())), Some(bytes)) => assert_eq!(*self.frame, *bytes),
                (Some(Err(_)), Some(bytes)) => assert!(bytes.len() > self.frame.capacity()),
                (result, expected) => panic!("got {result:?}, expected {expected:?}"),
            }
        }
    }

    fn release(&mut self) {
        let waiting = self.consumer.release();
        if self.honest {
            let expected = if self.taken > 0 { std::mem::take(&mut self.waiting) } else { 0 };
            assert_eq!(waiting, expected, "a queue that waits for room is woken once when there is room");
            self.taken = 0;
        }
    }

    fn unmask(&mut self) {
        let pending = self.consumer.unmask();
        self.armed = true;
        if self.honest {
            assert_eq!(pending, !(self.shown.is_empty() && self.found.is_empty()));
        }
    }

    fn request_room(&mut self, script: &mut Script<'_>) {
        let waiter = u32::from(script.byte() % 32);
        let room = self.producer.request_room(waiter);
        if self.honest {
            assert_eq!(room, self.in_ring() < self.layout.slots() as usize);
            self.waiting |= u32::from(!room) << waiter;
        }
    }

    /// What a hostile peer can do: write anything anywhere.
    fn scribble(&mut self, script: &mut Script<'_>) {
        self.honest = false;
        let near = |word: u32, by: u8| word.wrapping_add(u32::from(by)).wrapping_sub(128);
        match script.byte() % 6 {
            0 => self.memory.store(Word::Produced, script.word(), Relaxed),
            1 => self.memory.store(
                Word::Produced,
                near(self.memory.load(Word::Produced, Relaxed), script.byte()),
                Relaxed,
            ),
            2 => self.memory.store(Word::Consumed, script.word(), Relaxed),
            3 => self.memory.store(
                Word::Consumed,
                near(self.memory.load(Word::Consumed, Relaxed), script.byte()),
                Relaxed,
            ),
            4 => {
                let word = if script.byte().is_multiple_of(2) { Word::Armed } else { Word::WantRoom };
                self.memory.store(word, script.word(), Relaxed);
            }
            _ => {
                let header = SlotHeader { length: script.word(), flags: script.word() };
                self.memory.write_slot(u32::from(script.byte()), header, &[script.byte(); 14]);
            }
        }
    }
}
