//! What a shard's lock guards: the queue pair, the delivery state, the protocol state; and a poll.
//!
//! Nothing here waits or makes a system call but through the NIC. What the rest of the world must be told (the service
//! thread woken, a line armed) is noted, and done by [`super::Shard`] when the lock is let go.

use std::net::IpAddr;
use std::sync::Arc;

use abey_delivery::{Nanos, NapiIndex, NapiThread, PollContext, Softirq};
use abey_nic::{Frame, LinkState, QueuePair};
use abey_tcpip::{SocketId, Stack};
use slotmap::SecondaryMap;

use super::burst::Burst;
use super::latency::Latencies;
use super::transmit::Transmit;
use super::watch::Watches;
use crate::clock::{Clock, ReadOnce, stack_time};
use crate::counters::Counters;
use crate::cover::Cover;
use crate::kernel::Kernel;
use abey_record::Recorded;

/// Frames of a receive burst: what one call to the NIC may bring.
const BURST: usize = 64;

/// Who holds the lock, for the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum By {
    #[default]
    Application,
    Service,
    Worker,
}

/// Which counter a poll belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PollBy {
    Softirq,
    SoftirqThread,
    Thread,
    Worker,
    Busy,
}

/// A frame for another shard, or for all others.
#[derive(Clone, Debug)]
pub(super) struct Mail {
    pub(super) to: Option<NapiIndex>,
    pub(super) frame: Vec<u8>,
}

/// What is to be done when the lock is let go.
#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) wake_service: bool,
    pub(super) hand_to_pool: bool,
    pub(super) softirq: bool,
    /// Frames that the other shards must see.
    pub(super) mail: Vec<Mail>,
}

pub(crate) struct Core {
    pub(super) index: NapiIndex,
    clock: ReadOnce,
    pub(super) nic: Box<dyn QueuePair>,
    pub(super) napi: Recorded,
    pub(crate) stack: Stack,
    /// The shard stands for a CPU whose softirq has this one instance.
    pub(super) softirq: Softirq,
    /// The softirq's rest is the service thread's.
    pub(super) handed_over: bool,
    pub(super) thread: NapiThread,
    pub(crate) cover: Cover,
    pub(super) counters: Counters,
    pub(super) notes: Notes,
    pub(super) by: By,
    /// The driver sleeps past the deferral's deadline, until a frame arrives.
    pub(super) oversleeps: bool,
    receive: Vec<Frame>,
    pub(super) transmit: Transmit,
    /// Frames in the ring that the device was not told of.
    pub(super) burst: Burst,
    /// The NIC was asked to tell when the ring has room.
    pub(super) asked_for_room: bool,
    pub(super) has_siblings: bool,
    /// Where the device is shared with the kernel.
    pub(super) kernel: Option<Arc<Kernel>>,
    pub(super) watches: SecondaryMap<SocketId, Watches>,
    /// Sockets with [`Watches::wants_room`].
    pub(super) room: Vec<SocketId>,
    /// While somebody asks.
    pub(super) latency: Option<Box<Latencies>>,
    /// The NIC was used, which may have cost system calls.
    pub(super) nic_used: bool,
    /// What the NIC had counted when its system calls were last looked at.
    nic_calls: u64,
    link_was_up: bool,
    /// The device has failed; nothing works any more, and this is why.
    pub(crate) failed: Option<Arc<str>>,
    /// The runtime is gone.
    pub(crate) over: bool,
}

impl Core {
    pub(super) fn new(
        index: NapiIndex,
        clock: Clock,
        nic: Box<dyn QueuePair>,
        napi: Recorded,
        stack: Stack,
        softirq: Softirq,
        has_siblings: bool,
    ) -> Self {
        let link_was_up = nic.link() == LinkState::Up;
        let mtu = nic.capabilities().mtu.max(stack.config().settings().mtu);
        Self {
            index,
            clock: ReadOnce::new(clock, None),
            nic,
            napi,
            stack,
            softirq,
            handed_over: false,
            thread: NapiThread::default(),
            cover: Cover::default(),
            counters: Counters::default(),
            notes: Notes::default(),
            by: By::default(),
            oversleeps: false,
            receive: Frame::burst(BURST, mtu),
            transmit: Transmit::new(mtu),
            burst: Burst::default(),
            asked_for_room: false,
            has_siblings,
            kernel: None,
            watches: SecondaryMap::new(),
            room: Vec::new(),
            latency: None,
            nic_used: false,
            nic_calls: 0,
            link_was_up,
            failed: None,
            over: false,
        }
    }

    /// What time it is: read once for what one holder of the lock does between two polls.
    pub(crate) fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Time has passed: a poll took packets, or the lock was free.
    pub(super) fn time_passes(&mut self) {
        self.clock.forget();
    }

