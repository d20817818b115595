//! What the executor needs of a GPU: memory, streams, events, launches and graphs.
//!
//! Two implementations: the CUDA driver, and an emulator that runs the same kernels on the CPU, for tests.

#[cfg(feature = "emulator")]
pub mod emulated;
mod nvml;
pub(crate) mod owned;
mod pages;
pub(crate) mod real;

use tailrace_device::DeviceError;

use crate::launch::Launch;

/// A stream of the executor. Work of one stream runs in order, that of different streams in any order that events allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Kernels, and copies that must lie between them.
    Compute,
    /// Tail blocks on their way to the device.
    Link,
    /// Blocks on their way to the host.
    Clean,
}

/// A point in a stream that others can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event(pub(crate) u64);

/// A kernel that was found by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kernel(pub(crate) u64);

/// A list of launches that the device starts as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Graph(pub(crate) u64);

/// A run of page-locked host memory.
#[derive(Debug, PartialEq, Eq)]
pub struct HostMemory {
    pub(crate) address: *mut u8,
    pub(crate) bytes: u64,
}

// SAFETY: plain memory; whoever dereferences it proves exclusive use.
#[allow(unsafe_code)]
unsafe impl Send for HostMemory {}

/// What the executor needs of a GPU. Addresses of device memory are integers. Everything named by an address or a handle
/// came from the same driver, and memory outlives the work that uses it: the executor waits before it frees.
pub trait Driver: Send + Sync {
    /// Lets the calling thread use the device. Called by whoever takes an executor to another thread.
    fn enter(&self) -> Result<(), DeviceError>;
    /// Name of the card.
    fn name(&self) -> String;
    /// Compute capability, such as `(9, 0)`.
    fn capability(&self) -> (u32, u32);
    /// Streaming multiprocessors.
    fn multiprocessors(&self) -> u32;
    /// Device memory that the process has in use, in bytes, as the driver counts it; 0 where it does not say.
    fn used_bytes(&self) -> u64;
    /// Device memory that is free, in bytes.
    fn free_bytes(&self) -> Result<u64, DeviceError>;

    /// Allocates device memory.
    fn alloc(&self, bytes: u64) -> Result<u64, DeviceError>;
    /// Frees it.
    fn free(&self, address: u64);
    /// Allocates page-locked host memory.
    fn alloc_host(&self, bytes: u64) -> Result<HostMemory, DeviceError>;
    /// Frees it.
    fn free_host(&self, memory: HostMemory);

    /// Finds a kernel, and lets it use that much dynamic shared memory.
    fn kernel(&self, name: &str, shared_bytes: u32) -> Result<Kernel, DeviceError>;
    /// Starts a kernel.
    fn launch(&self, stream: Stream, kernel: Kernel, launch: &Launch) -> Result<(), DeviceError>;

    /// Copies from page-locked host memory to the device.
    fn copy_in(&self, stream: Stream, to: u64, from: *const u8, bytes: u64) -> Result<(), DeviceError>;
    /// Copies from the device to page-locked host memory.
    fn copy_out(&self, stream: Stream, to: *mut u8, from: u64, bytes: u64) -> Result<(), DeviceError>;
    /// Copies on the device.
    fn copy(&self, stream: Stream, to: u64, from: u64, bytes: u64) -> Result<(), DeviceError>;
    /// Sets every byte.
    fn set(&self, stream: Stream, to: u64, value: u8, bytes: u64) -> Result<(), DeviceError>;

    /// Makes an event; one that `timed` can be compared by [`Driver::elapsed_ms`].
    fn event(&self, timed: bool) -> Result<Event, DeviceError>;
    /// Destroys it.
    fn free_event(&self, event: Event);
    /// Marks the point that `stream` has reached.
    fn record(&self, stream: Stream, event: Event) -> Result<(), DeviceError>;
    /// Lets `stream` wait for the last record of `event`.
    fn wait(&self, stream: Stream, event: Event) -> Result<(), DeviceError>;
    /// Whether the last record of `event` was reached.
    fn is_done(&self, event: Event) -> bool;
    /// Lets the caller wait for it.
    fn wait_host(&self, event: Event) -> Result<(), DeviceError>;
    /// Time between two records, in milliseconds.
    fn elapsed_ms(&self, from: Event, to: Event) -> Result<f32, DeviceError>;
    /// Waits until a stream has nothing left to do.
    fn synchronize(&self, stream: Stream) -> Result<(), DeviceError>;

    /// From now on work given to the compute stream is recorded instead of started.
    fn begin_graph(&self) -> Result<(), DeviceError>;
    /// Ends that.
    fn end_graph(&self) -> Result<Graph, DeviceError>;
    /// Starts a graph in the compute stream.
    fn launch_graph(&self, graph: Graph) -> Result<(), DeviceError>;
    /// Destroys it.
    fn free_graph(&self, graph: Graph);
}
