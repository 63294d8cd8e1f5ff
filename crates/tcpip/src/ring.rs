//! A byte ring that takes memory only for what is in it.
//!
//! Both directions of a connection use one. The sender's holds what is not acknowledged yet; the receiver's holds what is
//! not read yet and, behind it, the islands that arrived early, each at its place, so that filling a gap moves nothing. An
//! empty ring holds no memory at all: a server with ten thousand idle connections pays for none of their buffers.

/// The smallest allocation, in bytes: a short message fits. Not more: memory that is cleared and that the message never
/// fills pushes the state of other connections out of the caches. Allocators keep pieces up to about a thousand bytes at
/// hand for each thread (the GNU C library's up to 1,032 bytes), so that taking and returning one is cheap.
const SMALLEST: usize = 128;

/// A growing ring of bytes. The limit is the owner's to keep: the ring grows to hold what it is given.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    memory: Box<[u8]>,
    head: usize,
    len: usize,
}

impl Ring {
    /// Bytes from the front that are in sequence.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of memory held.
    pub(crate) fn capacity(&self) -> usize {
        self.memory.len()
    }

    /// Appends `bytes`.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.write_at(self.len, bytes);
        self.len += bytes.len();
    }

    /// Writes `bytes` at `offset` from the front, growing the memory but not the length: what lies beyond the length is an
    /// island until [`Ring::extend`] takes it in.
    pub(crate) fn write_at(&mut self, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.reserve(offset + bytes.len());
        let start = (self.head + offset) & (self.memory.len() - 1);
        let first = bytes.len().min(self.memory.len() - start);
        self.memory[start..start + first].copy_from_slice(&bytes[..first]);
        self.memory[..bytes.len() - first].copy_from_slice(&bytes[first..]);
    }

    /// Takes the next `bytes`, which were written as an island, into the sequence.
    pub(crate) fn extend(&mut self, bytes: usize) {
        debug_assert!(self.len + bytes <= self.memory.len(), "an island that was never written");
        self.len += bytes;
    }

    /// The bytes `[offset, offset + len)` as at most two slices.
    pub(crate) fn slices(&self, offset: usize, len: usize) -> (&[u8], &[u8]) {
        debug_assert!(offset + len <= self.len, "a range that is not there");
        if len == 0 {
            return (&[], &[]);
        }
        let start = (self.head + offset) & (self.memory.len() - 1);
        let first = len.min(self.memory.len() - start);
        (&self.memory[start..start + first], &self.memory[..len - first])
    }

    /// Copies from the front into `to` without taking anything away; how much was copied.
    pub(crate) fn peek(&self, to: &mut [u8]) -> usize {
        let len = to.len().min(self.len);
        let (first, second) = self.slices(0, len);
        to[..first.len()].copy_from_slice(first);
        to[first.len()..len].copy_from_slice(second);
        len
    }

    /// Takes `bytes` away at the front. `keep` says that islands lie beyond the length, so the memory must stay.
    pub(crate) fn consume(&mut self, bytes: usize, keep: bool) {
        debug_assert!(bytes <= self.len, "more than there is");
        self.len -= bytes;
        if self.len == 0 && !keep {
            *self = Self::default();
        } else if !self.memory.is_empty() {
            self.head = (self.head + bytes) & (self.memory.len() - 1);
        }
    }

    #[expect(clippy::slow_vector_initialization, reason = "`calloc` passes the allocator's per-thread store by")]
    fn reserve(&mut self, needed: usize) {
        let old = self.memory.len();
        if needed <= old {
            return;
        }
        let size = needed.next_power_of_two().max(SMALLEST);
        let mut grown = Vec::with_capacity(size);
        grown.resize(size, 0);
        let mut grown = grown.into_boxed_slice();
        let first = old - self.head;
        grown[..first].copy_from_slice(&self.memory[self.head..]);
        grown[first..old].copy_from_slice(&self.memory[..self.head]);
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
    fn islands_survive_growth_and_consumption() {
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
