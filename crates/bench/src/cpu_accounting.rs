//! CPU time accounting of one CPU: each nanosecond is charged as the kernel switches tasks and contexts.
//!
//! The kernel's own counters are not precise enough where sleeps are short and other programs use the CPU. Idle time
//! (`/proc/stat`) charges every program in the gaps to the server, and the time of softirqs and interrupts over an idle CPU
//! belongs to no process. Therefore BPF programs at raw tracepoints keep an account of the server's CPU:
//!
//! | column | time |
//! | --- | --- |
//! | idle | in a sleep state (between two `power:cpu_idle` events), without interrupts |
//! | server | in threads of the server's processes, and in kernel threads that poll its packets |
//! | kernel | in interrupts and softirqs, over any task, and in the idle loop outside of a sleep state |
//! | others | in all other threads |
//!
//! *Busy* is server plus kernel. The kernel's own counters charge an interrupt over a server thread to the server; here it is
//! kernel time. An event costs about 0.1 us, the same in every world: one percent of the CPU at 100,000 switches per
//! second.
//!
//! Threads are identified by their IDs in the initial PID namespace.

use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use abey_bpf::Register::{R0, R1, R2, R6, R7, R8, R9};
use abey_bpf::{Assembled, Assembler, Map, Operation, Program, Size, When, abi, error_chain, object_file};
use abey_linux::counters::{Count, WorkCounter};
use abey_linux::cpu::CpuList;
use aya::Ebpf;
use aya::maps::{Array, HashMap, MapData};

use crate::BenchError;

/// The argument of `power:cpu_idle` when a sleep state is left (`PWR_EVENT_EXIT`).
const AWAKE: i32 = -1;

const ACCOUNT: &str = "abey_account";
const SERVERS: &str = "abey_servers";
/// Maximum number of processes and threads that count as the server.
const MAX_SERVERS: u32 = 4096;

// Columns of the account, in 8-byte words. `SINCE` is the end of the last charged time, `ASLEEP` whether the CPU is in a sleep
// state; the others are times.
const SINCE: usize = 0;
const ASLEEP: usize = 1;
const IDLE: usize = 2;
const SERVER: usize = 3;
const KERNEL: usize = 4;
const OTHERS: usize = 5;
/// Nesting depth of interrupts and softirqs.
const DEPTH: usize = 6;
const COLUMNS: usize = 7;

/// Program for a task switch: charges the time since the last event to the task that ran.
const SWITCH: &str = "abey_switch";
/// Program for the beginning of an interrupt: charges the interrupted task, or the kernel if interrupts nest.
const LEAVE: &str = "abey_leave";
/// Program for the end of an interrupt: charges the kernel.
const RETURN: &str = "abey_return";
/// Program for the idle state: charges the sleep state or the idle loop that ends.
const SLEEP: &str = "abey_sleep";

/// Raw tracepoints of interrupts and softirqs on every architecture, without `_entry` and `_exit`.
const INTERRUPTS: [&str; 2] = ["irq_handler", "softirq"];
/// Raw tracepoints of interrupts that x86 traces separately.
const X86_INTERRUPTS: [&str; 4] = ["local_timer", "reschedule", "call_function", "call_function_single"];

/// The account of one CPU, updated until this value is dropped.
pub(crate) struct CpuAccounting {
    account: Array<MapData, [u64; COLUMNS]>,
    servers: Mutex<HashMap<MapData, u32, u32>>,
    /// Reading this counter interrupts the CPU, which updates the account.
    trigger: Mutex<WorkCounter>,
    cpu: u32,
    _loaded: Ebpf,
}

/// A reading of the account.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccountReading {
    columns: [u64; COLUMNS],
    at: Instant,
}

/// The times charged between two readings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charged {
    pub(crate) server: Duration,
    pub(crate) kernel: Duration,
    pub(crate) others: Duration,
    pub(crate) interval: Duration,
}

