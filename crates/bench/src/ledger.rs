//! Whose CPU time it was: every nanosecond of one CPU, charged by the kernel as it happens.
//!
//! The kernel's own figures do not do where sleeps are short and others use the CPU as well. Idle time (`/proc/stat`) takes
//! everybody who fills the gaps for the server; and time that softirqs and interrupts take from the idle CPU is no process's.
//! So small BPF programs at the kernel's raw tracepoints keep an account of the server's CPU:
//!
//! | column | time |
//! | --- | --- |
//! | idle | in a sleep state (between the two `power:cpu_idle` events), without the interrupts in it |
//! | server | in threads of the server's processes, and of the kernel where they poll its packets |
//! | kernel | in interrupts and softirqs, over whomever they came; and in the idle loop outside of the sleep state |
//! | others | in every other thread |
//!
//! *Busy* is what is neither idle nor others'. An interrupt or a softirq over a thread of the server is kernel time here and
//! the server's in the kernel's own figures. An event costs about 0.1 us, the same in every world: at 100,000 switches a
//! second one percent of the CPU.
//!
//! Threads are told by the numbers that they have in the initial PID namespace.

use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use abey_linux::counters::{Count, WorkCounter};
use abey_linux::cpu::CpuList;
use abey_nic::bpf::Register::{R0, R1, R2, R6, R7, R8, R9, R10};
use abey_nic::bpf::{Assembled, Assembler, Map, Operation, Program, Register, Size, When, object_file};
use aya::maps::{Array, HashMap, MapData};
use aya::programs::RawTracePoint;
use aya::{Ebpf, EbpfLoader};

use crate::BenchError;

/// Numbers of `linux/bpf.h` and `linux/cpuidle.h`.
mod abi {
    pub(super) const MAP_LOOKUP_ELEM: i32 = 1;
    pub(super) const KTIME_GET_NS: i32 = 5;
    pub(super) const GET_SMP_PROCESSOR_ID: i32 = 8;
    pub(super) const GET_CURRENT_PID_TGID: i32 = 14;
    pub(super) const MAP_TYPE_HASH: u32 = 1;
    pub(super) const MAP_TYPE_ARRAY: u32 = 2;
    /// What `power:cpu_idle` says when a sleep state is left.
    pub(super) const AWAKE: i32 = -1;
}

const ACCOUNT: &str = "abey_account";
const SERVERS: &str = "abey_servers";
/// Most threads and processes that are the server's.
const MAX_SERVERS: u32 = 4096;

// Columns of the account, in 8-byte words: since when time is not charged yet, whether the CPU is in a sleep state, times.
const SINCE: usize = 0;
const ASLEEP: usize = 1;
const IDLE: usize = 2;
const SERVER: usize = 3;
const KERNEL: usize = 4;
const OTHERS: usize = 5;
/// How many interrupts and softirqs are one within the other.
const DEPTH: usize = 6;
const COLUMNS: usize = 7;

/// Charge the time up to now to whoever runs: a switch away from it.
const SWITCH: &str = "abey_switch";
/// The same, unless that is an interrupt already: another begins.
const LEAVE: &str = "abey_leave";
/// Charge it to the kernel: the end of an interrupt.
const RETURN: &str = "abey_return";
/// Charge it to the sleep state or the idle loop, whichever ends.
const SLEEP: &str = "abey_sleep";

/// Raw tracepoints where an interrupt or softirq begins or ends, on every architecture.
const INTERRUPTS: [&str; 2] = ["irq_handler", "softirq"];
/// The same for interrupts that x86 traces apart.
const MORE_INTERRUPTS: [&str; 4] = ["local_timer", "reschedule", "call_function", "call_function_single"];

/// An account of one CPU, kept while this value lives.
pub(crate) struct Ledger {
    account: Array<MapData, [u64; COLUMNS]>,
    servers: Mutex<HashMap<MapData, u32, u32>>,
    /// To read it interrupts the CPU, which brings the account up to date.
    nudge: Mutex<WorkCounter>,
    cpu: u32,
    _loaded: Ebpf,
}

/// The account at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Balance {
    columns: [u64; COLUMNS],
    at: Instant,
}

