//! Explicit congestion notification of a connection (RFC 3168, RFC 8311).
//!
//! *Negotiation.* A SYN with ECE and CWR asks for ECN, and a SYN-ACK with ECE alone agrees. A SYN whose ECN field is
//! not zero gives no agreement: something on the path mangles the field. Some firewalls drop a SYN that asks, so a
//! retransmitted SYN does not ask (RFC 3168, 6.1.1.1).
//!
//! *Receiver.* After a segment with CE every acknowledgement carries ECE, until a segment with CWR arrives.
//!
//! *Sender.* New data is sent with ECT(0). Retransmissions, window probes and segments without data are not, because
//! their loss or mark would go unnoticed. An acknowledgement with ECE reduces the congestion window like a loss, but
//! once per window of data: the next reduction needs the acknowledgement of something that was sent after this one.
//! The first new data after a reduction, whatever its cause, carries CWR.

use super::{
    segment::{Flags, Header},
    seq::Seq,
};
use crate::{config::EcnMode, ecn::Codepoint};

/// Flags of a SYN that asks for ECN.
const ASK: Flags = Flags::ECE.with(Flags::CWR);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Negotiation {
    Off,
    /// This host's SYN asks for ECN.
    Offered,
    Agreed,
}

/// ECN state of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ecn {
    negotiation: Negotiation,
    /// CE was received, and no CWR since.
    echo: bool,
    /// The next new data carries CWR.
    cwr_due: bool,
    /// SND.NXT at the last reduction of the congestion window, until something later is acknowledged.
    reduced_at: Option<Seq>,
}

impl Ecn {
    const fn new(negotiation: Negotiation) -> Self {
        Self { negotiation, echo: false, cwr_due: false, reduced_at: None }
    }

    /// Returns the state of a connection that this host opens.
    pub(crate) fn active(mode: EcnMode) -> Self {
        Self::new(if mode == EcnMode::Active { Negotiation::Offered } else { Negotiation::Off })
    }

    /// Returns the state of a connection that the peer's `syn` opens.
    pub(crate) fn passive(mode: EcnMode, syn: &Header) -> Self {
        Self::new(if mode != EcnMode::Off && asks(syn) { Negotiation::Agreed } else { Negotiation::Off })
    }

    pub(crate) const fn is_agreed(&self) -> bool {
        matches!(self.negotiation, Negotiation::Agreed)
    }

    /// Handles the SYN-ACK, or a SYN that crossed this host's.
    pub(crate) fn receive_answer(&mut self, header: &Header) {
        let agrees = if header.has(Flags::ACK) {
            // A peer that copies both flags does not know them (RFC 3168, 6.1.1).
            header.has(Flags::ECE) && !header.has(Flags::CWR)
        } else {
            asks(header)
        };
        let agreed = self.negotiation == Negotiation::Offered && agrees;
        self.negotiation = if agreed { Negotiation::Agreed } else { Negotiation::Off };
    }

    /// Handles a repeated SYN of a half-open connection: the peer may have ceased to ask.
    pub(crate) fn receive_syn_again(&mut self, syn: &Header) {
        if !asks(syn) {
            self.negotiation = Negotiation::Off;
        }
    }

    /// Ceases to ask, because the SYN is retransmitted. Returns whether it asked before.
    pub(crate) fn fall_back(&mut self) -> bool {
        let asked = self.negotiation == Negotiation::Offered;
        if asked {
            self.negotiation = Negotiation::Off;
        }
        asked
    }

    /// Returns the ECN flags of the SYN, or of the SYN-ACK if `answers` is set.
    pub(crate) fn syn_flags(&self, answers: bool) -> Flags {
        let answer = Flags::ECE.when(self.is_agreed());
        if answers { answer } else { ASK.when(self.negotiation == Negotiation::Offered) }
    }

    /// Returns the flag that acknowledgements carry.
    pub(crate) fn echo_flag(&self) -> Flags {
        Flags::ECE.when(self.echo)
    }

    /// Marks the header of new data.
    pub(crate) fn mark_new_data(&mut self, header: &mut Header) {
        if self.is_agreed() {
            header.ecn = Codepoint::Ect0;
            header.flags = header.flags.with(Flags::CWR.when(self.cwr_due));
            self.cwr_due = false;
        }
    }

