//! The life of a program that Abey starts: signals, the guard process, and the broker of its NIC.
//!
//! | module | job |
//! | --- | --- |
//! | [`program`] | finds the program's file, and tells whether a library can be preloaded into it |
//! | [`signals`] | receives this process's signals through a descriptor |
//! | [`supervisor`] | starts the program, forwards signals, waits for it and for what it leaves in the background |
//! | [`guard`] | ends the program and restores settings after a `kill -9` of this process |
//! | [`engagement`] | checks whether the mode has reached the sockets of the program's processes |
//! | [`devices`] | finds the devices that a program receives from |
//! | [`settings`] | applies NAPI settings to devices, and restores them |
//! | [`broker`] | gives the queue pairs of a NIC to the program's processes |
//!
//! Nothing here prints: messages are returned or passed to a callback.

#![forbid(unsafe_code)]

pub mod broker;
pub mod devices;
pub mod engagement;
pub mod guard;
pub mod program;
pub mod settings;
pub mod signals;
pub mod supervisor;
