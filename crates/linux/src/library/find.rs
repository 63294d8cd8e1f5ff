//! The search for the library, and the check of its version.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{LibraryConfig, VERSION, is_ours};

/// The file name of the library.
pub const FILE_NAME: &str = "libabey.so";

/// The variable that holds the path of the library, in place of a search.
pub const LIBRARY_VARIABLE: &str = "ABEY_LIBRARY";

/// Why the library cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FindError {
    /// It is in none of the searched directories: `cargo install` installs commands only.
    #[error(
        "{FILE_NAME} is neither beside {exe} nor in {lib}: build it with `cargo build --release -p abey-preload` in \
         Abey's source and copy target/release/{FILE_NAME} to {lib}, or set {LIBRARY_VARIABLE} to its path"
    )]
    Missing {
        /// The path of the command.
        exe: PathBuf,
        /// The directory that an installed command searches.
        lib: PathBuf,
    },
    /// The variable names a file that does not exist.
    #[error("{LIBRARY_VARIABLE}={path} names no file: correct the path or unset the variable")]
    Named {
        /// Its value.
        path: PathBuf,
    },
    /// The path contains a character that separates paths in `LD_PRELOAD`.
    #[error(
        "{0:?} cannot be preloaded: the dynamic loader takes no path with a space or a colon; move it to another directory"
    )]
    Path(PathBuf),
    /// It cannot be executed, and so cannot be loaded either.
    #[error("{path} does not run: {source}; build it for this machine")]
    Run {
        /// The library.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// It belongs to another version of the command.
    #[error("{path} is `{printed}`, but this is version {VERSION}: build or install both together")]
    Version {
        /// The library.
        path: PathBuf,
        /// What it printed when it was executed.
        printed: String,
    },
}

/// Finds the library of the command at `exe` (`std::env::current_exe()`), and executes it to check its version.
///
/// `$ABEY_LIBRARY`, if set, is the only candidate. Otherwise, with `D` the directory of `exe`: the newer of `D` and `D/deps`
/// (cargo writes the library to one or the other); then, if `D` is cargo's `deps`, its parent; then `D/../lib` and
/// `D/../lib/abey`, where a package installs it. The returned path is absolute.
///
/// # Errors
/// [`FindError`].
pub fn find_library(exe: &Path) -> Result<PathBuf, FindError> {
    let path = match env::var_os(LIBRARY_VARIABLE).filter(|value| !value.is_empty()) {
        Some(named) => Path::new(&named).canonicalize().map_err(|_| FindError::Named { path: named.clone().into() })?,
        None => search(exe).ok_or_else(|| missing(exe))?,
    };
    if path.as_os_str().as_encoded_bytes().iter().any(|byte| b" :".contains(byte)) {
        return Err(FindError::Path(path));
    }
    check_version(path)
}

/// Returns the value of `LD_PRELOAD` with `library` before the libraries that are preloaded already.
pub fn preload_value(library: &Path, present: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    let present = present.unwrap_or_default().as_encoded_bytes();
    for other in present.split(|byte| b" :".contains(byte)).filter(|other| !other.is_empty()) {
        // The same library twice would do everything twice.
        if other != library.as_os_str().as_encoded_bytes() {
            value.push(":");
            value.push(<OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(other));
        }
    }
    value
}

/// Prepares the environment of a program that is about to start: removes the variables of an outer `abey run` and, if there
/// is a library, preloads it before the libraries of `present` and sets the variables of its configuration.
pub fn equip(command: &mut Command, library: Option<(&Path, &LibraryConfig)>, present: Option<&OsStr>) {
    for (name, _) in env::vars_os().filter(|(name, _)| is_ours(name)) {
        command.env_remove(name);
    }
    if let Some((path, config)) = library {
        command.env("LD_PRELOAD", preload_value(path, present)).envs(config.to_env());
    }
}

fn search(exe: &Path) -> Option<PathBuf> {
    let beside = exe.parent()?;
    let above = beside.parent();
    let in_deps = beside.file_name().is_some_and(|name| name == "deps");
    let newest = |directories: &[PathBuf]| {
        let files = directories.iter().filter_map(|directory| directory.join(FILE_NAME).canonicalize().ok());
        files.max_by_key(|file| file.metadata().and_then(|data| data.modified()).ok())
    };
    newest(&[beside.to_owned(), beside.join("deps")])
        .or_else(|| newest(&[above.filter(|_| in_deps)?.to_owned()]))
        .or_else(|| newest(&[above?.join("lib")]))
        .or_else(|| newest(&[above?.join("lib/abey")]))
}

fn missing(exe: &Path) -> FindError {
    let prefix = exe.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    FindError::Missing { exe: exe.to_owned(), lib: prefix.join("lib") }
}

fn check_version(path: PathBuf) -> Result<PathBuf, FindError> {
    let output = Command::new(&path).env_clear().stdin(Stdio::null()).output();
    let output = match output {
        Ok(output) => output,
        Err(source) => return Err(FindError::Run { path, source }),
    };
    let printed = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
    if output.status.success() && printed == format!("{FILE_NAME} {VERSION}") {
        Ok(path)
    } else {
        Err(FindError::Version { path, printed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn library(directory: &Path, version: &str) -> PathBuf {
        fs::create_dir_all(directory).expect("a directory");
        let path = directory.join(FILE_NAME);
        fs::write(&path, format!("#!/bin/sh\necho '{version}'\n")).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
        path.canonicalize().expect("a path")
    }

    fn right() -> String {
        format!("{FILE_NAME} {VERSION}")
    }

    #[test]
    fn it_is_found_where_cargo_and_packages_put_it() {
        for (exe, place) in [
            ("bin/abey", "bin"),
            ("bin/abey", "lib"),
            ("bin/abey", "lib/abey"),
            ("target/debug/abey", "target/debug/deps"),
            ("target/debug/deps/run-0123", "target/debug"),
            ("target/debug/deps/run-0123", "target/debug/deps"),
        ] {
            let root = tempfile::tempdir().expect("a directory");
            let exe = root.path().join(exe);
            fs::create_dir_all(exe.parent().expect("a directory")).expect("a directory");
            assert_eq!(search(&exe), None);
            let path = library(&root.path().join(place), &right());
            assert_eq!(search(&exe), Some(path), "{exe:?} {place}");
        }
    }

    #[test]
    fn the_error_for_a_missing_library_names_its_directory_and_how_to_build_it() {
        let error = missing(Path::new("/root/.cargo/bin/abey")).to_string();
        for part in
            ["/root/.cargo/bin/abey", "/root/.cargo/lib:", "cargo build --release -p abey-preload", LIBRARY_VARIABLE]
        {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
    }

    #[test]
    fn another_version_is_refused_and_both_versions_named() {
        let root = tempfile::tempdir().expect("a directory");
        let path = library(root.path(), "libabey.so 0.0.0");
        let error = check_version(path).expect_err("another version").to_string();
        assert!(error.contains("libabey.so 0.0.0") && error.contains(VERSION), "{error}");
        let path = library(root.path(), &right());
        assert_eq!(check_version(path.clone()).expect("the right version"), path);
    }

    #[test]
    fn other_preloaded_libraries_stay_and_abeys_is_listed_once() {
        let ours = Path::new("/a/libabey.so");
        let with = |present: &str| preload_value(ours, Some(OsStr::new(present)));
        assert_eq!(preload_value(ours, None), "/a/libabey.so");
        assert_eq!(with("/b.so /c.so"), "/a/libabey.so:/b.so:/c.so");
        assert_eq!(with("/b.so:/a/libabey.so"), "/a/libabey.so:/b.so");
    }
}