impl CpuAccounting {
    /// Opens the account of a CPU.
    pub(crate) fn open(cpu: u32) -> Result<Self, BenchError> {
        let lacks = |error: String| BenchError::Lacks {
            what: format!("cannot account CPU time ({error})"),
            advice: "it needs root, and a kernel with CONFIG_BPF_EVENTS",
        };
        let mut loaded = abey_bpf::load(&object(cpu)).map_err(|error| lacks(error_chain(&error)))?;
        let mut map = |name| loaded.take_map(name).ok_or_else(|| lacks(format!("no map {name}")));
        let account = Array::try_from(map(ACCOUNT)?).map_err(|error| lacks(error_chain(&error)))?;
        let servers = HashMap::try_from(map(SERVERS)?).map_err(|error| lacks(error_chain(&error)))?;
        let mut attach = |program: &str, points: &[String]| {
            abey_bpf::attach_raw_tracepoints(&mut loaded, program, points).map_err(|error| lacks(error_chain(&error)))
        };
        let more: &[&str] = if cfg!(target_arch = "x86_64") { &X86_INTERRUPTS } else { &[] };
        let of = |end: &str| INTERRUPTS.iter().chain(more).map(|name| format!("{name}_{end}")).collect::<Vec<_>>();
        attach(SWITCH, &["sched_switch".to_owned()])?;
        attach(LEAVE, &of("entry"))?;
        attach(RETURN, &of("exit"))?;
        attach(SLEEP, &["cpu_idle".to_owned()])?;
        let cpus: CpuList = std::iter::once(cpu).collect();
        let trigger = WorkCounter::on_cpus(&cpus, &[Count::ContextSwitches])?.into();
        Ok(Self { account, servers: servers.into(), trigger, cpu, _loaded: loaded })
    }

    /// Sets the processes and kernel threads that count as the server. The CPU's `ksoftirqd` always does.
    pub(crate) fn set_server(&self, ids: &[u32]) -> Result<(), BenchError> {
        let refused = |error: aya::maps::MapError| BenchError::Lacks { what: error_chain(&error), advice: "try again" };
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

    pub(crate) fn read(&self) -> Result<AccountReading, BenchError> {
        self.trigger.lock().unwrap_or_else(PoisonError::into_inner).read()?;
        let refused = |error: aya::maps::MapError| BenchError::Lacks { what: error_chain(&error), advice: "try again" };
        let columns = self.account.get(&0, 0).map_err(refused)?;
        Ok(AccountReading { columns, at: Instant::now() })
    }
}

impl AccountReading {
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

/// Returns the thread ID of a CPU's `ksoftirqd`.
fn softirq_thread(cpu: u32) -> Option<u32> {
    let named = |pid: &u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name.trim_end() == format!("ksoftirqd/{cpu}"))
    };
    let pids = fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.into_iter().find(named)
}

const fn offset(column: usize) -> i16 {
    column as i16 * 8
}

/// Jumps to `end` on another CPU. Loads the account into `R7` and the time since the last event into `R8`.
fn begin(asm: &mut Assembler, cpu: u32) {
    asm.compute(Operation::Move, R6, R1);
    asm.call(abi::GET_SMP_PROCESSOR_ID);
    asm.jump_if(R0, When::NotEqual, cpu.cast_signed(), "end");
    asm.compute(Operation::Move, R1, 0);
    asm.look_up(ACCOUNT, R1);
    asm.jump_if(R0, When::Equal, 0, "end");
    asm.compute(Operation::Move, R7, R0);
    asm.call(abi::KTIME_GET_NS);
    asm.load(Size::Double, R9, R7, offset(SINCE));
    asm.store(Size::Double, R7, offset(SINCE), R0);
    // The first event has no interval before it.
    asm.jump_if(R9, When::Equal, 0, "end");
    asm.compute(Operation::Move, R8, R0);
    asm.compute(Operation::Subtract, R8, R9);
}

fn charge(asm: &mut Assembler, column: usize) {
    asm.load(Size::Double, R1, R7, offset(column));
    asm.compute(Operation::Add, R1, R8);
    asm.store(Size::Double, R7, offset(column), R1);
}

/// Charges the sleep state, or the kernel outside of a sleep state.
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

/// Charges the current task.
fn charge_current(asm: &mut Assembler) {
    asm.call(abi::GET_CURRENT_PID_TGID);
    asm.compute(Operation::Move, R9, R0);
    asm.compute(Operation::ShiftLeft, R9, 32);
    asm.jump_if(R9, When::NotEqual, 0, "thread");
    charge_idle(asm);
    asm.jump("end");
    asm.label("thread");
    asm.compute(Operation::ShiftRight, R0, 32);
    asm.look_up(SERVERS, R0);
    asm.jump_if(R0, When::Equal, 0, "other");
    charge(asm, SERVER);
    asm.jump("end");
    asm.label("other");
    charge(asm, OTHERS);
}

