//! Sets of CPUs in the kernel's list format, `0-3,8`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::CpuError;

/// A set of CPU numbers. Its text form is the kernel's `cpulist` (`0-3,8`; the empty set is the empty text).
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuList(BTreeSet<u32>);

/// The highest accepted CPU number, far above the limit of Linux.
const HIGHEST: u32 = 65_535;

/// Why a text is not a list of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseCpuListError {
    /// A part is neither a number nor a range.
    #[error("{0:?} is not a CPU or a range of CPUs; write for example 0-3,8")]
    NotANumber(String),
    /// The end of a range is below its begin.
    #[error("the CPU range {0:?} ends before it begins")]
    Backwards(String),
    /// A number is too high to be a CPU.
    #[error("{0} is too high for a CPU number")]
    TooHigh(u64),
}

impl CpuList {
    /// Reads the CPUs that are online (`/sys/devices/system/cpu/online`).
    ///
    /// # Errors
    /// `/sys` is not mounted.
    pub fn online() -> Result<Self, CpuError> {
        let path = "/sys/devices/system/cpu/online";
        let text = std::fs::read_to_string(path).map_err(|source| CpuError::Read { path: path.into(), source })?;
        Ok(text.trim().parse()?)
    }

    /// Returns the CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// Returns the number of CPUs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether `cpu` is in the set.
    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// Checks that there is at least one CPU and all are online.
    ///
    /// # Errors
    /// [`CpuError::Empty`] or [`CpuError::Offline`].
    pub fn check_online(&self) -> Result<(), CpuError> {
        if self.is_empty() {
            return Err(CpuError::Empty);
        }
        let online = Self::online()?;
        match self.iter().find(|&cpu| !online.contains(cpu)) {
            Some(cpu) => Err(CpuError::Offline { cpu, online }),
            None => Ok(()),
        }
    }
}

impl FromIterator<u32> for CpuList {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl TryFrom<String> for CpuList {
    type Error = ParseCpuListError;

    fn try_from(text: String) -> Result<Self, ParseCpuListError> {
        text.parse()
    }
}

impl From<CpuList> for String {
    fn from(list: CpuList) -> Self {
        list.to_string()
    }
}

impl From<u32> for CpuList {
    fn from(cpu: u32) -> Self {
        Self::from_iter([cpu])
    }
}

impl FromStr for CpuList {
    type Err = ParseCpuListError;

    fn from_str(text: &str) -> Result<Self, ParseCpuListError> {
        let mut cpus = BTreeSet::new();
        if text.trim().is_empty() {
            return Ok(Self(cpus));
        }
        for part in text.split(',').map(str::trim) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first, part)?, number(last, part)?);
            if first > last {
                return Err(ParseCpuListError::Backwards(part.into()));
            }
            cpus.extend(first..=last);
        }
        Ok(Self(cpus))
    }
}

fn number(text: &str, part: &str) -> Result<u32, ParseCpuListError> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(ParseCpuListError::NotANumber(part.into()));
    }
    let number: u64 = text.parse().map_err(|_| ParseCpuListError::NotANumber(part.into()))?;
    match u32::try_from(number) {
        Ok(cpu) if cpu <= HIGHEST => Ok(cpu),
        _ => Err(ParseCpuListError::TooHigh(number)),
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            write!(f, "{separator}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        for (text, cpus) in
            [("", vec![]), ("3", vec![3]), ("0-3,8", vec![0, 1, 2, 3, 8]), ("8,0-1\n", vec![0, 1, 8]), ("5-5", vec![5])]
        {
            assert_eq!(text.parse::<CpuList>().unwrap().iter().collect::<Vec<_>>(), cpus, "{text:?}");
        }
        assert_eq!("7,1,0,2,9,8".parse::<CpuList>().unwrap().to_string(), "0-2,7-9");
    }

    #[test]
    fn other_texts_are_refused() {
        use ParseCpuListError::{Backwards, NotANumber, TooHigh};
        for (text, error) in [
            ("a", NotANumber("a".into())),
            ("1,", NotANumber(String::new())),
            ("-1", NotANumber("-1".into())),
            ("1-", NotANumber("1-".into())),
            ("+1", NotANumber("+1".into())),
            ("3-1", Backwards("3-1".into())),
            ("70000", TooHigh(70_000)),
            ("0-4294967296", TooHigh(4_294_967_296)),
        ] {
            assert_eq!(text.parse::<CpuList>(), Err(error), "{text:?}");
        }
    }

    #[test]
    fn online_has_a_cpu_and_a_missing_one_is_named() {
        let online = CpuList::online().unwrap();
        assert!(!online.is_empty());
        online.check_online().unwrap();
        let error = CpuList::from(HIGHEST).check_online().unwrap_err();
        assert!(error.to_string().contains(&online.to_string()), "{error}");
        assert!(CpuList::default().check_online().is_err());
    }

    proptest! {
        #[test]
        fn printing_and_reading_are_inverse(cpus in proptest::collection::btree_set(0u32..300, 0..40)) {
            let list: CpuList = cpus.iter().copied().collect();
            prop_assert_eq!(list.to_string().parse::<CpuList>().unwrap(), list);
        }
    }
}