/// What was charged in an interval.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charged {
    pub(crate) server: Duration,
    pub(crate) kernel: Duration,
    pub(crate) others: Duration,
    pub(crate) interval: Duration,
}

impl Ledger {
    /// Opens an account of this CPU.
    pub(crate) fn open(cpu: u32) -> Result<Self, BenchError> {
        let lacks = |error: String| BenchError::Lacks {
            what: format!("CPU time cannot be told apart here ({error})"),
            advice: "it needs root, and a kernel with CONFIG_BPF_EVENTS",
        };
        let mut loaded = EbpfLoader::new().load(&object(cpu)).map_err(|error| lacks(chain(&error)))?;
        let mut map = |name| loaded.take_map(name).ok_or_else(|| lacks(format!("no map {name}")));
        let account = Array::try_from(map(ACCOUNT)?).map_err(|error| lacks(chain(&error)))?;
        let servers = HashMap::try_from(map(SERVERS)?).map_err(|error| lacks(chain(&error)))?;
        let mut attach = |program: &str, points: &[String]| {
            let program: Result<&mut RawTracePoint, _> = loaded.program_mut(program).expect("of the object").try_into();
            let program = program.expect("a raw tracepoint's");
            program.load().map_err(|error| lacks(chain(&error)))?;
            for point in points {
                program.attach(point).map_err(|error| lacks(format!("{point}: {}", chain(&error))))?;
            }
            Ok::<(), BenchError>(())
        };
        let more: &[&str] = if cfg!(target_arch = "x86_64") { &MORE_INTERRUPTS } else { &[] };
        let of = |end: &str| INTERRUPTS.iter().chain(more).map(|name| format!("{name}_{end}")).collect::<Vec<_>>();
        attach(SWITCH, &["sched_switch".to_owned()])?;
        attach(LEAVE, &of("entry"))?;
        attach(RETURN, &of("exit"))?;
        attach(SLEEP, &["cpu_idle".to_owned()])?;
        let cpus: CpuList = std::iter::once(cpu).collect();
        let nudge = WorkCounter::on_cpus(&cpus, &[Count::ContextSwitches])?.into();
        Ok(Self { account, servers: servers.into(), nudge, cpu, _loaded: loaded })
    }

    /// From here on these processes are the server, and these threads of the kernel; and the one that takes softirqs over.
    pub(crate) fn serve(&self, ids: &[u32]) -> Result<(), BenchError> {
        let refused = |error: aya::maps::MapError| BenchError::Lacks { what: chain(&error), advice: "try again" };
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        let before: Vec<u32> = servers.keys().filter_map(Result::ok).collect();
        for id in before {
            servers.remove(&id).map_err(refused)?;
        }
        for id in ids.iter().copied().chain(softirq_thread(self.cpu)) {
            servers.insert(id, 1, 0).map_err(refused)?;
        }
        Ok(())
    }

    pub(crate) fn read(&self) -> Result<Balance, BenchError> {
        self.nudge.lock().unwrap_or_else(PoisonError::into_inner).read()?;
        let refused = |error: aya::maps::MapError| BenchError::Lacks { what: chain(&error), advice: "try again" };
        let columns = self.account.get(&0, 0).map_err(refused)?;
        Ok(Balance { columns, at: Instant::now() })
    }
}

impl Balance {
    pub(crate) fn since(&self, earlier: &Self) -> Charged {
        let column = |at: usize| Duration::from_nanos(self.columns[at].saturating_sub(earlier.columns[at]));
        Charged {
            server: column(SERVER),
            kernel: column(KERNEL),
            others: column(OTHERS),
            interval: self.at - earlier.at,
        }
    }
}

/// `ksoftirqd` of a CPU.
fn softirq_thread(cpu: u32) -> Option<u32> {
    let named = |pid: &u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name.trim_end() == format!("ksoftirqd/{cpu}"))
    };
    let pids = fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.into_iter().find(named)
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

const fn offset(column: usize) -> i16 {
    column as i16 * 8
}

/// `R0` becomes the address of the map's value for this key of four bytes, or 0.
fn look_up(asm: &mut Assembler, key: Register, map: &'static str) {
    asm.store(Size::Word, R10, -4, key);
    asm.compute(Operation::Move, R2, R10);
    asm.compute(Operation::Add, R2, -4);
    asm.load_map(R1, map);
    asm.call(abi::MAP_LOOKUP_ELEM);
}

