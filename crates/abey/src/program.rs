//! The program that `abey run` starts: where it is, and whether a library can be preloaded into it.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Finds the program as a shell would, so that one that does not exist is known before anything is changed.
pub(crate) fn find_program(name: &OsString) -> Result<PathBuf, Failure> {
    let executable =
        |path: &Path| path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
    let shown = Path::new(name).display();
    if Path::new(name).components().count() > 1 || Path::new(name).is_absolute() {
        return match Path::new(name) {
            path if executable(path) => Ok(path.to_owned()),
            path if path.exists() => Err(Failure::usage(format!("{shown} is not executable: check its permissions"))),
            _ => Err(Failure::usage(format!("there is no program {shown}: check the path"))),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|candidate| executable(candidate))
        .ok_or_else(|| Failure::usage(format!("there is no program `{shown}` in PATH: check the name")))
}

/// Why the dynamic loader would not preload a library into the program, in words that follow its name; `None` where it
/// would, and where that cannot be known (a script, whose interpreter decides).
pub(crate) fn why_not_preloaded(program: &Path) -> Option<&'static str> {
    let file = File::open(program).ok()?;
    // `ld.so(8)`, secure-execution mode: nothing is preloaded from a path with a slash.
    if !nix::unistd::geteuid().is_root() && file.metadata().ok()?.permissions().mode() & 0o6000 != 0 {
        return Some("changes its user when it starts");
    }
    let asks = asks_for_loader(&file).ok()??;
    (!asks).then_some("is statically linked")
}

/// Whether an ELF file names a dynamic loader (a `PT_INTERP` header, `elf(5)`); `None` for another kind of file, also
/// an ELF file for another machine.
fn asks_for_loader(file: &File) -> io::Result<Option<bool>> {
    const INTERPRETER: u32 = 3;
    const IS_64_BIT: u8 = 2;
    let own_order = if cfg!(target_endian = "little") { 1 } else { 2 };
    let mut header = [0; 64];
    file.read_exact_at(&mut header, 0)?;
    if header[..6] != [0x7f, b'E', b'L', b'F', IS_64_BIT, own_order] {
        return Ok(None);
    }
    let half = |at: usize| u64::from(u16::from_ne_bytes([header[at], header[at + 1]]));
    let table = u64::from_ne_bytes(header[32..40].try_into().expect("eight bytes"));
    let (size, count) = (half(54), half(56));
    for entry in 0..count {
        let mut kind = [0; 4];
        file.read_exact_at(&mut kind, table.saturating_add(entry * size))?;
        if u32::from_ne_bytes(kind) == INTERPRETER {
            return Ok(Some(true));
        }
    }
    Ok(Some(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_program_asks_for_the_loader_and_a_script_is_not_judged() {
        let own = File::open("/proc/self/exe").expect("this test");
        assert_eq!(asks_for_loader(&own).expect("read"), Some(cfg!(not(target_feature = "crt-static"))));
        let here = tempfile::tempdir().expect("directory");
        for (name, text) in [("script", "#!/bin/sh\n".repeat(20)), ("short", "#!/bin/sh\n".to_owned())] {
            let path = here.path().join(name);
            std::fs::write(&path, text).expect("written");
            assert_eq!(why_not_preloaded(&path), None, "{name}");
        }
    }
}
