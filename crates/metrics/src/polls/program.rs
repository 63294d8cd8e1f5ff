//! The BPF programs, one for each tracepoint.

use abey_bpf::Register::{R0, R1, R2, R3, R6, R7, R8, R9, R10};
use abey_bpf::{Assembled, Assembler, Btf, BtfError, Map, Operation, Program, Register, Size, When, abi, object_file};

use super::layout::{self, BATCH_BOUNDS, WORDS};

/// The number of the receive softirq in `linux/interrupt.h`.
const NET_RX_SOFTIRQ: i32 = 3;

/// Map: counts of each watched instance, by NAPI ID.
pub(super) const COUNTS: &str = "abey_counts";
/// Per-CPU map: when the last charged CPU time ended, and whether the receive softirq is running.
const SOFTIRQ: &str = "abey_softirq";
/// Map: address of the kernel's handler of deferral timers, read from the first watched instance that polls.
const HANDLER: &str = "abey_handler";
/// Maximum number of watched instances.
pub(super) const MAX_INSTANCES: u32 = 16_384;

const SINCE: i16 = 0;
const RUNS: i16 = 8;

// Programs, each with its raw tracepoint.
pub(super) const POLL: (&str, &str) = ("abey_poll", "napi_poll");
pub(super) const ENTRY: (&str, &str) = ("abey_entry", "softirq_entry");
pub(super) const EXIT: (&str, &str) = ("abey_exit", "softirq_exit");
pub(super) const EXPIRE: (&str, &str) = ("abey_expire", "hrtimer_expire_entry");
pub(super) const START: (&str, &str) = ("abey_start", "hrtimer_start");

/// Offsets in bytes of the members of an instance and its timer that the programs read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offsets {
    id: i32,
    thread: i32,
    timer: i32,
    function: i32,
    suspension: Option<Suspension>,
}

/// Offsets of the members that distinguish a suspension from a deferral; a kernel before 6.13 has no suspension.
#[derive(Clone, Copy, Debug)]
struct Suspension {
    flush: i32,
    suspend: i32,
    expires: i32,
}

impl Offsets {
    pub(super) fn read(btf: &Btf) -> Result<Self, BtfError> {
        let suspension = || {
            Ok::<_, BtfError>(Suspension {
                flush: btf.offset("napi_struct", "gro_flush_timeout")?,
                suspend: btf.offset("napi_struct", "irq_suspend_timeout")?,
                expires: btf.offset("hrtimer", "node")? + btf.offset("timerqueue_node", "expires")?,
            })
        };
        Ok(Self {
            id: btf.offset("napi_struct", "napi_id")?,
            thread: btf.offset("napi_struct", "thread")?,
            timer: btf.offset("napi_struct", "timer")?,
            function: btf.offset("hrtimer", "function")?,
            suspension: suspension().ok(),
        })
    }

    pub(super) fn has_suspension(&self) -> bool {
        self.suspension.is_some()
    }
}

/// Returns the object file with all programs and maps.
pub(super) fn object(offsets: &Offsets) -> Vec<u8> {
    let program = |(name, _), section, code| Program { name, section, code };
    let mut programs = vec![
        program(POLL, "raw_tp/poll", poll(offsets)),
        program(ENTRY, "raw_tp/entry", entry()),
        program(EXIT, "raw_tp/exit", exit()),
        program(EXPIRE, "raw_tp/expire", expire(offsets)),
    ];
    programs.extend(offsets.suspension.map(|suspension| program(START, "raw_tp/start", start(offsets, suspension))));
    let one = |name, kind, value_bytes| Map { name, kind, key_bytes: 4, value_bytes, entries: 1, flags: 0 };
    let counts = Map {
        name: COUNTS,
        kind: abi::MAP_TYPE_PERCPU_HASH,
        key_bytes: 4,
        value_bytes: 8 * WORDS as u32,
        entries: MAX_INSTANCES,
        flags: abi::NO_PREALLOC,
    };
    let softirq = one(SOFTIRQ, abi::MAP_TYPE_PERCPU_ARRAY, 16);
    object_file(&programs, &[counts, softirq, one(HANDLER, abi::MAP_TYPE_ARRAY, 8)])
}

