//! What a seccomp filter decides about a system call (`seccomp(2)`).
//!
//! A filter is a classic BPF program over `struct seccomp_data`. The kernel gives no way to ask it, and a call that it forbids
//! may end the process. So a program that is about to install one is asked for it first, and the filter is run here: with the
//! instructions that the kernel accepts in a filter, and no others (Linux `Documentation/userspace-api/seccomp_filter.rst`,
//! `Documentation/networking/filter.rst`).

/// An instruction: `struct sock_filter` of `linux/filter.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Class, size, mode and operation.
    pub code: u16,
    /// Instructions to skip if a condition holds.
    pub if_true: u8,
    /// Instructions to skip if it does not.
    pub if_false: u8,
    /// The constant.
    pub value: u32,
}

/// A system call with its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    number: u32,
    arguments: [u64; 6],
}

impl Call {
    /// Returns a call of this architecture. Arguments that are not given are 0.
    #[must_use]
    pub fn new(number: i64, arguments: &[u64]) -> Self {
        let mut all = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        Self { number: number as u32, arguments: all }
    }

    /// Returns the number of the call.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the word of `struct seccomp_data` at an offset, if there is one.
    fn word(&self, offset: u32) -> Option<u32> {
        let halves = |value: u64| {
            let bytes = value.to_ne_bytes();
            let half = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            [half(0), half(4)]
        };
        if !offset.is_multiple_of(4) {
            return None;
        }
        match offset / 4 {
            0 => Some(self.number),
            1 => Some(ARCHITECTURE),
            // The address of the instruction, which filters do not look at.
            2 | 3 => Some(0),
            word => {
                let word = word as usize - 4;
                Some(halves(*self.arguments.get(word / 2)?)[word % 2])
            }
        }
    }
}

/// AUDIT_ARCH_* of `linux/audit.h`.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "x86")]
const ARCHITECTURE: u32 = 0x4000_0003;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
#[cfg(not(any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")))]
const ARCHITECTURE: u32 = 0;

/// SECCOMP_RET_* of `linux/seccomp.h`.
const ACTION: u32 = 0xffff_0000;
const ALLOW: u32 = 0x7fff_0000;
const LOG: u32 = 0x7ffc_0000;
const KILL: u32 = 0x8000_0000;

/// `sizeof(struct seccomp_data)`.
const DATA_BYTES: u32 = 64;
/// Words of scratch memory (BPF_MEMWORDS).
const SCRATCH: usize = 16;

/// Returns whether a filter lets a call pass. A filter that the kernel would refuse lets none pass.
#[must_use]
pub fn allows(filter: &[Instruction], call: &Call) -> bool {
    let action = run(filter, call).unwrap_or(KILL) & ACTION;
    action == ALLOW || action == LOG
}

/// Runs a filter. Returns its result, or `None` if an instruction is none of a filter's.
fn run(filter: &[Instruction], call: &Call) -> Option<u32> {
    let (mut a, mut x, mut scratch) = (0_u32, 0_u32, [0_u32; SCRATCH]);
    let mut at = 0;
    // Jumps go forward only, so this ends.
    loop {
        let Instruction { code, if_true, if_false, value } = *filter.get(at)?;
        at += 1;
        let memory = value as usize;
        match code {
            // BPF_LD and BPF_LDX: from the data, its length, a constant, scratch memory.
            0x20 => a = call.word(value)?,
            0x80 => a = DATA_BYTES,
            0x81 => x = DATA_BYTES,
            0x00 => a = value,
            0x01 => x = value,
            0x60 => a = *scratch.get(memory)?,
            0x61 => x = *scratch.get(memory)?,
            // BPF_ST, BPF_STX.
            0x02 => *scratch.get_mut(memory)? = a,
            0x03 => *scratch.get_mut(memory)? = x,
            // BPF_MISC: TAX, TXA.
            0x07 => x = a,
            0x87 => a = x,
            // BPF_RET.
            0x06 => return Some(value),
            0x16 => return Some(a),
            // BPF_JMP: JA, then conditions.
            0x05 => at = at.checked_add(memory)?,
            0x15 | 0x1d | 0x25 | 0x2d | 0x35 | 0x3d | 0x45 | 0x4d => {
                let holds = condition(code, a, if code & 0x08 == 0 { value } else { x });
                at += usize::from(if holds { if_true } else { if_false });
            }
            _ if code & 0x07 == 0x04 => a = compute(code, a, if code & 0x08 == 0 { value } else { x })?,
            _ => return None,
        }
    }
}

