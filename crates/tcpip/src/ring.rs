//! Byte ring that allocates memory only for its contents.
//!
//! Both directions of a connection use one. The sender's ring holds the bytes that are not acknowledged. The
//! receiver's holds the bytes that are not read and, beyond them, out-of-order ranges at their final offsets, so that
//! filling a gap moves nothing. An empty ring holds no memory: ten thousand idle connections need no buffers.

/// Smallest allocation in bytes; a short message fits. Allocators cache blocks of up to about a thousand bytes
/// per thread (the GNU C library up to 1,032 bytes), so that allocating and freeing one is cheap.
const SMALLEST: usize = 128;

/// Growing ring of bytes. The owner enforces the limit: the ring grows to hold whatever it is given.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    /// Bytes that were written at least once. The ring uses the largest power of two of the allocated bytes, and does
    /// not clear those that were never written.
    memory: Vec<u8>,
    head: usize,
    len: usize,
}

impl Ring {
    /// Returns the number of contiguous bytes from the front.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the allocated memory in bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.memory.capacity()
    }

    /// Returns the number of bytes after which positions wrap: zero or a power of two.
    fn size(&self) -> usize {
        self.capacity().checked_ilog2().map_or(0, |bits| 1 << bits)
    }

    /// Returns the position in memory of the byte at `offset`. The ring must have memory.
    fn position(&self, offset: usize) -> usize {
        (self.head + offset) & (self.size() - 1)
    }

    /// Appends `bytes`.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.write_at(self.len, bytes);
        self.len += bytes.len();
    }

    /// Writes `bytes` at `offset` from the front. The memory grows, the length does not: bytes beyond the length are
    /// an out-of-order range until [`Ring::extend`] includes them.
    pub(crate) fn write_at(&mut self, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.reserve(offset + bytes.len());
        let start = self.position(offset);
        let (first, second) = bytes.split_at(bytes.len().min(self.size() - start));
        self.put(start, first);
        if !second.is_empty() {
            self.put(0, second);
        }
    }

    /// Writes `bytes` at a position in memory. They must not wrap.
    fn put(&mut self, position: usize, bytes: &[u8]) {
        if position >= self.memory.len() {
            self.memory.resize(position, 0);
            self.memory.extend_from_slice(bytes);
        } else {
            let (old, new) = bytes.split_at(bytes.len().min(self.memory.len() - position));
            self.memory[position..position + old.len()].copy_from_slice(old);
            self.memory.extend_from_slice(new);
        }
    }

    /// Extends the length by `bytes`, which [`Ring::write_at`] has written.
    pub(crate) fn extend(&mut self, bytes: usize) {
        debug_assert!(self.len + bytes <= self.size(), "bytes that were never written");
        self.len += bytes;
    }

    /// Returns the bytes `[offset, offset + len)` as at most two slices.
    pub(crate) fn slices(&self, offset: usize, len: usize) -> (&[u8], &[u8]) {
        debug_assert!(offset + len <= self.len, "the range is beyond the length");
        if len == 0 {
            return (&[], &[]);
        }
        let start = self.position(offset);
        let first = len.min(self.size() - start);
        (&self.memory[start..start + first], &self.memory[..len - first])
    }

    /// Returns a copy of the bytes `[offset, offset + len)`, which may lie beyond the length if [`Ring::write_at`] has
    /// written them.
    pub(crate) fn copy(&self, offset: usize, len: usize) -> Vec<u8> {
        if len == 0 {
            return Vec::new();
        }
        let start = self.position(offset);
        let first = len.min(self.size() - start);
        [&self.memory[start..start + first], &self.memory[..len - first]].concat()
    }

    /// Copies bytes from the front into `to` without consuming them. Returns the number of copied bytes.
    pub(crate) fn peek(&self, to: &mut [u8]) -> usize {
        let len = to.len().min(self.len);
        let (first, second) = self.slices(0, len);
        to[..first.len()].copy_from_slice(first);
        to[first.len()..len].copy_from_slice(second);
        len
    }

    /// Consumes `bytes` from the front. `keep` means that there are bytes beyond the length, so an empty ring is not
    /// freed.
    pub(crate) fn consume(&mut self, bytes: usize, keep: bool) {
        debug_assert!(bytes <= self.len, "more bytes than the ring has");
        self.len -= bytes;
        if self.len == 0 && !keep {
            *self = Self::default();
        } else if !self.memory.is_empty() {
            self.head = self.position(bytes);
        }
    }

    /// Allocates memory for `needed` bytes from the front.
    pub(crate) fn reserve(&mut self, needed: usize) {
        if needed > self.size() {
            self.grow(needed.next_power_of_two().max(SMALLEST));
        }
    }

    fn grow(&mut self, size: usize) {
        let mut grown = Vec::with_capacity(size);
        if !self.memory.is_empty() {
            grown.extend_from_slice(&self.memory[self.head..]);
        }
        if self.head > 0 {
            // An out-of-order range may have wrapped although the end of the memory was not reached.
            grown.resize(self.size() - self.head, 0);
            grown.extend_from_slice(&self.memory[..self.head]);
        }
        self.memory = grown;
        self.head = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(ring: &Ring) -> Vec<u8> {
        let mut bytes = vec![0; ring.len()];
        ring.peek(&mut bytes);
        bytes
    }

    #[test]
    fn an_empty_ring_holds_no_memory() {
        let mut ring = Ring::default();
        assert_eq!(ring.capacity(), 0);
        ring.push(b"hello");
        assert_eq!(ring.capacity(), SMALLEST);
        ring.consume(5, false);
        assert_eq!(ring.capacity(), 0);
    }

    #[test]
    fn wraps_and_grows_in_order() {
        let mut ring = Ring::default();
        let mut expected = Vec::new();
        for round in 0..50_u8 {
            let bytes = vec![round; 300];
            ring.push(&bytes);
            expected.extend_from_slice(&bytes);
            if round % 3 == 0 {
                ring.consume(200, false);
                expected.drain(..200);
            }
        }
        assert_eq!(contents(&ring), expected);
        let (first, second) = ring.slices(1000, 500);
        assert_eq!([first, second].concat(), expected[1000..1500]);
    }

    #[test]
    fn out_of_order_bytes_that_wrapped_over_a_gap_survive_growth() {
        let mut ring = Ring::default();
        ring.push(&[1; 50]);
        ring.consume(50, true);
        // The bytes from position 50 to 128 were never written.
        ring.write_at(100, b"wrapped");
        ring.write_at(1000, b"grown");
        ring.write_at(0, &[2; 100]);
        ring.extend(107);
        assert_eq!(contents(&ring), [&[2; 100][..], b"wrapped"].concat());
    }

    #[test]
    fn out_of_order_bytes_survive_growth_and_consumption() {
        let mut ring = Ring::default();
        ring.push(b"abc");
        ring.write_at(5, b"fgh");
        ring.consume(3, true);
        ring.write_at(5000, b"far");
        ring.write_at(0, b"de");
        ring.extend(2);
        ring.extend(3);
        assert_eq!(contents(&ring), b"defgh");
    }
}