/// The program for the end of a poll. The tracepoint has the instance, the packets and the budget. The context is:
///
/// * softirq, if the receive softirq is running on this CPU; timer, if in addition the timer expired here since the last poll;
/// * otherwise thread, if the current task is the instance's thread;
/// * otherwise busy: a process polls from within a system call.
fn poll(offsets: &Offsets) -> Assembled {
    let mut asm = Assembler::default();
    asm.load(Size::Double, R6, R1, 0);
    asm.load(Size::Double, R7, R1, 8);
    // An `int`: only its lower 32 bits are defined.
    asm.compute(Operation::ShiftLeft, R7, 32);
    asm.compute(Operation::ShiftRight, R7, 32);
    find_counts(&mut asm, offsets);
    store_handler(&mut asm, offsets);

    zero(&mut asm);
    lookup(&mut asm, SOFTIRQ);
    asm.jump_if(R0, When::Equal, 0, "end");
    asm.compute(Operation::Move, R9, R0);
    asm.load(Size::Double, R1, R9, RUNS);
    asm.jump_if(R1, When::Equal, 0, "task");

    asm.call(abi::KTIME_GET_NS);
    asm.load(Size::Double, R1, R9, SINCE);
    asm.store(Size::Double, R9, SINCE, R0);
    asm.compute(Operation::Subtract, R0, R1);
    add(&mut asm, R8, layout::SOFTIRQ_NS, R0);
    asm.compute(Operation::Move, R9, layout::SOFTIRQ as i32 * 8);
    asm.load(Size::Double, R1, R8, word(layout::TIMER_EXPIRED));
    asm.jump_if(R1, When::Equal, 0, "count");
    asm.compute(Operation::Move, R9, layout::TIMER as i32 * 8);
    asm.jump("count");

    asm.label("task");
    asm.call(abi::GET_CURRENT_TASK);
    asm.compute(Operation::Move, R9, R0);
    read(&mut asm, R6, offsets.thread, 8);
    asm.load(Size::Double, R1, R10, READ);
    asm.compute(Operation::Move, R2, R9);
    asm.compute(Operation::Move, R9, layout::THREAD as i32 * 8);
    asm.jump_if(R1, When::Equal, R2, "count");
    asm.compute(Operation::Move, R9, layout::BUSY as i32 * 8);

    asm.label("count");
    asm.compute(Operation::Move, R1, 0);
    asm.store(Size::Double, R8, word(layout::TIMER_EXPIRED), R1);
    asm.compute(Operation::Add, R9, R8);
    increment(&mut asm, R9, layout::POLLS);
    asm.jump_if(R7, When::Equal, 0, "end");
    increment(&mut asm, R9, layout::WITH_WORK);
    add(&mut asm, R9, layout::PACKETS, R7);
    count_batch(&mut asm);
    end(asm)
}

/// Counts a poll with `R7` packets in its bucket.
fn count_batch(asm: &mut Assembler) {
    const LABELS: [&str; BATCH_BOUNDS.len()] = ["b0", "b1", "b2", "b3", "b4", "b5", "b6"];
    for (bucket, (bound, above)) in BATCH_BOUNDS.iter().zip(LABELS).enumerate() {
        asm.jump_if(R7, When::Greater, *bound, above);
        increment(asm, R8, layout::BATCHES + bucket);
        asm.jump("end");
        asm.label(above);
    }
    increment(asm, R8, layout::BATCHES + BATCH_BOUNDS.len());
}

/// Stores the address of the deferral timers' handler, unless it is stored already.
fn store_handler(asm: &mut Assembler, offsets: &Offsets) {
    zero(asm);
    lookup(asm, HANDLER);
    asm.jump_if(R0, When::Equal, 0, "end");
    asm.compute(Operation::Move, R9, R0);
    asm.load(Size::Double, R1, R9, 0);
    asm.jump_if(R1, When::NotEqual, 0, "stored");
    read(asm, R6, offsets.timer + offsets.function, 8);
    asm.load(Size::Double, R1, R10, READ);
    asm.store(Size::Double, R9, 0, R1);
    asm.label("stored");
}

/// The program for the beginning of a softirq. The tracepoint has its number.
fn entry() -> Assembled {
    let mut asm = receive_softirq();
    asm.compute(Operation::Move, R6, R0);
    asm.compute(Operation::Move, R1, 1);
    asm.store(Size::Double, R6, RUNS, R1);
    asm.call(abi::KTIME_GET_NS);
    asm.store(Size::Double, R6, SINCE, R0);
    end(asm)
}

/// The program for the end of a softirq.
fn exit() -> Assembled {
    let mut asm = receive_softirq();
    asm.compute(Operation::Move, R1, 0);
    asm.store(Size::Double, R0, RUNS, R1);
    end(asm)
}

/// Loads this CPU's entry into `R0` if the event is of the receive softirq; jumps to `end` otherwise.
fn receive_softirq() -> Assembler {
    let mut asm = Assembler::default();
    asm.load(Size::Double, R1, R1, 0);
    asm.compute(Operation::ShiftLeft, R1, 32);
    asm.compute(Operation::ShiftRight, R1, 32);
    asm.jump_if(R1, When::NotEqual, NET_RX_SOFTIRQ, "end");
    zero(&mut asm);
    lookup(&mut asm, SOFTIRQ);
    asm.jump_if(R0, When::Equal, 0, "end");
    asm
}

/// The program for the expiry of a timer.
fn expire(offsets: &Offsets) -> Assembled {
    let mut asm = load_timer_and_counts(offsets);
    increment(&mut asm, R8, layout::TIMERS);
    asm.compute(Operation::Move, R1, 1);
    asm.store(Size::Double, R8, word(layout::TIMER_EXPIRED), R1);
    end(asm)
}

