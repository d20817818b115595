//! A kernel launch as a value: what the families in this folder build, and what the driver is given.

pub mod attention;
pub mod elementwise;
pub mod gemm;
pub mod head;
pub mod matmul_f32;
pub mod matvec_rows;
pub mod rates;
pub mod weights;

/// Bytes of the largest parameter struct.
pub const PARAM_BYTES_MAX: usize = 512;

/// One launch of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Name of the kernel in its file.
    pub kernel: &'static str,
    /// Thread blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Whether it may start while its predecessor runs (programmatic dependent launch).
    pub overlaps: bool,
    params: [u8; PARAM_BYTES_MAX],
    param_bytes: usize,
}

impl Launch {
    /// A launch of `kernel` with `params`.
    pub fn new<P: crate::params::Params>(kernel: &'static str, grid: [u32; 3], threads: u32, params: &P) -> Self {
        let bytes = params.bytes();
        let mut stored = [0; PARAM_BYTES_MAX];
        stored[..bytes.len()].copy_from_slice(bytes);
        Launch { kernel, grid, threads, shared_bytes: 0, overlaps: true, params: stored, param_bytes: bytes.len() }
    }

    /// The same with dynamic shared memory.
    pub fn shared(self, bytes: u32) -> Self {
        Launch { shared_bytes: bytes, ..self }
    }

    /// The parameter struct.
    pub fn params(&self) -> &[u8] {
        &self.params[..self.param_bytes]
    }
}