    /// Handles an acceptable segment with data or FIN. Returns whether it must be acknowledged at once: the peer
    /// waits for the first ECE, and after its CWR it may have a window of one segment.
    pub(crate) fn receive_data(&mut self, header: &Header) -> bool {
        if !self.is_agreed() {
            return false;
        }
        let echoed = self.echo;
        let marked = header.ecn == Codepoint::Ce;
        let reduced = header.has(Flags::CWR);
        self.echo = marked || echoed && !reduced;
        reduced || marked && !echoed
    }

    /// Returns whether `header`, which acknowledges everything up to `una`, demands a reduction of the congestion
    /// window.
    pub(crate) fn receive_ack(&mut self, header: &Header, una: Seq) -> bool {
        if self.reduced_at.is_some_and(|point| una.after(point)) {
            self.reduced_at = None;
        }
        self.has_echo(header) && self.reduced_at.is_none()
    }

    /// Returns whether `header` reports congestion. The congestion window does not grow by such an acknowledgement.
    pub(crate) fn has_echo(&self, header: &Header) -> bool {
        self.is_agreed() && header.has(Flags::ECE)
    }

    /// Returns whether the congestion window was reduced for the window of data that begins at `una`.
    pub(crate) fn is_reduced(&self, una: Seq) -> bool {
        self.reduced_at.is_some_and(|point| una.before(point))
    }

    /// Records a reduction of the congestion window.
    pub(crate) fn reduced(&mut self, nxt: Seq) {
        if self.is_agreed() {
            self.reduced_at = Some(nxt);
            self.cwr_due = true;
        }
    }
}

/// Returns whether `syn` asks for ECN.
fn asks(syn: &Header) -> bool {
    syn.has(ASK) && syn.ecn == Codepoint::NotEct
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(flags: Flags, ecn: Codepoint) -> Header {
        Header { flags, ecn, ..Header::default() }
    }

    fn agreed() -> Ecn {
        Ecn::passive(EcnMode::Passive, &header(Flags::SYN.with(ASK), Codepoint::NotEct))
    }

    #[test]
    fn both_sides_must_agree() {
        let syn = header(Flags::SYN.with(ASK), Codepoint::NotEct);
        assert!(Ecn::passive(EcnMode::Passive, &syn).is_agreed());
        assert!(!Ecn::passive(EcnMode::Off, &syn).is_agreed());
        assert!(!Ecn::passive(EcnMode::Active, &header(Flags::SYN.with(ASK), Codepoint::Ect0)).is_agreed(), "mangled");
        for (mode, answer, expected) in [
            (EcnMode::Active, Flags::ECE, true),
            (EcnMode::Active, ASK, false),
            (EcnMode::Active, Flags::default(), false),
            (EcnMode::Passive, Flags::ECE, false),
        ] {
            let mut ecn = Ecn::active(mode);
            ecn.receive_answer(&header(Flags::SYN.with(Flags::ACK).with(answer), Codepoint::NotEct));
            assert_eq!(ecn.is_agreed(), expected, "{mode:?} {answer:?}");
        }
    }

    #[test]
    fn congestion_is_echoed_until_the_peer_has_reduced() {
        let mut ecn = agreed();
        assert!(!ecn.receive_data(&header(Flags::ACK, Codepoint::Ect0)));
        assert!(ecn.receive_data(&header(Flags::ACK, Codepoint::Ce)), "at once");
        assert!(!ecn.receive_data(&header(Flags::ACK, Codepoint::Ce)));
        assert!(ecn.receive_data(&header(Flags::ACK.with(Flags::CWR), Codepoint::Ce)));
        assert_eq!(ecn.echo_flag(), Flags::ECE, "the segment with CWR was marked itself");
        assert!(ecn.receive_data(&header(Flags::ACK.with(Flags::CWR), Codepoint::Ect0)));
        assert_eq!(ecn.echo_flag(), Flags::default());
    }

    #[test]
    fn a_window_of_data_is_reduced_once() {
        let mut ecn = agreed();
        let echo = header(Flags::ACK.with(Flags::ECE), Codepoint::NotEct);
        assert!(ecn.receive_ack(&echo, Seq(10)));
        ecn.reduced(Seq(100));
        assert!(ecn.is_reduced(Seq(99)) && !ecn.is_reduced(Seq(100)));
        assert!(!ecn.receive_ack(&echo, Seq(100)), "CWR is sent with the byte at 100");
        let mut data = header(Flags::ACK, Codepoint::NotEct);
        ecn.mark_new_data(&mut data);
        assert!(data.has(Flags::CWR) && data.ecn == Codepoint::Ect0);
        assert!(ecn.receive_ack(&echo, Seq(101)));
    }
}