/// The program for the start of a timer, whether or not it was armed before. The kernel sets a deferral timer to either
/// irq-suspend-timeout or gro-flush-timeout; the program counts a suspension if the span is nearer to the former. If
/// irq-suspend-timeout is not the longer of the two, the two cannot be distinguished and nothing is counted.
fn start(offsets: &Offsets, at: Suspension) -> Assembled {
    let mut asm = load_timer_and_counts(offsets);
    read(&mut asm, R7, at.expires, 8);
    asm.call(abi::KTIME_GET_NS);
    asm.load(Size::Double, R9, R10, READ);
    asm.jump_if(R0, When::Greater, R9, "end");
    asm.compute(Operation::Subtract, R9, R0);
    read(&mut asm, R6, at.suspend, 8);
    asm.load(Size::Double, R7, R10, READ);
    read(&mut asm, R6, at.flush, 8);
    asm.load(Size::Double, R1, R10, READ);
    asm.jump_if(R7, When::Greater, R1, "longer");
    asm.jump("end");
    asm.label("longer");
    asm.compute(Operation::Add, R7, R1);
    asm.compute(Operation::Add, R9, R9);
    asm.jump_if(R9, When::Less, R7, "end");
    increment(&mut asm, R8, layout::SUSPENSIONS);
    end(asm)
}

/// Loads the event's timer into `R7`, its instance into `R6` and the instance's counts into `R8`. Jumps to `end` unless it is the
/// deferral timer of a watched instance.
fn load_timer_and_counts(offsets: &Offsets) -> Assembler {
    let mut asm = Assembler::default();
    asm.load(Size::Double, R7, R1, 0);
    zero(&mut asm);
    lookup(&mut asm, HANDLER);
    asm.jump_if(R0, When::Equal, 0, "end");
    asm.load(Size::Double, R9, R0, 0);
    asm.jump_if(R9, When::Equal, 0, "end");
    read(&mut asm, R7, offsets.function, 8);
    asm.load(Size::Double, R1, R10, READ);
    asm.jump_if(R1, When::NotEqual, R9, "end");
    asm.compute(Operation::Move, R6, R7);
    asm.compute(Operation::Subtract, R6, offsets.timer);
    find_counts(&mut asm, offsets);
    asm
}

// Stack slots: the key of a map lookup, and what was read from kernel memory.
const KEY: i16 = -4;
const READ: i16 = -16;

/// Loads the counts of instance `R6` into `R8`. Jumps to `end` if the instance is not watched.
fn find_counts(asm: &mut Assembler, offsets: &Offsets) {
    read(asm, R6, offsets.id, 4);
    asm.load(Size::Word, R1, R10, READ);
    asm.store(Size::Word, R10, KEY, R1);
    lookup(asm, COUNTS);
    asm.jump_if(R0, When::Equal, 0, "end");
    asm.compute(Operation::Move, R8, R0);
}

/// Sets the key to 0, for maps with one entry.
fn zero(asm: &mut Assembler) {
    asm.compute(Operation::Move, R1, 0);
    asm.store(Size::Word, R10, KEY, R1);
}

/// Loads the address of the map's value for the key into `R0`, or 0.
fn lookup(asm: &mut Assembler, map: &'static str) {
    asm.compute(Operation::Move, R2, R10);
    asm.compute(Operation::Add, R2, i32::from(KEY));
    asm.load_map(R1, map);
    asm.call(abi::MAP_LOOKUP_ELEM);
}

/// Copies bytes of kernel memory to the stack slot [`READ`]; zeros on a fault.
fn read(asm: &mut Assembler, from: Register, offset: i32, bytes: i32) {
    asm.compute(Operation::Move, R3, from);
    asm.compute(Operation::Add, R3, offset);
    asm.compute(Operation::Move, R1, R10);
    asm.compute(Operation::Add, R1, i32::from(READ));
    asm.compute(Operation::Move, R2, bytes);
    asm.call(abi::PROBE_READ_KERNEL);
}

/// `base[at] += 1`
fn increment(asm: &mut Assembler, base: Register, at: usize) {
    asm.load(Size::Double, R1, base, word(at));
    asm.compute(Operation::Add, R1, 1);
    asm.store(Size::Double, base, word(at), R1);
}

/// `base[at] += amount`
fn add(asm: &mut Assembler, base: Register, at: usize, amount: Register) {
    asm.load(Size::Double, R1, base, word(at));
    asm.compute(Operation::Add, R1, amount);
    asm.store(Size::Double, base, word(at), R1);
}

const fn word(at: usize) -> i16 {
    at as i16 * 8
}

fn end(mut asm: Assembler) -> Assembled {
    asm.label("end");
    asm.compute(Operation::Move, R0, 0);
    asm.exit();
    asm.assemble()
}
