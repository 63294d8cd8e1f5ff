//! Receive-side scaling: the indirection tables by which a NIC spreads flows over its queues, the default one and those of
//! additional contexts. Source: Linux `Documentation/networking/scaling.rst` and `linux/ethtool.h`.
//!
//! Tables are read and written through `ETHTOOL_GRSSH` and `ETHTOOL_SRSSH`: every kernel that has contexts has these, and
//! they carry tables of any size. Only netlink lists the contexts (`rss-get`, since Linux 6.11).

use std::collections::BTreeSet;

use netlink_bindings::ethtool;
use serde::{Deserialize, Serialize};

use super::abi;
use super::ioctl::{Ethtool, Operation, put_u32, u32_at, u32s};
use crate::device::DeviceId;
use crate::machine::MachineError;
use crate::netlink::raw::{Family, RawSocket};

/// The ID of the default context.
pub const DEFAULT_CONTEXT: u32 = 0;

/// One indirection table with its hash parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RssContext {
    /// Its ID; 0 is the default one, which takes every flow that no rule steers.
    pub id: u32,
    /// The queue of each hash value: the low bits of the hash are the index.
    pub table: Vec<u32>,
    /// The key of the hash; empty for a context that uses the key of the default one.
    pub key: Vec<u8>,
    /// The hash function (a bit of the list of `ethtool -x`: 1 is Toeplitz); 0 if the driver does not report it.
    pub function: u8,
    /// The transformation of the hash input (`input-xfrm` of ethtool netlink); 0 is none.
    pub transformation: u8,
}

impl RssContext {
    /// Returns the queues that flows are spread over.
    #[must_use]
    pub fn queues(&self) -> BTreeSet<u32> {
        self.table.iter().copied().collect()
    }
}

/// Returns a table of `size` entries that names the `queues` in turn.
#[must_use]
pub fn spread(size: usize, queues: &[u32]) -> Vec<u32> {
    queues.iter().copied().cycle().take(size).collect()
}

/// `struct ethtool_rxfh`: seven numbers, then the table, then the key.
mod layout {
    pub(super) const GET: u32 = 0x46;
    pub(super) const SET: u32 = 0x47;
    pub(super) const CONTEXT: usize = 4;
    pub(super) const TABLE_SIZE: usize = 8;
    pub(super) const KEY_SIZE: usize = 12;
    pub(super) const FUNCTION: usize = 16;
    pub(super) const TRANSFORMATION: usize = 17;
    pub(super) const TABLE: usize = 24;
    /// In place of a context's ID: create one.
    pub(super) const NEW_CONTEXT: u32 = u32::MAX;
    /// In place of a transformation: leave it unchanged. Kernels before 6.8 require 0.
    pub(super) const KEEP: u8 = 0xff;
}

impl Ethtool {
    /// Reads the table of a context.
    ///
    /// # Errors
    /// The driver has none, or the context or device does not exist (any more).
    pub fn rss(&self, device: &DeviceId, context: u32) -> Result<RssContext, MachineError> {
        let action = match context {
            DEFAULT_CONTEXT => format!("read the RSS table of {device}"),
            id => format!("read the table of RSS context {id} of {device}"),
        };
        let operation = Operation { device, action: &action };
        // With sizes of 0 the kernel returns the sizes.
        let mut sizes = query(context, 0, 0);
        self.call(operation, &mut sizes)?;
        let (table, key) = (u32_at(&sizes, layout::TABLE_SIZE), u32_at(&sizes, layout::KEY_SIZE));
        let mut answer = query(context, table, key);
        self.call(operation, &mut answer)?;
        Ok(decode(&answer, context, table as usize))
    }

    /// Writes the table of an existing context.
    ///
    /// # Errors
    /// The driver refuses, the caller lacks `CAP_NET_ADMIN`, or the device does not exist any more.
    pub fn set_rss_table(&self, device: &DeviceId, context: u32, table: &[u32]) -> Result<(), MachineError> {
        let queues = queue_list(table);
        let action = match context {
            DEFAULT_CONTEXT => format!("spread the flows of {device} over queues {queues}"),
            id => format!("spread RSS context {id} of {device} over queues {queues}"),
        };
        let now = self.rss(device, context)?;
        let operation = Operation { device, action: &action };
        self.set_rss(operation, context, table, &[], now.transformation).map(|_| ())
    }

    /// Creates a context and returns its ID. With an empty key it has the driver's default key.
    ///
    /// # Errors
    /// The driver has no contexts or no free one, the caller lacks `CAP_NET_ADMIN`, or the device does not exist any more.
    pub fn create_rss_context(&self, device: &DeviceId, table: &[u32], key: &[u8]) -> Result<u32, MachineError> {
        let action = format!("make an RSS context of {device} over queues {}", queue_list(table));
        self.set_rss(Operation { device, action: &action }, layout::NEW_CONTEXT, table, key, 0)
    }

    /// Deletes a context.
    ///
    /// # Errors
    /// A rule still uses it, the caller lacks `CAP_NET_ADMIN`, or the device or context does not exist any more.
    pub fn delete_rss_context(&self, device: &DeviceId, context: u32) -> Result<(), MachineError> {
        assert_ne!(context, DEFAULT_CONTEXT, "the default context cannot be deleted");
        let action = format!("delete RSS context {context} of {device}");
        // A table without entries deletes the context.
        self.set_rss(Operation { device, action: &action }, context, &[], &[], 0).map(|_| ())
    }