    /// The stack's time.
    pub(crate) fn stack_now(&self) -> abey_tcpip::Instant {
        stack_time(self.now())
    }

    pub(super) fn calls(&mut self, count: u64) {
        match self.by {
            By::Application => self.counters.application_calls += count,
            By::Service => self.counters.service_calls += count,
            By::Worker => self.counters.worker_calls += count,
        }
    }

    /// Bills the NIC's system calls since the last look to who holds the lock.
    pub(super) fn bill_nic(&mut self) {
        if !std::mem::take(&mut self.nic_used) {
            return;
        }
        let calls = self.nic.system_calls();
        let new = calls - std::mem::replace(&mut self.nic_calls, calls);
        self.calls(new);
    }

    /// Takes up to `budget` packets from the queue to their sockets, and sends what comes of it.
    pub(super) fn poll(&mut self, budget: u16, by: PollBy) -> u16 {
        let now = self.now();
        self.nic_used = true;
        self.nic.set_time(now.into());
        let mut work = 0;
        while work < budget && self.failed.is_none() {
            let burst = usize::from(budget - work).min(BURST);
            match self.nic.receive(&mut self.receive[..burst]) {
                Ok(count) => {
                    let frames = &self.receive[..count];
                    if self.has_siblings {
                        let shared = frames.iter().filter(|frame| concerns_all_shards(frame));
                        self.notes.mail.extend(shared.map(|frame| Mail { to: None, frame: frame.to_vec() }));
                    }
                    let handover = self.kernel.as_ref().and_then(|kernel| kernel.handover.as_ref());
                    if let Some(handover) = handover {
                        let (index, mail) = (self.index, &mut self.notes.mail);
                        let ours = frames.iter().filter(|frame| {
                            let to = handover.elsewhere(frame, index);
                            mail.extend(to.map(|_| Mail { to, frame: frame.to_vec() }));
                            to.is_none()
                        });
                        self.stack.handle_frames(stack_time(now), ours.map(|frame| &**frame));
                    } else if count > 0 {
                        self.stack.handle_frames(stack_time(now), frames.iter().map(|frame| &**frame));
                    }
                    work += count as u16;
                    if count < burst {
                        break;
                    }
                }
                Err(error) => self.fail(&error),
            }
        }
        self.note_polled(now, work, budget);
        self.count_poll(work, by);
        self.handle_stack_timeout(now);
        self.flush();
        if work > 0 {
            self.time_passes();
        }
        work
    }

    fn count_poll(&mut self, work: u16, by: PollBy) {
        let counters = &mut self.counters;
        match by {
            PollBy::Softirq => counters.softirq_polls += 1,
            PollBy::SoftirqThread => counters.softirq_thread_polls += 1,
            PollBy::Thread => counters.thread_polls += 1,
            PollBy::Worker => counters.worker_polls += 1,
            PollBy::Busy => {
                counters.busy_polls += 1;
                counters.busy_poll_packets += u64::from(work);
            }
        }
        counters.empty_polls += u64::from(work == 0);
        counters.packets += u64::from(work);
    }

    pub(super) fn handle_stack_timeout(&mut self, now: Nanos) {
        if self.stack.poll_timeout().is_some_and(|at| at <= stack_time(now)) {
            self.stack.handle_timeout(stack_time(now));
        }
    }

    /// Sends what the stack has to send.
    pub(super) fn flush(&mut self) {
        if self.failed.is_some() {
            return;
        }
        let now = self.now();
        let mut sent = 0;
        if self.transmit.is_held_up() || self.stack.wants_to_transmit() {
            self.nic_used = true;
            match self.transmit.flush(now, &mut self.stack, &mut *self.nic) {
                Ok(count) => sent = count,
                Err(error) => return self.fail(&error),
            }
            self.counters.transmitted += sent;
            self.asked_for_room &= sent == 0;
        }
        if self.by != By::Application || self.transmit.is_held_up() {
            self.burst.end();
        }
        if self.burst.is_due(sent, now) {
            self.nic_used = true;
            if let Err(error) = self.nic.kick() {
                self.fail(&error);
            }
        }
    }

    /// The program was told of sockets, and will deal with one after the other.
    pub(crate) fn begin_burst(&mut self, sockets: usize) {
        self.burst.begin(sockets);
    }

    /// The program does something with a socket.
    pub(crate) fn touch(&mut self, socket: SocketId) {
        self.burst.touch(socket);
    }

    fn fail(&mut self, error: &dyn std::error::Error) {
        self.counters.device_errors += 1;
        self.failed = Some(error.to_string().into());
        self.transmit.clear();
        self.wake_everybody();
    }

