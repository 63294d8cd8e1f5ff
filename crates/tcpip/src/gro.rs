//! Generic receive offload: merges consecutive segments of one burst.
//!
//! A burst is the frames of one call. Segments of a flow are merged if they are consecutive, carry data and differ
//! only in sequence number, PSH and payload. In particular, their ECN fields are equal. The connection is then looked up once and decides once whether to
//! acknowledge. Payloads are not copied; a run holds references to them. Segments of one flow stay in order: a
//! segment that cannot be merged closes the run before it. A few runs are open at a time, since a burst usually has
//! few flows.

use std::collections::VecDeque;

use crate::{
    flow::Flow,
    tcp::segment::{Flags, Header},
};

/// Maximum number of open runs.
const MAX_RUNS: usize = 16;
/// Segments for which a run allocates memory at once. Allocators cache blocks of this size.
const RUN_CAPACITY: usize = 32;
/// Maximum payload of a run, in bytes.
const MAX_RUN_LEN: usize = 65_535;

/// Payload of one segment or of a merged run.
#[derive(Clone, Debug)]
pub(crate) struct Payload<'a> {
    first: &'a [u8],
    more: Vec<&'a [u8]>,
    len: usize,
}

impl<'a> Payload<'a> {
    pub(crate) const fn single(bytes: &'a [u8]) -> Self {
        Self { first: bytes, more: Vec::new(), len: bytes.len() }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of merged segments.
    pub(crate) fn segments(&self) -> u64 {
        1 + self.more.len() as u64
    }

    /// Calls `each` with the slices that make up `len` bytes from offset `skip` on.
    pub(crate) fn pieces_from(&self, mut skip: usize, mut len: usize, mut each: impl FnMut(&[u8])) {
        for piece in core::iter::once(self.first).chain(self.more.iter().copied()) {
            if skip >= piece.len() {
                skip -= piece.len();
                continue;
            }
            let piece = &piece[skip..piece.len().min(skip + len)];
            skip = 0;
            len -= piece.len();
            each(piece);
            if len == 0 {
                return;
            }
        }
    }
}

/// One segment, or several merged ones.
#[derive(Clone, Debug)]
pub(crate) struct Run<'a> {
    pub flow: Flow,
    pub header: Header,
    pub payload: Payload<'a>,
}

impl<'a> Run<'a> {
    /// Returns whether `next` can be merged into this run.
    fn can_merge(&self, next: &Self) -> bool {
        let (mine, other) = (&self.header, &next.header);
        let flags = other.flags.without(Flags::PSH);
        mine.flags.without(Flags::PSH) == flags
            && flags.without(Flags::ECE) == Flags::ACK
            && other.ecn == mine.ecn
            && next.payload.len > 0
            && other.seq == mine.seq.plus(self.payload.len as u32)
            && other.ack == mine.ack
            && other.window == mine.window
            && other.options == mine.options
            && self.payload.len + next.payload.len <= MAX_RUN_LEN
    }

    fn merge(&mut self, next: &Self) {
        self.header.flags = self.header.flags.with(next.header.flags);
        if self.payload.more.is_empty() {
            self.payload.more.reserve(RUN_CAPACITY);
        }
        self.payload.more.push(next.payload.first);
        self.payload.len += next.payload.len;
    }
}

/// Open runs of a burst.
#[derive(Debug, Default)]
pub(crate) struct Gro<'a> {
    /// The oldest run. Apart from the others, because most bursts have one and then need no memory from the heap.
    oldest: Option<Run<'a>>,
    /// The other runs, the oldest first.
    others: VecDeque<Run<'a>>,
}

impl<'a> Gro<'a> {
    /// Returns the flow of the most recently opened run, unless it is the first.
    pub(crate) fn newest(&self) -> Option<&Flow> {
        self.others.back().map(|run| &run.flow)
    }

    /// Returns the number of open runs beside the oldest.
    pub(crate) fn others(&self) -> usize {
        self.others.len()
    }