    fn set_rss(
        &self,
        operation: Operation<'_>,
        context: u32,
        table: &[u32],
        key: &[u8],
        transformation: u8,
    ) -> Result<u32, MachineError> {
        let mut request = command(context, table, key, layout::KEEP);
        let outcome = match self.call(operation, &mut request) {
            // This kernel has no value for leaving the transformation unchanged, or (6.8 and 6.9) misreads it.
            Err(MachineError::Refused { errno: Some(libc::EINVAL), .. } | MachineError::Unsupported { .. }) => {
                request = command(context, table, key, transformation);
                self.call(operation, &mut request)
            }
            other => other,
        };
        outcome.map(|()| u32_at(&request, layout::CONTEXT))
    }
}

/// Lists the IDs of the contexts of a device, without the default one.
///
/// # Errors
/// This kernel does not list them, the driver has none, or the device does not exist any more.
pub(crate) fn context_ids(
    socket: &mut RawSocket,
    family: &Family,
    device: &DeviceId,
) -> Result<Vec<u32>, MachineError> {
    let mut request = ethtool::Request::new().op_rss_get_dump();
    request.header_mut().cmd = abi::RSS_GET;
    let header = request.encode().nested_header().push_dev_index(device.ifindex);
    header.push_dev_name_bytes(device.name.as_bytes()).end_nested();
    let mut found = BTreeSet::new();
    let dumped = socket.dump(family, &request, |attrs| found.extend(attrs.get_context().ok()));
    let action = format!("list the RSS contexts of {device}");
    let capability = crate::machine::Capability::NetAdmin;
    dumped.map_err(|error| MachineError::from_io(&device.name, &action, capability, &error))?;
    found.remove(&DEFAULT_CONTEXT);
    Ok(found.into_iter().collect())
}

fn query(context: u32, table: u32, key: u32) -> Vec<u8> {
    let mut bytes = vec![0; layout::TABLE + 4 * table as usize + key as usize];
    put_u32(&mut bytes, 0, layout::GET);
    put_u32(&mut bytes, layout::CONTEXT, context);
    put_u32(&mut bytes, layout::TABLE_SIZE, table);
    put_u32(&mut bytes, layout::KEY_SIZE, key);
    bytes
}

fn decode(answer: &[u8], context: u32, table: usize) -> RssContext {
    let (entries, key) = answer[layout::TABLE..].split_at(4 * table);
    // A context without a key of its own returns a key of length 0.
    let key_size = (u32_at(answer, layout::KEY_SIZE) as usize).min(key.len());
    RssContext {
        id: context,
        table: u32s(entries),
        key: key[..key_size].to_vec(),
        function: answer[layout::FUNCTION],
        transformation: answer[layout::TRANSFORMATION],
    }
}

fn command(context: u32, table: &[u32], key: &[u8], transformation: u8) -> Vec<u8> {
    let mut bytes = query(context, table.len() as u32, key.len() as u32);
    put_u32(&mut bytes, 0, layout::SET);
    bytes[layout::TRANSFORMATION] = transformation;
    let (entries, end) = bytes[layout::TABLE..].split_at_mut(4 * table.len());
    for (entry, queue) in entries.chunks_exact_mut(4).zip(table) {
        put_u32(entry, 0, *queue);
    }
    end.copy_from_slice(key);
    bytes
}

/// Formats the queues of a table as a list.
pub fn queue_list(table: &[u32]) -> String {
    table.iter().copied().collect::<crate::cpu::CpuList>().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_spread_evenly() {
        assert_eq!(spread(8, &[0, 1, 2]), [0, 1, 2, 0, 1, 2, 0, 1]);
        assert_eq!(spread(4, &[7]), [7, 7, 7, 7]);
        assert!(spread(4, &[]).is_empty());
    }

    #[test]
    fn a_command_has_the_layout_of_the_kernels_structure() {
        let bytes = command(layout::NEW_CONTEXT, &[3, 5], &[0xaa, 0xbb], layout::KEEP);
        let mut expected = Vec::new();
        for number in [0x47_u32, u32::MAX, 2, 2] {
            expected.extend(number.to_ne_bytes());
        }
        // Hash function, transformation, reserved.
        expected.extend([0, 0xff, 0, 0, 0, 0, 0, 0]);
        expected.extend([3_u32.to_ne_bytes(), 5_u32.to_ne_bytes()].concat());
        expected.extend([0xaa, 0xbb]);
        assert_eq!(bytes, expected);
        // A command that deletes a context: no entries, and no key.
        assert_eq!(command(4, &[], &[], 0).len(), 24);
        assert_eq!(query(0, 128, 40).len(), 24 + 512 + 40);
    }

    #[test]
    fn an_answer_is_read_with_and_without_a_key_of_its_own() {
        let mut answer = command(2, &[1, 2, 1, 2], &[9, 8, 7], 0);
        answer[layout::FUNCTION] = 1;
        let read = decode(&answer, 2, 4);
        let table = vec![1, 2, 1, 2];
        assert_eq!(read, RssContext { id: 2, table, key: vec![9, 8, 7], function: 1, transformation: 0 });
        assert_eq!(read.queues(), BTreeSet::from([1, 2]));
        put_u32(&mut answer, layout::KEY_SIZE, 0);
        assert!(decode(&answer, 2, 4).key.is_empty());
    }
}