    /// Whom the stack wants to know that the kernel must ask for; nobody where the stack asks itself.
    pub(super) fn wanted_neighbors(&mut self) -> Vec<IpAddr> {
        if self.kernel.is_none() {
            return Vec::new();
        }
        std::iter::from_fn(|| self.stack.poll_neighbor_request()).collect()
    }

    pub(crate) fn nic_counters(&self) -> abey_nic::Counters {
        self.nic.counters()
    }

    pub(crate) fn nic_link(&self) -> LinkState {
        self.nic.link()
    }

    /// Whether somebody was at the other end of the wire and is there no more. May cost a system call.
    pub(crate) fn link_is_lost(&mut self) -> bool {
        let is_up = self.nic.link() == LinkState::Up;
        self.link_was_up |= is_up || self.nic.counters().received > 0;
        self.link_was_up && !is_up
    }

    pub(crate) fn nic_warning(&self) -> Option<abey_nic::Warning> {
        self.nic.warning()
    }

    /// Whether interrupts may come.
    pub(super) fn is_unmasked(&self) -> bool {
        !self.napi.get().is_masked() && !self.napi.get().is_unmasking()
    }

    /// Whether polls are the softirq's, so that whoever takes an interrupt can do them.
    pub(super) fn polls_in_softirq(&self) -> bool {
        self.napi.get().settings().context == PollContext::Softirq
    }

    /// Whether a thread that goes to sleep may sleep past the deferral's deadline, until a frame arrives.
    ///
    /// A deferral says how long the queue is *not* looked at after a poll. Once that time is over a look is due, and if it
    /// finds nothing the same begins anew, a hundred times over: a sleep with a timer for each of those costs more than
    /// all the rest (13 us of CPU on the machine this was written on, for 20 us of deferral). Where the descriptor tells of
    /// frames although it is masked, all the looks that would find nothing are left out: the first one that finds something
    /// is as late as its wake-up, which the core allows of any timer, and never before its time.
    ///
    /// Not while interrupts are suspended: then an application is at work and will be back.
    pub(super) fn may_oversleep(&mut self) -> bool {
        let napi = self.napi.get();
        napi.is_masked()
            && !napi.is_owned()
            && !napi.is_suspended()
            && napi.timer().is_some()
            && self.failed.is_none()
            && self.nic.tells_while_masked()
            && self.nic.deadline().is_none()
            && !self.transmit.is_held_up()
            && matches!(self.nic.acknowledge(), Ok(false))
    }

    /// When somebody must look at the latest, exactly.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.napi.get().timer().into_iter().chain(self.protocol_deadline()).min()
    }

    fn protocol_deadline(&self) -> Option<Nanos> {
        let stack = self.stack.poll_timeout().map(|at| Nanos::from_nanos(at.0));
        let nic = self.nic.deadline().map(|at| Nanos::from_nanos(at.as_nanos() as u64));
        stack.into_iter().chain(nic).chain(self.burst.deadline()).min()
    }

    /// When the service thread must look at the latest. TCP's timers are as coarse as the kernel's (one jiffy, 4 ms); and
    /// where the instance's own timer is armed somebody looks at the queue then anyway, so they wait for that: that is
    /// what keeps them from costing anything while interrupts are suspended.
    pub(super) fn service_deadline(&self) -> Option<Nanos> {
        const JIFFY: u64 = 4_000_000;
        let coarse = |at: Nanos| Nanos::from_nanos(at.as_nanos().div_ceil(JIFFY) * JIFFY);
        let oversleeps = self.oversleeps && !self.napi.get().is_suspended();
        let timer = self.napi.get().timer().filter(|_| !oversleeps).or_else(|| self.protocol_deadline().map(coarse));
        timer.into_iter().chain(self.burst.deadline()).min()
    }
}

/// Whether a frame tells something that every shard must know, although the NIC gave it to one: the answer to a
/// neighbour's question, or an ICMP error, which is steered by other addresses than the flow it is about.
fn concerns_all_shards(frame: &[u8]) -> bool {
    match frame.get(12..14) {
        // ARP: answers.
        Some([0x08, 0x06]) => frame.get(20..22) == Some(&[0, 2]),
        // ICMP: unreachable, time exceeded, parameter problem.
        Some([0x08, 0x00]) => {
            let header = frame.get(14).map_or(0, |first| usize::from(first & 15) * 4);
            frame.get(23) == Some(&1) && matches!(frame.get(14 + header), Some(3 | 11 | 12))
        }
        // ICMPv6: errors, neighbour advertisements.
        Some([0x86, 0xdd]) => frame.get(20) == Some(&58) && matches!(frame.get(54), Some(1..=4 | 136)),
        _ => false,
    }
}