/// Leaves for `end` on another CPU. `R7` becomes the account, `R8` the time since the last charge, which ends now.
fn begin(asm: &mut Assembler, cpu: u32) {
    asm.compute(Operation::Move, R6, R1);
    asm.call(abi::GET_SMP_PROCESSOR_ID);
    asm.jump_if(R0, When::NotEqual, cpu.cast_signed(), "end");
    asm.compute(Operation::Move, R1, 0);
    look_up(asm, R1, ACCOUNT);
    asm.jump_if(R0, When::Equal, 0, "end");
    asm.compute(Operation::Move, R7, R0);
    asm.call(abi::KTIME_GET_NS);
    asm.load(Size::Double, R9, R7, offset(SINCE));
    asm.store(Size::Double, R7, offset(SINCE), R0);
    // The first event of all ends no interval.
    asm.jump_if(R9, When::Equal, 0, "end");
    asm.compute(Operation::Move, R8, R0);
    asm.compute(Operation::Subtract, R8, R9);
}

fn charge(asm: &mut Assembler, column: usize) {
    asm.load(Size::Double, R1, R7, offset(column));
    asm.compute(Operation::Add, R1, R8);
    asm.store(Size::Double, R7, offset(column), R1);
}

/// Charges the sleep state or, outside of it, the kernel.
fn charge_idle(asm: &mut Assembler) {
    asm.load(Size::Double, R1, R7, offset(ASLEEP));
    asm.jump_if(R1, When::Equal, 0, "awake");
    charge(asm, IDLE);
    asm.jump("charged");
    asm.label("awake");
    charge(asm, KERNEL);
    asm.label("charged");
}

fn end(mut asm: Assembler) -> Assembled {
    asm.label("end");
    asm.compute(Operation::Move, R0, 0);
    asm.exit();
    asm.assemble()
}

fn set(asm: &mut Assembler, column: usize, value: i32) {
    asm.compute(Operation::Move, R1, value);
    asm.store(Size::Double, R7, offset(column), R1);
}

/// Charges who runs.
fn charge_current(asm: &mut Assembler) {
    asm.call(abi::GET_CURRENT_PID_TGID);
    asm.compute(Operation::Move, R9, R0);
    asm.compute(Operation::ShiftLeft, R9, 32);
    asm.jump_if(R9, When::NotEqual, 0, "thread");
    charge_idle(asm);
    asm.jump("end");
    asm.label("thread");
    asm.compute(Operation::ShiftRight, R0, 32);
    look_up(asm, R0, SERVERS);
    asm.jump_if(R0, When::Equal, 0, "other");
    charge(asm, SERVER);
    asm.jump("end");
    asm.label("other");
    charge(asm, OTHERS);
}

fn switch(cpu: u32) -> Assembled {
    let mut asm = Assembler::default();
    begin(&mut asm, cpu);
    // No interrupt is switched away from: one whose end was not seen is over.
    set(&mut asm, DEPTH, 0);
    charge_current(&mut asm);
    end(asm)
}

fn leave(cpu: u32) -> Assembled {
    let mut asm = Assembler::default();
    begin(&mut asm, cpu);
    asm.load(Size::Double, R9, R7, offset(DEPTH));
    asm.compute(Operation::Move, R1, R9);
    asm.compute(Operation::Add, R1, 1);
    asm.store(Size::Double, R7, offset(DEPTH), R1);
    asm.jump_if(R9, When::Equal, 0, "outermost");
    charge(&mut asm, KERNEL);
    asm.jump("end");
    asm.label("outermost");
    charge_current(&mut asm);
    end(asm)
}

fn come_back(cpu: u32) -> Assembled {
    let mut asm = Assembler::default();
    begin(&mut asm, cpu);
    charge(&mut asm, KERNEL);
    asm.load(Size::Double, R1, R7, offset(DEPTH));
    // Its beginning was before ours.
    asm.jump_if(R1, When::Equal, 0, "end");
    asm.compute(Operation::Subtract, R1, 1);
    asm.store(Size::Double, R7, offset(DEPTH), R1);
    end(asm)
}

