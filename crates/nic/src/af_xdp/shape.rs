//! Options for opening a device with AF_XDP.

/// Whether the kernel copies frames between driver and rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpCopy {
    /// If the driver has no zero copy; see [`Capabilities::zero_copy`](crate::Capabilities).
    #[default]
    Any,
    /// Always.
    Copy,
    /// Never; an error if the driver has no zero copy.
    ZeroCopy,
}

/// Options for opening a device with AF_XDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpShape {
    /// Sockets to open, for queues 0 and up; `None` for every receive queue of the device. The kernel receives
    /// the frames of the other queues, also those for registered ports: flows must be steered away from these queues.
    pub queues: Option<usize>,
    /// Frames in each ring: a power of two from 64 to 16,384.
    pub slots: u32,
    /// Whether frames are copied by the kernel.
    pub copy: XdpCopy,
    /// Whether the program runs in the kernel's network stack instead of the driver, for drivers without XDP. Always copies.
    pub generic: bool,
}

impl Default for XdpShape {
    fn default() -> Self {
        Self { queues: None, slots: 1024, copy: XdpCopy::Any, generic: false }
    }
}
