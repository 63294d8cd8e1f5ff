//! The bad wire and the recorder, over a pair in memory.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use abey_nic::{Checksum, Frame, Impaired, Impairment, MemoryQueue, MemoryShape, Pcap, QueuePair, Recording, pair};

const FRAMES: u32 = 5_000;

fn ends() -> (MemoryQueue, MemoryQueue) {
    let (mut left, mut right) = pair(MemoryShape { slots: 8192, ..MemoryShape::default() }).expect("a pair");
    (left.remove(0), right.remove(0))
}

fn frame(number: u32) -> Frame {
    let mut bytes = [0xfe; 64];
    bytes[14..18].copy_from_slice(&number.to_be_bytes());
    Frame::from(&bytes[..])
}

fn number(frame: &Frame) -> u32 {
    u32::from_be_bytes(frame[14..18].try_into().expect("4 bytes"))
}

/// Sends numbered frames 10 us apart through a wire and gives what arrives, with the time it arrived at.
fn through(wire: Impairment, seed: u64) -> (Vec<(Duration, Frame)>, u64) {
    let (left, mut right) = ends();
    let mut left = Impaired::new(left, Impairment::default(), wire, seed);
    let mut into = Frame::burst(64, 1500);
    let mut arrived = Vec::new();
    let mut now = Duration::ZERO;
    for sent in 0.. {
        left.set_time(now);
        if sent < FRAMES {
            assert_eq!(left.transmit(&[frame(sent)]).expect("transmit"), 1);
        } else if left.deadline().is_none() {
            break;
        }
        left.kick().expect("kick");
        let count = right.receive(&mut into).expect("receive");
        arrived.extend(into[..count].iter().map(|frame| (now, frame.clone())));
        now += Duration::from_micros(10);
    }
    (arrived, left.counters().drops.impairment)
}

fn numbers(arrived: &[(Duration, Frame)]) -> Vec<u32> {
    arrived.iter().map(|(_, frame)| number(frame)).collect()
}

#[test]
fn a_good_wire_changes_nothing() {
    let (arrived, lost) = through(Impairment::default(), 1);
    assert_eq!((numbers(&arrived), lost), ((0..FRAMES).collect(), 0));
}

#[test]
fn losses_are_about_as_many_as_asked_for_and_the_same_for_the_same_seed() {
    let wire = Impairment { loss: 0.1, ..Impairment::default() };
    let (arrived, lost) = through(wire, 7);
    assert_eq!(arrived.len() as u64 + lost, u64::from(FRAMES));
    assert!((400..600).contains(&lost), "{lost} of {FRAMES}");
    assert_eq!(numbers(&arrived), numbers(&through(wire, 7).0));
    assert_ne!(numbers(&arrived), numbers(&through(wire, 8).0));
}

#[test]
fn a_delay_is_kept_to_the_time_given() {
    let wire = Impairment { delay: Duration::from_millis(3), ..Impairment::default() };
    for (at, frame) in through(wire, 1).0 {
        let sent = Duration::from_micros(10) * number(&frame);
        assert_eq!(at, sent + Duration::from_millis(3));
    }
}

#[test]
fn reordered_frames_arrive_late_but_once() {
    let wire = Impairment { reorder: 0.05, reorder_by: Duration::from_micros(100), ..Impairment::default() };
    let (arrived, lost) = through(wire, 3);
    let mut sorted = numbers(&arrived);
    let late = sorted.windows(2).filter(|pair| pair[0] > pair[1]).count();
    sorted.sort_unstable();
    assert_eq!((sorted, lost), ((0..FRAMES).collect(), 0));
    assert!((150..350).contains(&late), "{late}");
}

#[test]
fn duplicates_are_extra_and_corruption_is_one_bit() {
    let wire = Impairment { duplicate: 0.2, corrupt: 0.1, ..Impairment::default() };
    let (arrived, _) = through(wire, 3);
    let extra = arrived.len() - FRAMES as usize;
    assert!((850..1150).contains(&extra), "{extra}");
    let differs = |frame: &Frame| {
        let sound = Frame::from(&[[0xfe; 14].as_slice(), &frame[14..18], &[0xfe; 46]].concat()[..]);
        frame.iter().zip(sound.iter()).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>()
    };
    let visible = arrived.iter().filter(|(_, frame)| differs(frame) == 1).count();
    assert!(arrived.iter().all(|(_, frame)| differs(frame) <= 1));
    assert!((400..700).contains(&visible), "{visible} of {} corrupted", arrived.len());
}

