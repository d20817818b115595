//! The NVIDIA device: kernels, streams, the ring that tail blocks are staged in, and the executor that runs a plan on them.

pub mod launch;
pub mod layout;
pub mod params;
