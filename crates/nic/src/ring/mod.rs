//! A ring of fixed-size slots with one producer and one consumer that do not trust each other.
//!
//! Both ends see the same memory ([`Shared`]); each keeps its own index to itself and only *publishes* it there, so the
//! other end can write a wrong index of its own and wrong content of slots, and nothing else. A value in shared memory is
//! read once, checked, and then used from the copy.
//!
//! *Interrupts.* The consumer arms a flag, then reads the producer's index; the producer publishes its index, then reads the
//! flag ([`doorbell`]). Each has a sequentially consistent fence between its two steps, so that at least one of them reads
//! what the other has written (store buffering; the same as `VIRTQ_USED_F_NOTIFY` of virtio 1.2, section 2.7.10). The producer clears
//! the flag when it raises the interrupt: one interrupt for each time it was armed.
//!
//! *Room* is requested in the same way in the other direction: a producer that found the ring full sets the bit of its queue
//! in a word, then reads the consumer's index again; the consumer frees slots, then takes the word ([`Consumer::release`]).

mod consumer;
mod producer;
mod region;
mod shared;

pub use consumer::{Consumer, Dropped};
pub use producer::{Full, Producer, doorbell};
pub use region::Region;
pub use shared::{Layout, Shared, SlotHeader, Word};