#[test]
fn received_frames_suffer_too_and_unmask_tells_of_those_that_are_due() {
    let (mut left, right) = ends();
    let wire = Impairment { delay: Duration::from_millis(1), ..Impairment::default() };
    let mut right = Impaired::new(right, wire, Impairment::default(), 1);
    let sent = frame(9).with_checksum(Checksum::NotNeeded);
    left.transmit(std::slice::from_ref(&sent)).expect("transmit");
    let mut into = Frame::burst(4, 1500);
    assert_eq!(right.receive(&mut into).expect("receive"), 0);
    assert!(!right.unmask());
    assert_eq!(right.deadline(), Some(Duration::from_millis(1)));
    right.set_time(Duration::from_millis(1));
    assert!(right.unmask());
    assert_eq!(right.receive(&mut into).expect("receive"), 1);
    assert_eq!(into[0], sent);
    assert_eq!(right.deadline(), None);
}

#[test]
fn a_poll_sends_what_is_due_although_the_device_had_no_room() {
    let (mut left, mut right) = pair(MemoryShape { slots: 4, ..MemoryShape::default() }).expect("a pair");
    let wire = Impairment { delay: Duration::from_millis(1), ..Impairment::default() };
    let mut left = Impaired::new(left.remove(0), Impairment::default(), wire, 1);
    left.transmit(&(0..6).map(frame).collect::<Vec<_>>()).expect("transmit");
    left.set_time(Duration::from_millis(1));
    let mut into = Frame::burst(8, 1500);
    assert_eq!(left.receive(&mut into).expect("receive"), 0);
    assert_eq!(left.deadline(), None, "room is an interrupt, not a deadline");
    assert_eq!(left.transmit(&[frame(6)]).expect("transmit"), 0, "and pushes back");
    assert_eq!(right[0].receive(&mut into).expect("receive"), 4);
    assert!(left.unmask());
    assert_eq!(left.receive(&mut into).expect("receive"), 0);
    assert_eq!(right[0].receive(&mut into).expect("receive"), 2);
}

/// Written bytes, which outlive the writer.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("lock").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn both_directions_are_recorded_with_nanoseconds() {
    let (left, mut right) = ends();
    let sink = Sink::default();
    let recording = Recording::new("sink", Box::new(sink.clone())).expect("a recording");
    let mut left = Pcap::new(left, recording.clone());
    let mut into = Frame::burst(4, 1500);
    left.set_time(Duration::new(1_700_000_000, 123_456_789));
    left.transmit(&[frame(1), frame(2)]).expect("transmit");
    right.transmit(&[frame(3)]).expect("transmit");
    left.set_time(Duration::new(1_700_000_001, 1));
    assert_eq!(left.receive(&mut into).expect("receive"), 1);

    recording.flush().expect("flush");
    let bytes = sink.0.lock().expect("lock").clone();
    let mut reader = pcap_file::pcap::PcapReader::new(&bytes[..]).expect("a pcap file");
    assert_eq!(reader.header().datalink, pcap_file::DataLink::ETHERNET);
    let mut records = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.expect("a packet");
        records.push((packet.timestamp, number(&Frame::from(&*packet.data))));
    }
    let first = Duration::new(1_700_000_000, 123_456_789);
    assert_eq!(records, [(first, 1), (first, 2), (Duration::new(1_700_000_001, 1), 3)]);
}

#[test]
fn a_recording_that_cannot_be_written_is_an_error_that_names_it() {
    struct Full(usize);
    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            if self.0 > 1_000 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(bytes.len()) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (left, _right) = ends();
    let mut left = Pcap::new(left, Recording::new("full.pcap", Box::new(Full(0))).expect("the header fits"));
    // Some of it fits, and some more the buffer in between.
    let error = (0..1_000).find_map(|_| left.transmit(&[frame(1)]).err()).expect("the disk is full");
    let message = error.to_string();
    assert!(message.contains("full.pcap"), "{message}");
}
