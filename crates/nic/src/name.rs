//! The names of NICs: `memory:NAME`, `memory:self`, `tap:DEV` or `af_xdp:DEV`.

use std::fmt;
use std::str::FromStr;

use nix::unistd::User;

use crate::interface::problem_with_name;

/// The name of a NIC, parsed and validated.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NicName {
    /// `memory:NAME` or `memory:NAME,user=USER`: the shared-memory NIC of that name.
    Memory(MemoryName),
    /// `memory:self`: a NIC without a peer, for programs that connect to themselves.
    Hairpin,
    /// `tap:DEV`: the TAP device of that name.
    Tap(String),
    /// `af_xdp:DEV`: the queues of that network device through AF_XDP.
    AfXdp(String),
}

/// The name of a shared-memory NIC, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MemoryName {
    /// 1 to 64 letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// The user of the process at the other end, if it is another one than that of this end. The creator accepts peers of
    /// this user instead of its own; a process that attaches takes the NIC that this user has created.
    pub peer: Option<u32>,
}

impl fmt::Display for MemoryName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "memory:{}", self.name)?;
        self.peer.map_or(Ok(()), |user| write!(formatter, ",user={user}"))
    }
}

/// Maximum length of the name of a shared-memory NIC. The address of its socket has room for little more.
const MEMORY_NAME: usize = 64;

/// Reason why a text is not the name of a NIC.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is not the name of a NIC: {reason}")]
pub struct ParseNicError {
    name: String,
    reason: String,
}

impl FromStr for NicName {
    type Err = ParseNicError;

    fn from_str(text: &str) -> Result<Self, ParseNicError> {
        let wrong = |reason: &str| ParseNicError { name: text.to_owned(), reason: reason.to_owned() };
        let forms = "write memory:NAME, tap:DEV or af_xdp:DEV";
        let (kind, rest) = text.split_once(':').ok_or_else(|| wrong(forms))?;
        match kind {
            "memory" if rest == "self" => Ok(Self::Hairpin),
            "memory" => {
                let (rest, user) = match rest.split_once(",user=") {
                    Some((rest, user)) => (rest, Some(user)),
                    None => (rest, None),
                };
                let valid = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
                if rest.is_empty() || rest.len() > MEMORY_NAME || !rest.chars().all(valid) {
                    return Err(wrong("NAME is 1 to 64 letters, digits, `-`, `_` and `.`"));
                }
                let peer =
                    user.map(|user| user_number(user).ok_or_else(|| wrong("there is no such user"))).transpose()?;
                Ok(Self::Memory(MemoryName { name: rest.to_owned(), peer }))
            }
            "tap" | "af_xdp" => match problem_with_name(rest) {
                Some(problem) => Err(wrong(problem)),
                None if kind == "tap" => Ok(Self::Tap(rest.to_owned())),
                None => Ok(Self::AfXdp(rest.to_owned())),
            },
            _ => Err(wrong(forms)),
        }
    }
}

/// Returns the number of a user, who is named by it or by the name in the user database.
fn user_number(user: &str) -> Option<u32> {
    let named = || User::from_name(user).ok().flatten().map(|user| user.uid.as_raw());
    user.parse().ok().or_else(named)
}

impl fmt::Display for NicName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(name) => name.fmt(formatter),
            Self::Hairpin => formatter.write_str("memory:self"),
            Self::Tap(device) => write!(formatter, "tap:{device}"),
            Self::AfXdp(device) => write!(formatter, "af_xdp:{device}"),
        }
    }
}