/// The condition of a jump: equal, greater, greater or equal, any bit set.
fn condition(code: u16, left: u32, right: u32) -> bool {
    match code & 0xf0 {
        0x10 => left == right,
        0x20 => left > right,
        0x30 => left >= right,
        _ => left & right != 0,
    }
}

/// The result of an instruction of class BPF_ALU.
fn compute(code: u16, left: u32, right: u32) -> Option<u32> {
    match code & 0xf0 {
        0x00 => Some(left.wrapping_add(right)),
        0x10 => Some(left.wrapping_sub(right)),
        0x20 => Some(left.wrapping_mul(right)),
        0x30 => left.checked_div(right),
        0x40 => Some(left | right),
        0x50 => Some(left & right),
        0x60 => Some(left.wrapping_shl(right)),
        0x70 => Some(left.wrapping_shr(right)),
        0x80 => Some(left.wrapping_neg()),
        0xa0 => Some(left ^ right),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(code: u16, value: u32) -> Instruction {
        Instruction { code, if_true: 0, if_false: 0, value }
    }

    fn jump(code: u16, value: u32, if_true: u8, if_false: u8) -> Instruction {
        Instruction { code, if_true, if_false, value }
    }

    const ERRNO: u32 = 0x0005_0001;

    #[test]
    fn numbers_architectures_and_arguments_are_looked_at() {
        let filter = [
            op(0x20, 4),
            jump(0x15, ARCHITECTURE, 1, 0),
            op(0x06, KILL),
            op(0x20, 0),
            jump(0x15, 41, 0, 3),
            // The low half of the first argument.
            op(0x20, if cfg!(target_endian = "little") { 16 } else { 20 }),
            jump(0x15, 1, 1, 0),
            op(0x06, ERRNO),
            op(0x06, ALLOW),
        ];
        assert!(allows(&filter, &Call::new(0, &[])));
        assert!(allows(&filter, &Call::new(41, &[1])));
        assert!(!allows(&filter, &Call::new(41, &[2])));
        assert_eq!(run(&filter, &Call::new(41, &[2])), Some(ERRNO));
        assert!(allows(&[op(0x06, LOG)], &Call::new(1, &[])));
    }

    #[test]
    fn registers_scratch_memory_and_arithmetic() {
        // x = 3, then ((64 - 3) | 1) & 0x3f, in and out of memory, compared with x.
        let filter =
            [op(0x01, 3), op(0x80, 0), op(0x1c, 0), op(0x44, 1), op(0x54, 0x3f), op(0x02, 5), op(0x61, 5), op(0x16, 0)];
        assert_eq!(run(&filter, &Call::new(0, &[])), Some(61));
        let compares = [op(0x00, 7), op(0x07, 0), jump(0x1d, 0, 0, 1), op(0x06, ALLOW), op(0x06, KILL)];
        assert!(allows(&compares, &Call::new(0, &[])));
        for (code, expected) in [
            (0x04, 10),
            (0x14, 4),
            (0x24, 21),
            (0x34, 2),
            (0x64, 56),
            (0x74, 0),
            (0x84, 7_u32.wrapping_neg()),
            (0xa4, 4),
        ] {
            assert_eq!(run(&[op(0x00, 7), op(code, 3), op(0x16, 0)], &Call::new(0, &[])), Some(expected), "{code:#x}");
        }
        let skips = [op(0x05, 1), op(0x06, KILL), op(0x06, ALLOW)];
        assert!(allows(&skips, &Call::new(0, &[])));
    }

    #[test]
    fn what_is_no_filter_allows_nothing() {
        for bad in
            [vec![], vec![op(0x28, 0)], vec![op(0x20, 64)], vec![op(0x20, 2)], vec![op(0x60, 16)], vec![op(0x05, 9)]]
        {
            assert!(!allows(&bad, &Call::new(0, &[])), "{bad:?}");
        }
        assert!(!allows(&[op(0x00, 7), op(0x34, 0), op(0x06, ALLOW)], &Call::new(0, &[])), "a division by 0");
    }
}
