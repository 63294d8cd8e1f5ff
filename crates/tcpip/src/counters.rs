//! Counters of protocol events, with the kernel's SNMP and `nstat` names where it has one.
//!
//! Every dropped frame is counted under the reason, so that the counters show why a packet got lost.

use crate::ecn::Codepoint;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $field:ident = $name:literal,)+) => {
        /// Counters of one shard since its creation.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $field: u64,)+
        }

        impl Counters {
            /// Returns the name and value of each counter, in the order of their declaration.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($name, self.$field),)+].into_iter()
            }

            /// Adds the counters of another shard.
            pub fn add(&mut self, other: &Self) {
                $(self.$field += other.$field;)+
            }
        }
    };
}

counters! {
    /// Frames received.
    frames_received = "FramesReceived",
    /// Frames sent.
    frames_sent = "FramesSent",
    /// Frames shorter than an Ethernet header.
    frame_short = "FrameShort",
    /// Frames for the Ethernet address of another host.
    frame_other_host = "FrameOtherHost",
    /// Frames whose EtherType is none of IPv4, IPv6 and ARP.
    frame_unknown_protocol = "FrameUnknownProtocol",
    /// IP packets received, valid or not.
    ip_in_receives = "IpInReceives",
    /// IP packets with an invalid header: truncated, wrong version or wrong length.
    ip_in_header_errors = "IpInHdrErrors",
    /// IP packets whose IPv4 header checksum is wrong.
    ip_in_checksum_errors = "IpInCsumErrors",
    /// IP packets for an address that is not the host's.
    ip_in_address_errors = "IpInAddrErrors",
    /// IP packets whose source is invalid: multicast, broadcast, loopback or the host's own address.
    ip_in_martians = "IpInMartians",
    /// IP packets of an unsupported transport protocol.
    ip_in_unknown_protocols = "IpInUnknownProtos",
    /// Fragments that were dropped: not of UDP, malformed, overlapping, or too many.
    ip_reassembly_failures = "IpReasmFails",
    /// Datagrams reassembled.
    ip_reassembled = "IpReasmOKs",
    /// Fragments sent.
    ip_fragments_created = "IpFragCreates",
    /// IP packets received with the ECN codepoint Not-ECT.
    ip_in_not_ect = "IpExtInNoECTPkts",
    /// IP packets received with the ECN codepoint ECT(1).
    ip_in_ect1 = "IpExtInECT1Pkts",
    /// IP packets received with the ECN codepoint ECT(0).
    ip_in_ect0 = "IpExtInECT0Pkts",
    /// IP packets received with the ECN codepoint CE: a router on the path is congested.
    ip_in_ce = "IpExtInCEPkts",
    /// IP packets sent.
    ip_out_requests = "IpOutRequests",
    /// IP packets dropped because there is no route to their destination.
    ip_out_no_routes = "IpOutNoRoutes",
    /// ARP and neighbour discovery packets that are malformed or claim an invalid address.
    neighbor_in_errors = "NeighInErrors",
    /// ARP requests and neighbour solicitations sent.
    neighbor_solicitations = "NeighSolicitations",
    /// Neighbours that did not answer.
    neighbor_failures = "NeighFailures",
    /// Packets dropped because too many waited for a neighbour's address, or because it did not answer.
    neighbor_queue_drops = "NeighUnresolvedDiscards",
    /// ICMP messages received.
    icmp_in_messages = "IcmpInMsgs",
    /// ICMP messages that are truncated or have a wrong checksum.
    icmp_in_errors = "IcmpInErrors",
    /// ICMP errors that quote an unknown flow or a sequence number that is not in flight.
    icmp_in_strays = "IcmpInStrays",
    /// Echo requests answered.
    icmp_in_echos = "IcmpInEchos",
    /// ICMP messages sent.
    icmp_out_messages = "IcmpOutMsgs",
    /// ICMP messages not sent because of the rate limit.
    icmp_out_rate_limited = "IcmpOutRateLimitHost",
    /// UDP datagrams delivered to a socket.
    udp_in_datagrams = "UdpInDatagrams",
    /// UDP datagrams for a port without a socket.
    udp_no_ports = "UdpNoPorts",
    /// UDP datagrams with a wrong length.
    udp_in_errors = "UdpInErrors",
    /// UDP datagrams with a wrong checksum, or with none over IPv6.
    udp_in_checksum_errors = "UdpInCsumErrors",
    /// UDP datagrams dropped because the socket's receive buffer was full.
    udp_receive_buffer_errors = "UdpRcvbufErrors",
    /// UDP datagrams sent.
    udp_out_datagrams = "UdpOutDatagrams",
    /// TCP segments received.
    tcp_in_segments = "TcpInSegs",
    /// TCP segments with an invalid header length or malformed options.
    tcp_in_errors = "TcpInErrs",
    /// TCP segments with a wrong checksum.
    tcp_in_checksum_errors = "TcpInCsumErrors",
    /// TCP segments sent, except retransmissions.
    tcp_out_segments = "TcpOutSegs",
    /// TCP segments sent with RST.
    tcp_out_resets = "TcpOutRsts",
    /// Resets not sent because of the rate limit.
    tcp_resets_skipped = "TcpOutRstsSkipped",
    /// TCP segments retransmitted.
    tcp_retransmitted_segments = "TcpRetransSegs",
    /// Connections opened by the application.
    tcp_active_opens = "TcpActiveOpens",
    /// Connections accepted from a peer's SYN.
    tcp_passive_opens = "TcpPassiveOpens",
    /// Connection attempts that failed.
    tcp_attempt_failures = "TcpAttemptFails",
    /// Established connections that the peer reset.
    tcp_established_resets = "TcpEstabResets",
    /// Connections aborted after too many retransmissions or probes.
    tcp_timeouts_aborted = "TcpExtTCPAbortOnTimeout",
    /// Connections reset because data arrived after the application had closed them.
    tcp_aborted_on_data = "TcpExtTCPAbortOnData",
    /// Connections reset because there were too many orphans.
    tcp_aborted_on_memory = "TcpExtTCPAbortOnMemory",
    /// Expirations of the retransmission timer.
    tcp_timeouts = "TcpExtTCPTimeouts",
    /// Loss recoveries that SACK or RACK started.
    tcp_sack_recoveries = "TcpExtTCPSackRecovery",
    /// Loss recoveries that three duplicate acknowledgements started.
    tcp_reno_recoveries = "TcpExtTCPRenoRecovery",
    /// Times that the peer discarded data that it had SACKed.
    tcp_sack_reneging = "TcpExtTCPSACKReneging",
    /// SACK blocks outside the range that was sent.
    tcp_sack_discards = "TcpExtTCPSACKDiscard",
    /// Tail loss probes sent.
    tcp_loss_probes = "TcpExtTCPLossProbes",
    /// Tail losses that a loss probe repaired.
    tcp_loss_probe_recoveries = "TcpExtTCPLossProbeRecovery",
    /// Duplicates that the peer reported (RFC 2883).
    tcp_dsack_received = "TcpExtTCPDSACKRecv",
    /// Duplicates that were reported to the peer.
    tcp_dsack_sent = "TcpExtTCPDSACKOldSent",
    /// Segments rejected by PAWS (RFC 7323, section 5).
    tcp_paws_rejected = "TcpExtPAWSEstab",
    /// Challenge ACKs sent (RFC 5961).
    tcp_challenge_acks = "TcpExtTCPChallengeACK",
    /// Acknowledgements suppressed by a rate limit.
    tcp_acks_skipped = "TcpExtTCPACKSkippedChallenge",
    /// SYNs and ACKs dropped because the accept queue was full.
    tcp_listen_overflows = "TcpExtListenOverflows",
    /// SYNs dropped for any reason.
    tcp_listen_drops = "TcpExtListenDrops",
    /// SYN cookies sent.
    tcp_syncookies_sent = "TcpExtSyncookiesSent",
    /// Valid SYN cookies received.
    tcp_syncookies_received = "TcpExtSyncookiesRecv",
    /// Invalid SYN cookies received.
    tcp_syncookies_failed = "TcpExtSyncookiesFailed",
    /// Delayed acknowledgements whose timer expired.
    tcp_delayed_acks = "TcpExtDelayedACKs",
    /// Segments queued out of order.
    tcp_out_of_order_queued = "TcpExtTCPOFOQueue",
    /// Segments dropped because the out-of-order queue had too many ranges, or the window no room.
    tcp_out_of_order_drops = "TcpExtTCPOFODrop",
    /// Segments merged into the preceding one (GRO).
    tcp_coalesced = "TcpExtTCPRcvCoalesce",
    /// Keep-alive probes sent.
    tcp_keepalives = "TcpExtTCPKeepAlive",
    /// Zero-window probes sent.
    tcp_window_probes = "TcpExtTCPWinProbe",
    /// Connections that entered TIME-WAIT.
    tcp_time_waits = "TcpExtTW",
    /// TIME-WAIT entries that a new connection replaced.
    tcp_time_wait_reused = "TcpExtTWRecycled",
    /// TIME-WAIT entries removed early because there were too many.
    tcp_time_wait_overflows = "TcpExtTCPTimeWaitOverflow",
    /// Loss recoveries undone because nothing had been lost (RFC 3522, RFC 4015).
    tcp_undone = "TcpExtTCPFullUndo",
    /// Connections whose sides agreed on ECN (RFC 3168).
    tcp_ecn_connections = "TcpEcnConnections",
    /// SYNs retransmitted without the request for ECN, because the first one was not answered.
    tcp_ecn_fallbacks = "TcpEcnFallbacks",
    /// Reductions of the congestion window because the peer reported CE.
    tcp_ecn_reductions = "TcpEcnReductions",
    /// ICMP messages that lowered the path MTU of a connection.
    tcp_path_mtu_lowered = "TcpExtTCPMTUPLowered",
    /// Connections moved to another owner.
    tcp_moved = "AbeyTcpMoved",
    /// Connections that were not accepted in time, and that another listener has now.
    tcp_moved_unaccepted = "AbeyTcpMovedUnaccepted",
    /// SYNs that a listener was too busy to answer, passed to the kernel.
    tcp_passed_syns = "AbeyTcpPassedSyns",
    /// Segments of connections that were moved to another owner, dropped.
    tcp_moved_segments = "AbeyTcpMovedSegs",
    /// Frames dropped because the queue of control frames was full.
    control_queue_drops = "ControlQueueDrops",
}

impl Counters {
    /// Counts a received IP packet by its ECN field.
    pub(crate) const fn count_ecn(&mut self, ecn: Codepoint) {
        *match ecn {
            Codepoint::NotEct => &mut self.ip_in_not_ect,
            Codepoint::Ect1 => &mut self.ip_in_ect1,
            Codepoint::Ect0 => &mut self.ip_in_ect0,
            Codepoint::Ce => &mut self.ip_in_ce,
        } += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_values_add() {
        let mut counters = Counters { tcp_timeouts: 2, ..Counters::default() };
        counters.add(&Counters { tcp_timeouts: 3, frames_sent: 1, ..Counters::default() });
        let values: std::collections::BTreeMap<_, _> = counters.iter().collect();
        assert_eq!(values.len(), counters.iter().count());
        assert_eq!((values["TcpExtTCPTimeouts"], values["FramesSent"]), (5, 1));
    }
}
