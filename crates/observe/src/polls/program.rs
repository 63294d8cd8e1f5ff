//! The BPF programs that count: what each of them does at its tracepoint.

use abey_nic::bpf::Register::{R0, R1, R2, R3, R6, R7, R8, R9, R10};
use abey_nic::bpf::{Assembled, Assembler, Map, Operation, Program, Register, Size, When, object_file};

use super::layout::{self, BATCH_BOUNDS, WORDS};
use crate::btf::{Btf, BtfError};

/// Numbers of `linux/bpf.h` and `linux/interrupt.h`.
mod abi {
    pub(super) const MAP_LOOKUP_ELEM: i32 = 1;
    pub(super) const KTIME_GET_NS: i32 = 5;
    pub(super) const GET_CURRENT_TASK: i32 = 35;
    pub(super) const PROBE_READ_KERNEL: i32 = 113;
    pub(super) const MAP_TYPE_ARRAY: u32 = 2;
    pub(super) const MAP_TYPE_PERCPU_HASH: u32 = 5;
    pub(super) const MAP_TYPE_PERCPU_ARRAY: u32 = 6;
    /// Memory of an entry is taken when it comes, not for all of them at once.
    pub(super) const NO_PREALLOC: u32 = 1;
    pub(super) const NET_RX_SOFTIRQ: i32 = 3;
}

/// Counts of each instance that is watched, by its ID.
pub(super) const COUNTS: &str = "abey_counts";
/// Each CPU's receive softirq: since when time is not charged yet, whether it runs.
const SOFTIRQ: &str = "abey_softirq";
/// The kernel's function for deferral timers, learned from the first instance that polls.
const HANDLER: &str = "abey_handler";
/// Most instances that are watched.
pub(super) const MAX_INSTANCES: u32 = 16_384;

const SINCE: i16 = 0;
const RUNS: i16 = 8;

/// A program and the raw tracepoint it is for.
pub(super) const POLL: (&str, &str) = ("abey_poll", "napi_poll");
pub(super) const ENTRY: (&str, &str) = ("abey_entry", "softirq_entry");
pub(super) const EXIT: (&str, &str) = ("abey_exit", "softirq_exit");
pub(super) const EXPIRE: (&str, &str) = ("abey_expire", "hrtimer_expire_entry");
pub(super) const START: (&str, &str) = ("abey_start", "hrtimer_start");

/// Where this kernel keeps what is read of an instance and its timer, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offsets {
    id: i32,
    thread: i32,
    timer: i32,
    function: i32,
    suspension: Option<Suspension>,
}

/// What tells a suspension from a deferral; a kernel before 6.13 has no suspension.
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

/// All programs and maps, for the loader.
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

/// One poll has ended; the tracepoint has the instance, the packets and the budget. Which context it was in:
///
/// * the receive softirq runs on this CPU: the softirq, for the timer if that has gone off here since the last poll;
/// * else the current task is the instance's thread: that;
/// * else a process polls from within a system call.
fn poll(offsets: &Offsets) -> Assembled {
    let mut asm = Assembler::default();
    asm.load(Size::Double, R6, R1, 0);
    asm.load(Size::Double, R7, R1, 8);
    // An `int`, of which only the lower half is defined.
    asm.compute(Operation::ShiftLeft, R7, 32);
    asm.compute(Operation::ShiftRight, R7, 32);
    find_counts(&mut asm, offsets);
    learn_handler(&mut asm, offsets);

    zero(&mut asm);
    look_up(&mut asm, SOFTIRQ);
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
    asm.load(Size::Double, R1, R8, word(layout::TIMER_WENT_OFF));
    asm.jump_if(R1, When::Equal, 0, "known");
    asm.compute(Operation::Move, R9, layout::TIMER as i32 * 8);
    asm.jump("known");

    asm.label("task");
    asm.call(abi::GET_CURRENT_TASK);
    asm.compute(Operation::Move, R9, R0);
    read(&mut asm, R6, offsets.thread, 8);
    asm.load(Size::Double, R1, R10, READ);
    asm.compute(Operation::Move, R2, R9);
    asm.compute(Operation::Move, R9, layout::THREAD as i32 * 8);
    asm.jump_if(R1, When::Equal, R2, "known");
    asm.compute(Operation::Move, R9, layout::BUSY as i32 * 8);

    asm.label("known");
    asm.compute(Operation::Move, R1, 0);
    asm.store(Size::Double, R8, word(layout::TIMER_WENT_OFF), R1);
    asm.compute(Operation::Add, R9, R8);
    bump(&mut asm, R9, layout::POLLS);
    asm.jump_if(R7, When::Equal, 0, "end");
    bump(&mut asm, R9, layout::WITH_WORK);
    add(&mut asm, R9, layout::PACKETS, R7);
    count_batch(&mut asm);
    end(asm)
}

/// A poll with `R7` packets in the bucket that it belongs to.
fn count_batch(asm: &mut Assembler) {
    const LABELS: [&str; BATCH_BOUNDS.len()] = ["b0", "b1", "b2", "b3", "b4", "b5", "b6"];
    for (bucket, (bound, above)) in BATCH_BOUNDS.iter().zip(LABELS).enumerate() {
        asm.jump_if(R7, When::Greater, *bound, above);
        bump(asm, R8, layout::BATCHES + bucket);
        asm.jump("end");
        asm.label(above);
    }
    bump(asm, R8, layout::BATCHES + BATCH_BOUNDS.len());
}

