//! Which files a policy is made of.

use std::path::{Path, PathBuf};

use abey_policy::{Policy, PolicyError};

use crate::failure::Failure;

const MAIN: &str = "/etc/abey/policy.toml";
const FRAGMENTS: &str = "/etc/abey/policy.d";

/// What was named on the command line, or the usual places.
pub(crate) struct Files {
    paths: Vec<PathBuf>,
}

impl Files {
    pub(crate) fn new(paths: &[PathBuf]) -> Self {
        Self { paths: paths.to_vec() }
    }

    /// Reads the policy; again, if there is another one in the same places.
    pub(crate) fn read(&self) -> Result<Policy, Failure> {
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
            let places = match self.paths[..] {
                [] => format!("{MAIN} or {FRAGMENTS}/*.toml"),
                _ => self.paths.iter().map(|path| format!("{}/*.toml", path.display())).collect::<Vec<_>>().join(", "),
            };
            return Err(Failure::usage(format!("there is no policy: write {places}, or name a file")));
        }
        Ok(Policy::load(&files)?)
    }
}

/// The fragments of a directory, by name.
fn fragments(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let cannot = |error| Failure::usage(format!("cannot read {}: {error}", directory.display()));
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

impl From<PolicyError> for Failure {
    fn from(error: PolicyError) -> Self {
        Self::usage(error)
    }
}