/// The tracepoint's first argument is the state, 32 bits of it.
fn sleep(cpu: u32) -> Assembled {
    let mut asm = Assembler::default();
    begin(&mut asm, cpu);
    charge_idle(&mut asm);
    asm.load(Size::Double, R2, R6, 0);
    asm.compute(Operation::ShiftLeft, R2, 32);
    asm.compute(Operation::ShiftRight, R2, 32);
    asm.compute(Operation::Move, R9, abi::AWAKE);
    asm.compute(Operation::ShiftLeft, R9, 32);
    asm.compute(Operation::ShiftRight, R9, 32);
    asm.compute(Operation::Move, R1, 0);
    asm.jump_if(R2, When::Equal, R9, "set");
    asm.compute(Operation::Move, R1, 1);
    asm.label("set");
    asm.store(Size::Double, R7, offset(ASLEEP), R1);
    end(asm)
}

fn object(cpu: u32) -> Vec<u8> {
    let program = |name, section, code| Program { name, section, code };
    let programs = [
        program(SWITCH, "raw_tp/switch", switch(cpu)),
        program(LEAVE, "raw_tp/leave", leave(cpu)),
        program(RETURN, "raw_tp/return", come_back(cpu)),
        program(SLEEP, "raw_tp/sleep", sleep(cpu)),
    ];
    let (key_bytes, flags) = (4, 0);
    let account =
        Map { name: ACCOUNT, kind: abi::MAP_TYPE_ARRAY, key_bytes, value_bytes: 8 * COLUMNS as u32, entries: 1, flags };
    let servers =
        Map { name: SERVERS, kind: abi::MAP_TYPE_HASH, key_bytes, value_bytes: 4, entries: MAX_SERVERS, flags };
    object_file(&programs, &[account, servers])
}

#[cfg(test)]
mod tests {
    use super::*;
    use abey_linux::cpu::set_thread_affinity;
    use nix::time::{ClockId, clock_gettime};

    /// CPU time so far.
    fn used(clock: ClockId) -> Duration {
        clock_gettime(clock).expect("a clock").into()
    }

    /// A thread of ours on one CPU, which spins for a while and sleeps for a while; and the CPU time of that thread, and of
    /// all of this process, in which other tests may run.
    fn spin_and_sleep(cpu: u32, spin: Duration, rounds: u32) -> (Charged, [Duration; 2]) {
        let clocks = [ClockId::CLOCK_THREAD_CPUTIME_ID, ClockId::CLOCK_PROCESS_CPUTIME_ID];
        let ledger = Ledger::open(cpu).expect("an account");
        ledger.serve(&[std::process::id()]).expect("a process");
        let cpus: CpuList = std::iter::once(cpu).collect();
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                set_thread_affinity(nix::unistd::gettid().as_raw().cast_unsigned(), &cpus).expect("pinned");
                let began = clocks.map(used);
                let before = ledger_read(&ledger);
                for _ in 0..rounds {
                    let since = Instant::now();
                    while since.elapsed() < spin {}
                    std::thread::sleep(spin);
                }
                let charged = ledger_read(&ledger).since(&before);
                (charged, [0, 1].map(|at| used(clocks[at]) - began[at]))
            });
            worker.join().expect("no panic")
        })
    }

    fn ledger_read(ledger: &Ledger) -> Balance {
        ledger.read().expect("a balance")
    }

    #[test]
    fn time_is_charged_to_whoever_had_it() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: needs root for BPF programs");
            return;
        }
        let cpu = CpuList::online().expect("CPUs").iter().last().expect("one");
        let (charged, [thread, process]) = spin_and_sleep(cpu, Duration::from_millis(2), 40);
        let [server, kernel, others, interval] =
            [charged.server, charged.kernel, charged.others, charged.interval].map(|time| time.as_secs_f64());
        let [thread, process] = [thread, process].map(|time| time.as_secs_f64());
        // Interrupts in the thread's time are the thread's for its clock, and the kernel's here.
        assert!(server + kernel >= thread * 0.9, "{charged:?}, {thread} s of CPU time");
        assert!(server <= process * 1.02 + 0.001, "{charged:?}, {process} s of CPU time");
        assert!(interval >= 0.16, "{charged:?}");
        assert!(server + kernel + others <= interval * 1.01, "{charged:?}");
    }
}
