//! Sequence numbers: 32 bits that wrap (RFC 9293, section 3.4).
//!
//! Two numbers are compared by the sign of their difference, which is correct if they are less than 2^31 apart. This
//! is not a total order, so `Seq` does not implement `Ord`.

/// TCP sequence number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Seq(pub u32);

impl Seq {
    pub(crate) const fn plus(self, bytes: u32) -> Self {
        Self(self.0.wrapping_add(bytes))
    }

    pub(crate) const fn minus(self, bytes: u32) -> Self {
        Self(self.0.wrapping_sub(bytes))
    }

    /// Returns the distance from `origin` to this number, which must not be before it.
    pub(crate) const fn since(self, origin: Self) -> u32 {
        self.0.wrapping_sub(origin.0)
    }

    /// Returns the signed distance from `other` to this number.
    pub(crate) const fn distance(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0).cast_signed()
    }

    pub(crate) const fn before(self, other: Self) -> bool {
        self.distance(other) < 0
    }

    pub(crate) const fn after(self, other: Self) -> bool {
        self.distance(other) > 0
    }

    pub(crate) const fn at_or_before(self, other: Self) -> bool {
        self.distance(other) <= 0
    }

    pub(crate) const fn at_or_after(self, other: Self) -> bool {
        self.distance(other) >= 0
    }

    pub(crate) const fn later(self, other: Self) -> Self {
        if self.after(other) { self } else { other }
    }

    pub(crate) const fn earlier(self, other: Self) -> Self {
        if self.before(other) { self } else { other }
    }
}

/// Half-open range `[start, end)` of sequence numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SeqRange {
    pub start: Seq,
    pub end: Seq,
}

impl SeqRange {
    pub(crate) const fn new(start: Seq, end: Seq) -> Self {
        Self { start, end }
    }

    pub(crate) const fn len(self) -> u32 {
        self.end.since(self.start)
    }

    /// Returns whether the ranges overlap or are adjacent.
    pub(crate) const fn touches(self, other: Self) -> bool {
        self.start.at_or_before(other.end) && other.start.at_or_before(self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparison_wraps() {
        let high = Seq(u32::MAX - 1);
        let low = high.plus(4);
        assert_eq!(low, Seq(2));
        assert!(low.after(high) && high.before(low) && high.at_or_before(high));
        assert_eq!(low.since(high), 4);
        assert_eq!(high.distance(low), -4);
        assert_eq!(high.later(low), low);
        assert_eq!(high.earlier(low), high);
    }

    #[test]
    fn ranges_touch_at_their_ends() {
        let range = |a, b| SeqRange::new(Seq(a), Seq(b));
        assert!(range(0, 10).touches(range(10, 20)));
        assert!(range(5, 15).touches(range(0, 6)));
        assert!(!range(0, 9).touches(range(10, 20)));
        assert_eq!(range(u32::MAX, 1).len(), 2);
    }
}