/// The handler of deferral timers, if it is not known yet.
fn learn_handler(asm: &mut Assembler, offsets: &Offsets) {
    zero(asm);
    look_up(asm, HANDLER);
    asm.jump_if(R0, When::Equal, 0, "end");
    asm.compute(Operation::Move, R9, R0);
    asm.load(Size::Double, R1, R9, 0);
    asm.jump_if(R1, When::NotEqual, 0, "learned");
    read(asm, R6, offsets.timer + offsets.function, 8);
    asm.load(Size::Double, R1, R10, READ);
    asm.store(Size::Double, R9, 0, R1);
    asm.label("learned");
}

/// A softirq begins; the tracepoint has its number.
fn entry() -> Assembled {
    let mut asm = receive_softirq();
    asm.compute(Operation::Move, R6, R0);
    asm.compute(Operation::Move, R1, 1);
    asm.store(Size::Double, R6, RUNS, R1);
    asm.call(abi::KTIME_GET_NS);
    asm.store(Size::Double, R6, SINCE, R0);
    end(asm)
}

/// A softirq ends.
fn exit() -> Assembled {
    let mut asm = receive_softirq();
    asm.compute(Operation::Move, R1, 0);
    asm.store(Size::Double, R0, RUNS, R1);
    end(asm)
}

/// `R0` becomes this CPU's entry if it is the receive softirq that the tracepoint tells of.
fn receive_softirq() -> Assembler {
    let mut asm = Assembler::default();
    asm.load(Size::Double, R1, R1, 0);
    asm.compute(Operation::ShiftLeft, R1, 32);
    asm.compute(Operation::ShiftRight, R1, 32);
    asm.jump_if(R1, When::NotEqual, abi::NET_RX_SOFTIRQ, "end");
    zero(&mut asm);
    look_up(&mut asm, SOFTIRQ);
    asm.jump_if(R0, When::Equal, 0, "end");
    asm
}

/// A timer has gone off.
fn expire(offsets: &Offsets) -> Assembled {
    let mut asm = of_instance(offsets);
    bump(&mut asm, R8, layout::TIMERS);
    asm.compute(Operation::Move, R1, 1);
    asm.store(Size::Double, R8, word(layout::TIMER_WENT_OFF), R1);
    end(asm)
}

/// A timer is set, when it was set or not: to irq-suspend-timeout if it is nearer to that than to gro-flush-timeout, which
/// are the only two that the kernel sets it to. With a suspension no longer than a deferral the two cannot be told apart.
fn start(offsets: &Offsets, at: Suspension) -> Assembled {
    let mut asm = of_instance(offsets);
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
    bump(&mut asm, R8, layout::SUSPENSIONS);
    end(asm)
}

/// `R7` becomes the timer that the tracepoint tells of, `R6` the instance it is of, and `R8` that one's counts; what is no
/// deferral timer of an instance that is watched leaves for `end`.
fn of_instance(offsets: &Offsets) -> Assembler {
    let mut asm = Assembler::default();
    asm.load(Size::Double, R7, R1, 0);
    zero(&mut asm);
    look_up(&mut asm, HANDLER);
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

/// Where keys are put for a look-up, and what was read of the kernel's memory.
const KEY: i16 = -4;
const READ: i16 = -16;

/// `R8` becomes the counts of instance `R6`; one that is not watched leaves for `end`.
fn find_counts(asm: &mut Assembler, offsets: &Offsets) {
    read(asm, R6, offsets.id, 4);
    asm.load(Size::Word, R1, R10, READ);
    asm.store(Size::Word, R10, KEY, R1);
    look_up(asm, COUNTS);
    asm.jump_if(R0, When::Equal, 0, "end");
    asm.compute(Operation::Move, R8, R0);
}

/// The key of maps with one entry.
fn zero(asm: &mut Assembler) {
    asm.compute(Operation::Move, R1, 0);
    asm.store(Size::Word, R10, KEY, R1);
}

/// `R0` becomes the address of the value that the map has for the key, or 0.
fn look_up(asm: &mut Assembler, map: &'static str) {
    asm.compute(Operation::Move, R2, R10);
    asm.compute(Operation::Add, R2, i32::from(KEY));
    asm.load_map(R1, map);
    asm.call(abi::MAP_LOOKUP_ELEM);
}

/// Copies bytes of the kernel's memory to where [`READ`] says; zeros if there is nothing.
fn read(asm: &mut Assembler, from: Register, offset: i32, bytes: i32) {
    asm.compute(Operation::Move, R3, from);
    asm.compute(Operation::Add, R3, offset);
    asm.compute(Operation::Move, R1, R10);
    asm.compute(Operation::Add, R1, i32::from(READ));
    asm.compute(Operation::Move, R2, bytes);
    asm.call(abi::PROBE_READ_KERNEL);
}

fn bump(asm: &mut Assembler, base: Register, at: usize) {
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
