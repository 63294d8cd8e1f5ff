//! What happened, counted: the names are the kernel's SNMP and `nstat` names where it has one.
//!
//! Every frame that is dropped is counted under the reason, so that "packets vanish" is a question `Counters` answers.

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $field:ident = $name:literal,)+) => {
        /// Counters of one shard since it was made.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $field: u64,)+
        }

        impl Counters {
            /// Name and value of each counter, in the order of the declaration.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($name, self.$field),)+].into_iter()
            }

            /// Adds those of another shard.
            pub fn add(&mut self, other: &Self) {
                $(self.$field += other.$field;)+
            }
        }
    };
}

counters! {
    /// Frames that came in.
    frames_received = "FramesReceived",
    /// Frames that went out.
    frames_sent = "FramesSent",
    /// Frames shorter than an Ethernet header.
    frame_short = "FrameShort",
    /// Frames for another station.
    frame_other_host = "FrameOtherHost",
    /// Frames of a protocol that is neither IP nor ARP.
    frame_unknown_protocol = "FrameUnknownProtocol",
    /// Internet packets received, good or bad.
    ip_in_receives = "IpInReceives",
    /// Packets with a bad header: cut short, wrong version or length.
    ip_in_header_errors = "IpInHdrErrors",
    /// Packets whose IPv4 header checksum is wrong.
    ip_in_checksum_errors = "IpInCsumErrors",
    /// Packets for an address that is not ours.
    ip_in_address_errors = "IpInAddrErrors",
    /// Packets whose source can be nobody's: multicast, broadcast, loopback, our own.
    ip_in_martians = "IpInMartians",
    /// Packets of a transport protocol nobody here speaks.
    ip_in_unknown_protocols = "IpInUnknownProtos",
    /// Fragments, which are dropped: reassembly is not done.
    ip_reassembly_failures = "IpReasmFails",
    /// Packets sent.
    ip_out_requests = "IpOutRequests",
    /// Packets dropped because no route leads to their destination.
    ip_out_no_routes = "IpOutNoRoutes",
    /// ARP and neighbour discovery packets that are malformed or claim what cannot be.
    neighbor_in_errors = "NeighInErrors",
    /// Requests for the link address of a neighbour that were sent.
    neighbor_solicitations = "NeighSolicitations",
    /// Neighbours that did not answer.
    neighbor_failures = "NeighFailures",
    /// Packets dropped because too many waited for a neighbour's address.
    neighbor_queue_drops = "NeighUnresolvedDiscards",
    /// ICMP messages received.
    icmp_in_messages = "IcmpInMsgs",
    /// ICMP messages that are cut short or whose checksum is wrong.
    icmp_in_errors = "IcmpInErrors",
    /// ICMP errors that quote no flow of ours, or a sequence number that is not in flight.
    icmp_in_strays = "IcmpInStrays",
    /// Echo requests answered.
    icmp_in_echos = "IcmpInEchos",
    /// ICMP messages sent.
    icmp_out_messages = "IcmpOutMsgs",
    /// ICMP messages not sent because of the rate limit.
    icmp_out_rate_limited = "IcmpOutRateLimitHost",
    /// Datagrams delivered to a socket.
    udp_in_datagrams = "UdpInDatagrams",
    /// Datagrams for a port that nobody has.
    udp_no_ports = "UdpNoPorts",
    /// Datagrams with a wrong length.
    udp_in_errors = "UdpInErrors",
    /// Datagrams with a wrong checksum, or none over IPv6.
    udp_in_checksum_errors = "UdpInCsumErrors",
    /// Datagrams dropped because the socket's buffer was full.
    udp_receive_buffer_errors = "UdpRcvbufErrors",
    /// Datagrams sent.
    udp_out_datagrams = "UdpOutDatagrams",
    /// TCP segments received.
    tcp_in_segments = "TcpInSegs",
    /// TCP segments with a bad header length or garbled options.
    tcp_in_errors = "TcpInErrs",
    /// TCP segments with a wrong checksum.
    tcp_in_checksum_errors = "TcpInCsumErrors",
    /// TCP segments sent, without those that carry retransmitted bytes.
    tcp_out_segments = "TcpOutSegs",
    /// Segments sent with RST.
    tcp_out_resets = "TcpOutRsts",
    /// Segments retransmitted.
    tcp_retransmitted_segments = "TcpRetransSegs",
    /// Connections opened from here.
    tcp_active_opens = "TcpActiveOpens",
    /// Connections accepted from a peer's SYN.
    tcp_passive_opens = "TcpPassiveOpens",
    /// Connection attempts that failed.
    tcp_attempt_failures = "TcpAttemptFails",
    /// Established connections that were reset.
    tcp_established_resets = "TcpEstabResets",
    /// Connections that gave up after too many retransmissions.
    tcp_timeouts_aborted = "TcpExtTCPAbortOnTimeout",
    /// Connections reset because data came after the application had closed.
    tcp_aborted_on_data = "TcpExtTCPAbortOnData",
    /// Connections reset because too many were left behind by the application.
    tcp_aborted_on_memory = "TcpExtTCPAbortOnMemory",
    /// Expirations of the retransmission timer.
    tcp_timeouts = "TcpExtTCPTimeouts",
    /// Recoveries from loss that SACK showed.
    tcp_sack_recoveries = "TcpExtTCPSackRecovery",
    /// Recoveries from loss that three duplicate acknowledgements showed.
    tcp_reno_recoveries = "TcpExtTCPRenoRecovery",
    /// SACKed segments that the peer forgot again.
    tcp_sack_reneging = "TcpExtTCPSACKReneging",
    /// SACK blocks that were out of range.
    tcp_sack_discards = "TcpExtTCPSACKDiscard",
    /// Tail loss probes sent.
    tcp_loss_probes = "TcpExtTCPLossProbes",
    /// Tail losses that a probe repaired.
    tcp_loss_probe_recoveries = "TcpExtTCPLossProbeRecovery",
    /// Duplicates the peer reported (RFC 2883).
    tcp_dsack_received = "TcpExtTCPDSACKRecv",
    /// Duplicates reported to the peer.
    tcp_dsack_sent = "TcpExtTCPDSACKOldSent",
    /// Segments dropped by PAWS.
    tcp_paws_rejected = "TcpExtPAWSEstab",
    /// Challenge acknowledgements sent (RFC 5961).
    tcp_challenge_acks = "TcpExtTCPChallengeACK",
    /// Acknowledgements that the rate limit kept back.
    tcp_acks_skipped = "TcpExtTCPACKSkippedChallenge",
    /// SYNs and ACKs dropped because the accept queue was full.
    tcp_listen_overflows = "TcpExtListenOverflows",
    /// SYNs dropped for any reason.
    tcp_listen_drops = "TcpExtListenDrops",
    /// Cookies sent.
    tcp_syncookies_sent = "TcpExtSyncookiesSent",
    /// Good cookies that came back.
    tcp_syncookies_received = "TcpExtSyncookiesRecv",
    /// Bad cookies that came back.
    tcp_syncookies_failed = "TcpExtSyncookiesFailed",
    /// Delayed acknowledgements sent.
    tcp_delayed_acks = "TcpExtDelayedACKs",
    /// Segments that were queued out of order.
    tcp_out_of_order_queued = "TcpExtTCPOFOQueue",
    /// Segments dropped because too many islands were queued already.
    tcp_out_of_order_drops = "TcpExtTCPOFODrop",
    /// Segments merged into the one before them (GRO).
    tcp_coalesced = "TcpExtTCPRcvCoalesce",
    /// Keep-alive probes sent.
    tcp_keepalives = "TcpExtTCPKeepAlive",
    /// Zero-window probes sent.
    tcp_window_probes = "TcpExtTCPWinProbe",
    /// Connections that entered TIME-WAIT.
    tcp_time_waits = "TcpExtTW",
    /// TIME-WAIT entries that a new connection took over.
    tcp_time_wait_reused = "TcpExtTWRecycled",
    /// TIME-WAIT entries dropped early because there were too many.
    tcp_time_wait_overflows = "TcpExtTCPTimeWaitOverflow",
    /// Recoveries that were undone because nothing had been lost (RFC 3522, RFC 4015).
    tcp_undone = "TcpExtTCPFullUndo",
    /// Path MTU messages that lowered a connection's segment size.
    tcp_path_mtu_lowered = "TcpExtTCPMTUPLowered",
    /// Frames dropped because too many control frames waited already.
    control_queue_drops = "ControlQueueDrops",
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