    /// Adds a segment. Returns a run that must be delivered before it, if any.
    pub(crate) fn push(&mut self, segment: Run<'a>) -> Option<Run<'a>> {
        let Some(oldest) = &mut self.oldest else {
            self.oldest = Some(segment);
            return None;
        };
        let same = |run: &&mut Run<'_>| run.flow == segment.flow;
        let open = Some(oldest).filter(same).or_else(|| self.others.iter_mut().find(same));
        if let Some(run) = open {
            if run.can_merge(&segment) {
                run.merge(&segment);
                return None;
            }
            return Some(core::mem::replace(run, segment));
        }
        let mut closed = None;
        if self.others.len() + 1 == MAX_RUNS {
            closed = core::mem::replace(&mut self.oldest, self.others.pop_front());
        }
        self.others.push_back(segment);
        closed
    }

    /// Returns the open runs, the oldest first.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &Run<'a>> {
        self.oldest.iter().chain(&self.others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ecn::Codepoint, tcp::seq::Seq};

    fn segment(port: u16, seq: u32, flags: Flags, bytes: &[u8]) -> Run<'_> {
        let flow = Flow {
            local: "10.0.0.1".parse().unwrap(),
            remote: "10.0.0.2".parse().unwrap(),
            local_port: 80,
            remote_port: port,
        };
        let header = Header { seq: Seq(seq), flags, ..Header::default() };
        Run { flow, header, payload: Payload::single(bytes) }
    }

    fn marked(mut run: Run<'_>) -> Run<'_> {
        run.header.ecn = Codepoint::Ce;
        run
    }

    fn bytes(run: &Run<'_>, skip: usize, len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        run.payload.pieces_from(skip, len, |piece| bytes.extend_from_slice(piece));
        bytes
    }

    #[test]
    fn consecutive_segments_are_merged_per_flow() {
        let mut gro = Gro::default();
        assert!(gro.push(segment(1, 0, Flags::ACK, b"abc")).is_none());
        assert!(gro.push(segment(2, 0, Flags::ACK, b"other")).is_none());
        assert!(gro.push(segment(1, 3, Flags::ACK.with(Flags::PSH), b"de")).is_none());
        let runs: Vec<_> = gro.runs().collect();
        assert_eq!(runs.len(), 2);
        assert_eq!((bytes(runs[0], 0, 5), runs[0].payload.segments()), (b"abcde".to_vec(), 2));
        assert_eq!(bytes(runs[0], 2, 2), b"cd");
        assert_eq!(bytes(runs[0], 4, 1), b"e");
        assert!(runs[0].header.flags.contains(Flags::PSH));
    }

    #[test]
    fn a_segment_that_cannot_be_merged_closes_the_run() {
        for next in [
            segment(1, 9, Flags::ACK, b"gap"),
            segment(1, 3, Flags::ACK.with(Flags::FIN), b"fin"),
            segment(1, 3, Flags::ACK, b""),
            segment(1, 3, Flags::ACK.with(Flags::ECE), b"echo"),
            segment(1, 3, Flags::ACK.with(Flags::CWR), b"reduced"),
            marked(segment(1, 3, Flags::ACK, b"marked")),
        ] {
            let mut gro = Gro::default();
            gro.push(segment(1, 0, Flags::ACK, b"abc"));
            assert_eq!(gro.push(next).map(|run| run.header.seq), Some(Seq(0)));
            assert_eq!(gro.runs().count(), 1);
        }
    }

    #[test]
    fn open_runs_are_bounded() {
        let mut gro = Gro::default();
        let sent_on = (0..20).filter_map(|port| gro.push(segment(port, 0, Flags::ACK, b"x"))).count();
        let rest = gro.runs().map(|run| run.flow.remote_port).collect::<Vec<_>>();
        assert_eq!((sent_on, rest), (20 - MAX_RUNS, (4..20).collect()));
    }
}
