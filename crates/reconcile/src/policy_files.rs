//! The files that a policy consists of.

use std::path::{Path, PathBuf};

use abey_config::read_text;
use abey_policy::{Policy, PolicyError};

use crate::error::ReconcileError;

const MAIN: &str = "/etc/abey/policy.toml";
const FRAGMENTS: &str = "/etc/abey/policy.d";

/// The files and directories of a policy: given ones, or `/etc/abey/policy.toml` and `/etc/abey/policy.d`.
pub struct PolicyFiles {
    paths: Vec<PathBuf>,
}

impl PolicyFiles {
    /// The files and directories `paths`; the default ones if there are none.
    pub fn new(paths: &[PathBuf]) -> Self {
        Self { paths: paths.to_vec() }
    }

    /// Reads the policy as the files are now.
    ///
    /// # Errors
    /// When there is no file, a file cannot be read, or the policy has an error.
    pub fn read(&self) -> Result<Policy, ReconcileError> {
        let mut files = Vec::new();
        if self.paths.is_empty() {
            files.extend(Some(PathBuf::from(MAIN)).filter(|path| path.exists()));
            if Path::new(FRAGMENTS).is_dir() {
                files.extend(fragments(Path::new(FRAGMENTS))?);
            }
        }
        for path in &self.paths {
            match path.is_dir() {
                true => files.extend(fragments(path)?),
                false => files.push(path.clone()),
            }
        }
        if files.is_empty() {
            let expected = match self.paths[..] {
                [] => format!("{MAIN} or {FRAGMENTS}/*.toml"),
                _ => self.paths.iter().map(|path| format!("{}/*.toml", path.display())).collect::<Vec<_>>().join(", "),
            };
            return Err(ReconcileError::Files(format!("there is no policy: write {expected}, or name a file")));
        }
        let read = |path: PathBuf| Ok((path.display().to_string(), read_text(&path).map_err(PolicyError::from)?));
        let texts = files.into_iter().map(read).collect::<Result<Vec<_>, ReconcileError>>()?;
        Ok(Policy::parse_all(texts.iter().map(|(name, text)| (name.as_str(), text.as_str())))?)
    }
}

/// Returns the `*.toml` files of a directory, sorted by name.
fn fragments(directory: &Path) -> Result<Vec<PathBuf>, ReconcileError> {
    let cannot = |error| ReconcileError::Files(format!("cannot read {}: {error}", directory.display()));
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_named_in_the_error() {
        let files = PolicyFiles::new(&["/nowhere/policy.toml".into()]);
        let error = files.read().expect_err("no such file").to_string();
        assert!(error.contains("/nowhere/policy.toml"), "{error}");
    }
}