fn switch(cpu: u32) -> Assembled {
    let mut asm = Assembler::default();
    begin(&mut asm, cpu);
    // Tasks are not switched within an interrupt: an interrupt whose end was not traced has ended.
    set(&mut asm, DEPTH, 0);
    charge_current(&mut asm);
    end(asm)
}

fn interrupt_begin(cpu: u32) -> Assembled {
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

fn interrupt_end(cpu: u32) -> Assembled {
    let mut asm = Assembler::default();
    begin(&mut asm, cpu);
    charge(&mut asm, KERNEL);
    asm.load(Size::Double, R1, R7, offset(DEPTH));
    // It began before the program was attached.
    asm.jump_if(R1, When::Equal, 0, "end");
    asm.compute(Operation::Subtract, R1, 1);
    asm.store(Size::Double, R7, offset(DEPTH), R1);
    end(asm)
}

/// The lower 32 bits of the tracepoint's first argument are the state.
fn sleep(cpu: u32) -> Assembled {
    let mut asm = Assembler::default();
    begin(&mut asm, cpu);
    charge_idle(&mut asm);
    asm.load(Size::Double, R2, R6, 0);
    asm.compute(Operation::ShiftLeft, R2, 32);
    asm.compute(Operation::ShiftRight, R2, 32);
    asm.compute(Operation::Move, R9, AWAKE);
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
        program(LEAVE, "raw_tp/leave", interrupt_begin(cpu)),
        program(RETURN, "raw_tp/return", interrupt_end(cpu)),
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

    /// Returns the CPU time of a clock.
    fn used(clock: ClockId) -> Duration {
        clock_gettime(clock).expect("a clock").into()
    }

    /// Alternately spins and sleeps in a thread on one CPU. Returns the account, and the CPU times of the thread and of the process, in
    /// which other tests may run.
    fn spin_and_sleep(cpu: u32, spin: Duration, rounds: u32) -> (Charged, [Duration; 2]) {
        let clocks = [ClockId::CLOCK_THREAD_CPUTIME_ID, ClockId::CLOCK_PROCESS_CPUTIME_ID];
        let accounting = CpuAccounting::open(cpu).expect("an account");
        accounting.set_server(&[std::process::id()]).expect("a process");
        let cpus: CpuList = std::iter::once(cpu).collect();
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                set_thread_affinity(nix::unistd::gettid().as_raw().cast_unsigned(), &cpus).expect("pinned");
                let began = clocks.map(used);
                let before = read(&accounting);
                for _ in 0..rounds {
                    let since = Instant::now();
                    while since.elapsed() < spin {}
                    std::thread::sleep(spin);
                }
                let charged = read(&accounting).since(&before);
                (charged, [0, 1].map(|at| used(clocks[at]) - began[at]))
            });
            worker.join().expect("no panic")
        })
    }

    fn read(accounting: &CpuAccounting) -> AccountReading {
        accounting.read().expect("a balance")
    }

    #[test]
    fn time_is_charged_to_the_task_that_ran() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: needs root for BPF programs");
            return;
        }
        let cpu = CpuList::online().expect("CPUs").iter().last().expect("one");
        let (charged, [thread, process]) = spin_and_sleep(cpu, Duration::from_millis(2), 40);
        let [server, kernel, others, interval] =
            [charged.server, charged.kernel, charged.others, charged.interval].map(|time| time.as_secs_f64());
        let [thread, process] = [thread, process].map(|time| time.as_secs_f64());
        // Interrupts over the thread count for its clock, and as kernel time here.
        assert!(server + kernel >= thread * 0.9, "{charged:?}, {thread} s of CPU time");
        // Time that the hypervisor took from the CPU is charged here, and not in the clock.
        assert!(server <= process * 1.5 + 0.001, "{charged:?}, {process} s of CPU time");
        assert!(interval >= 0.16, "{charged:?}");
        assert!(server + kernel + others <= interval * 1.01, "{charged:?}");
    }
}
