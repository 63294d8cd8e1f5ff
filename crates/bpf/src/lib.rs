//! BPF programs without a compiler: an assembler, a reader of the kernel's type information (BTF), and a loader.
//!
//! An [`Assembler`] makes the code of one program. [`object_file`] puts programs and maps into the ELF object that a C
//! compiler would make of them, and [`load()`] passes it to the kernel. [`Btf`] gives the offsets of structure members that a
//! program reads. Building Abey therefore needs no clang.
//!
//! ```
//! use abey_bpf::{Assembler, Operation, Program, Register, object_file};
//!
//! let mut asm = Assembler::default();
//! asm.compute(Operation::Move, Register::R0, 0);
//! asm.exit();
//! let program = Program { name: "nothing", section: "raw_tp/nothing", code: asm.assemble() };
//! assert_eq!(object_file(&[program], &[])[..4], *b"\x7fELF");
//! ```

#![forbid(unsafe_code)]

pub mod abi;
mod assembler;
mod btf;
mod load;
mod object;

pub use assembler::{Assembled, Assembler, Operand, Operation, Register, Size, When};
pub use btf::{Btf, BtfError};
pub use load::{AttachError, attach_raw_tracepoints, error_chain, load};
pub use object::{Map, Program, object_file};
