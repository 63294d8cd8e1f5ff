//! Values with their position in a policy file.

use std::fmt;
use std::sync::Arc;

/// A position in a policy file.
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

/// A value with its position in a policy file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spanned<T> {
    /// The value.
    pub value: T,
    /// The position.
    pub origin: Origin,
}

impl<T> Spanned<T> {
    /// Returns another value with the same position.
    pub fn with<U>(&self, value: U) -> Spanned<U> {
        Spanned { value, origin: self.origin.clone() }
    }
}
