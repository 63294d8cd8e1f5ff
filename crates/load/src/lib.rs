//! An open-loop load generator that counts latency from intended send times, and small servers to point it at.
