//! ECN field of IP packets (RFC 3168, section 5; RFC 8311).

/// Codepoint of the ECN field: the two low bits of IPv4's type of service and of IPv6's traffic class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Codepoint {
    /// The transport does not use ECN for this packet.
    #[default]
    NotEct,
    /// ECT(1), reserved for experiments (RFC 8311).
    Ect1,
    /// ECT(0): a congested router marks the packet instead of dropping it.
    Ect0,
    /// A router on the path is congested.
    Ce,
}

impl Codepoint {
    /// Returns the codepoint in the low bits of a traffic class.
    pub(crate) const fn of(traffic_class: u8) -> Self {
        match traffic_class & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// Returns the codepoint as the low bits of a traffic class.
    pub(crate) const fn bits(self) -> u8 {
        self as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_codepoint_is_in_the_low_bits() {
        for bits in 0..4 {
            assert_eq!(Codepoint::of(0xb8 | bits).bits(), bits);
        }
        assert_eq!((Codepoint::of(2), Codepoint::of(3)), (Codepoint::Ect0, Codepoint::Ce));
    }
}
