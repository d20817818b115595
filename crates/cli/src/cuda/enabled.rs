//! The feature is on.

use tailrace_cuda::CudaLoader;
use tailrace_device::DeviceError;

use super::{Gpu, NoGpu};

/// Opens card number `ordinal`.
pub(crate) fn open(ordinal: u32) -> Result<Gpu, NoGpu> {
    tailrace_cuda::available().map_err(|reason| NoGpu { reason, present: false })?;
    let refused = |error: DeviceError| NoGpu { reason: error.to_string(), present: true };
    let loader = CudaLoader::open(ordinal).map_err(refused)?;
    let free_bytes = loader.free_bytes().map_err(refused)?;
    Ok(Gpu { loader: Box::new(loader), free_bytes })
}
