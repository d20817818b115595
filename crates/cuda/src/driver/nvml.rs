//! How much memory of a card is in use, as its management library counts it: context, code and graphs included.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_ulonglong, c_void};
use std::ptr;

use libloading::Library;

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
struct Memory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

type MemoryInfo = unsafe extern "C" fn(*mut c_void, *mut Memory) -> c_int;

/// One card in the management library.
pub(super) struct Nvml {
    _library: Library,
    device: *mut c_void,
    memory_info: MemoryInfo,
}

impl Nvml {
    /// The card with that PCI bus id; `None` where the library is missing or does not know it.
    pub(super) fn open(bus_id: &CStr) -> Option<Self> {
        let names = ["libnvidia-ml.so.1", "libnvidia-ml.so", "nvml.dll"];
        // SAFETY: the management library of the driver; its initialisers do nothing that we could break.
        let library = names.into_iter().find_map(|name| unsafe { Library::new(name) }.ok())?;
        // SAFETY: names and types of NVML's documented interface.
        unsafe {
            let init = *library.get::<unsafe extern "C" fn() -> c_int>(b"nvmlInit_v2\0").ok()?;
            type ByBusId = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int;
            let by_bus_id = *library.get::<ByBusId>(b"nvmlDeviceGetHandleByPciBusId_v2\0").ok()?;
            let memory_info = *library.get::<MemoryInfo>(b"nvmlDeviceGetMemoryInfo\0").ok()?;
            let mut device = ptr::null_mut();
            let found = init() == 0 && by_bus_id(bus_id.as_ptr(), &mut device) == 0;
            found.then_some(Nvml { _library: library, device, memory_info })
        }
    }

    /// Bytes in use on the card, by all processes.
    pub(super) fn used_bytes(&self) -> Option<u64> {
        let mut memory = Memory::default();
        // SAFETY: the handle came from the library, and `memory` is what it writes.
        (unsafe { (self.memory_info)(self.device, &mut memory) } == 0).then_some(memory.used)
    }
}
