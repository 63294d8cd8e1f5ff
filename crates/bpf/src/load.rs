//! Loading an object into the kernel and attaching its programs to raw tracepoints.

use aya::programs::{ProgramError, RawTracePoint};
use aya::{Ebpf, EbpfError, EbpfLoader};

/// Creates the maps of an object made by [`object_file`](crate::object_file). Its programs are loaded when they are
/// attached.
///
/// # Errors
/// The kernel refused a map, mostly for want of CAP_BPF.
pub fn load(object: &[u8]) -> Result<Ebpf, EbpfError> {
    // With the kernel's BTF the loader would parse it for relocations, which these programs do not have.
    EbpfLoader::new().btf(None).load(object)
}

/// Loads a program and attaches it to raw tracepoints, until `loaded` is dropped.
///
/// # Errors
/// The kernel refused the program or has no tracepoint of that name; the tracepoint's name is in the error.
///
/// # Panics
/// When the object has no program of this name in a section `raw_tp/...`.
pub fn attach_raw_tracepoints<S: AsRef<str>>(
    loaded: &mut Ebpf,
    program: &str,
    tracepoints: &[S],
) -> Result<(), AttachError> {
    let program = loaded.program_mut(program).unwrap_or_else(|| panic!("the object has no program {program}"));
    let program: &mut RawTracePoint = program.try_into().expect("a program in a section raw_tp");
    program.load()?;
    for tracepoint in tracepoints.iter().map(S::as_ref) {
        let refused = |source| AttachError::Tracepoint { tracepoint: tracepoint.to_owned(), source };
        program.attach(tracepoint).map_err(refused)?;
    }
    Ok(())
}

/// Reason why a program does not run at a raw tracepoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The kernel refused the program.
    #[error(transparent)]
    Load(#[from] ProgramError),
    /// The kernel has no such tracepoint, or refused to attach the program to it.
    #[error("tracepoint {tracepoint}")]
    Tracepoint {
        /// Name of the tracepoint.
        tracepoint: String,
        /// The kernel's reason.
        source: ProgramError,
    },
}

/// Returns the messages of an error and of its sources, in one line.
#[must_use]
pub fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let text = causes.map(ToString::to_string).collect::<Vec<_>>().join(": ");
    // The verifier's log has many lines.
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
