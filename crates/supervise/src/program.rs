//! The file of a program: where it is, and whether a library can be preloaded into it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::{getgid, getuid};
use rustix::fs::StatVfsMountFlags;

/// Reason why there is no program of a name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// The file lacks permission to be executed, or is no regular file.
    #[error("{} is not executable: check its permissions", .0.display())]
    NotExecutable(PathBuf),
    /// No such file.
    #[error("there is no program {}: check the path", .0.display())]
    NoFile(PathBuf),
    /// No such program in the directories of `PATH`.
    #[error("there is no program `{}` in PATH: check the name", .0.display())]
    NotInPath(OsString),
}

/// Finds a program by its path, or by its name in the directories of `PATH`, as a shell does.
///
/// # Errors
/// [`ProgramError`]
pub fn find_program(name: &OsStr) -> Result<PathBuf, ProgramError> {
    let executable =
        |path: &Path| path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
    let path = Path::new(name);
    if path.components().count() > 1 || path.is_absolute() {
        return match path {
            path if executable(path) => Ok(path.to_owned()),
            path if path.exists() => Err(ProgramError::NotExecutable(path.to_owned())),
            _ => Err(ProgramError::NoFile(path.to_owned())),
        };
    }
    let directories = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&directories)
        .map(|directory| directory.join(name))
        .find(|candidate| executable(candidate))
        .ok_or_else(|| ProgramError::NotInPath(name.to_owned()))
}

/// Returns why the dynamic loader would not preload a library into the program, as the rest of a sentence that begins with
/// the program's name.
///
/// `None` where the loader preloads it, and where that is unknown: the interpreter of a script decides.
#[must_use]
pub fn why_not_preloaded(program: &Path) -> Option<&'static str> {
    let file = File::open(program).ok()?;
    if let Some(why) = gains_privileges(&file) {
        return Some(why);
    }
    let is_dynamic = names_loader(&file).ok()??;
    (!is_dynamic).then_some("is statically linked")
}

/// Returns why the file is executed in secure-execution mode (`ld.so(8)`), in which the loader ignores paths of `LD_PRELOAD`.
fn gains_privileges(file: &File) -> Option<&'static str> {
    let is_ignored = rustix::thread::no_new_privs().unwrap_or(false)
        || rustix::fs::fstatvfs(file).is_ok_and(|system| system.f_flag.contains(StatVfsMountFlags::NOSUID));
    if is_ignored {
        return None;
    }
    let data = file.metadata().ok()?;
    let has = |bits: u32| data.permissions().mode() & bits == bits;
    if has(0o4000) && data.uid() != getuid().as_raw() {
        return Some("changes its user when it starts");
    }
    // Without permission for the group to execute the file, the bit means something else.
    if has(0o2010) && data.gid() != getgid().as_raw() {
        return Some("changes its group when it starts");
    }
    // The kernel does not count it as secure execution if root starts the program.
    let has_capabilities = || rustix::fs::fgetxattr(file, "security.capability", &mut [0_u8; 64]).is_ok();
    (!getuid().is_root() && has_capabilities()).then_some("gains capabilities when it starts")
}

/// Returns whether an ELF file names a dynamic loader (a `PT_INTERP` header, `elf(5)`); `None` for another kind of file, and
/// for an ELF file of another word size or byte order.
fn names_loader(file: &File) -> io::Result<Option<bool>> {
    const PT_INTERP: u32 = 3;
    const ELFCLASS64: u8 = 2;
    let own_order = if cfg!(target_endian = "little") { 1 } else { 2 };
    let mut header = [0; 64];
    file.read_exact_at(&mut header, 0)?;
    if header[..6] != [0x7f, b'E', b'L', b'F', ELFCLASS64, own_order] {
        return Ok(None);
    }
    let half = |at: usize| u64::from(u16::from_ne_bytes([header[at], header[at + 1]]));
    let table = u64::from_ne_bytes(header[32..40].try_into().expect("eight bytes"));
    let (size, count) = (half(54), half(56));
    for entry in 0..count {
        let mut kind = [0; 4];
        file.read_exact_at(&mut kind, table.saturating_add(entry * size))?;
        if u32::from_ne_bytes(kind) == PT_INTERP {
            return Ok(Some(true));
        }
    }
    Ok(Some(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_program_names_a_loader_and_scripts_are_unknown() {
        let own = File::open("/proc/self/exe").expect("this test");
        assert_eq!(names_loader(&own).expect("read"), Some(cfg!(not(target_feature = "crt-static"))));
        let directory = tempfile::tempdir().expect("directory");
        for (name, text) in [("script", "#!/bin/sh\n".repeat(20)), ("short", "#!/bin/sh\n".to_owned())] {
            let path = directory.path().join(name);
            std::fs::write(&path, text).expect("written");
            assert_eq!(why_not_preloaded(&path), None, "{name}");
        }
    }

    #[test]
    fn a_program_that_gains_privileges_is_not_preloaded() {
        if !getuid().is_root() {
            eprintln!("skipped: files of other users need root");
            return;
        }
        let directory = tempfile::tempdir().expect("directory");
        if rustix::fs::statvfs(directory.path()).expect("a file system").f_flag.contains(StatVfsMountFlags::NOSUID) {
            eprintln!("skipped: {} is mounted with nosuid", directory.path().display());
            return;
        }
        let path = directory.path().join("program");
        let (user, group) = (Some("changes its user when it starts"), Some("changes its group when it starts"));
        let (root, other) = (Some(0), Some(65534));
        let cases = [(root, root, 0o6755, None), (other, root, 0o4755, user), (root, other, 0o2755, group)];
        for (owner, of_group, mode, expected) in cases.into_iter().chain([(other, other, 0o2745, None)]) {
            std::fs::copy("/proc/self/exe", &path).expect("this test");
            std::os::unix::fs::chown(&path, owner, of_group).expect("an owner");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("a mode");
            assert_eq!(why_not_preloaded(&path), expected, "{owner:?} {of_group:?} {mode:o}");
        }
    }
}
