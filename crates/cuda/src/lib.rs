//! The NVIDIA device: kernels, streams, the ring that tail blocks are staged in, and the executor that runs a plan on them.

mod arenas;
pub mod driver;
mod executor;
mod host;
mod kernels;
pub mod launch;
pub mod layout;
mod load;
mod loader;
mod marks;
pub mod params;
mod probe;
mod program;
mod rates;
mod ring;
mod sizes;
mod step;
mod transfer;

pub use loader::{CudaLoader, available};
pub use sizes::{Card, Sizes};
