//! Where in which file something was said.

use std::fmt;
use std::sync::Arc;

/// A place in a policy file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// The file's name.
    pub file: Arc<str>,
    /// The line, counted from 1.
    pub line: usize,
    /// The dotted key, such as `device.queues.mode`.
    pub key: &'static str,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, line {} ({})", self.file, self.line, self.key)
    }
}

/// A value, and where it was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said<T> {
    /// The value.
    pub value: T,
    /// Where it stands.
    pub origin: Origin,
}

impl<T> Said<T> {
    /// Another value that was said in the same place.
    pub fn with<U>(&self, value: U) -> Said<U> {
        Said { value, origin: self.origin.clone() }
    }
}
