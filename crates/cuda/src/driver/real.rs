//! The CUDA driver, through cudarc's bindings. The only module that names it.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr;

use cudarc::driver::sys;
use tailrace_device::DeviceError;

use super::nvml::Nvml;
use super::pages::Pages;
use super::{Driver, Event, Graph, HostMemory, Kernel, Stream};
use crate::kernels;
use crate::launch::{Launch, PARAM_BYTES_MAX};

/// A card, its context and the kernels of this crate.
pub(crate) struct Cuda {
    device: sys::CUdevice,
    context: sys::CUcontext,
    streams: [sys::CUstream; 3],
    modules: Vec<sys::CUmodule>,
    /// Every kernel, by name.
    functions: HashMap<String, sys::CUfunction>,
    name: String,
    capability: (u32, u32),
    multiprocessors: u32,
    nvml: Option<Nvml>,
    /// Bytes in use on the card before the context was made.
    used_before: u64,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Cuda {}
// SAFETY: as above; the driver does its own locking.
unsafe impl Sync for Cuda {}

/// Why the driver cannot be used, if so.
pub(crate) fn missing() -> Option<&'static str> {
    // SAFETY: only looks for the library.
    (!unsafe { sys::is_culib_present() }).then_some("no NVIDIA driver was found on this machine")
}

fn check(result: sys::CUresult, what: &str) -> Result<(), DeviceError> {
    if result == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = ptr::null();
    // SAFETY: the driver points `text` to a constant string, or leaves it null.
    let reason = unsafe {
        sys::cuGetErrorString(result, &mut text);
        if text.is_null() { format!("{result:?}").into() } else { CStr::from_ptr(text).to_string_lossy() }
    };
    Err(DeviceError::Device(format!("the GPU failed to {what}: {reason}")))
}

/// Whether a call failed because there is no memory.
fn refused(result: sys::CUresult) -> bool {
    result == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY
}

impl Cuda {
    /// Opens card number `ordinal`: makes its context and loads every kernel.
    pub(crate) fn open(ordinal: u32) -> Result<Self, DeviceError> {
        if let Some(reason) = missing() {
            return Err(DeviceError::Device(reason.to_owned()));
        }
        // Read by the driver when it starts: without it kernels are loaded at their first launch, which takes memory then.
        // SAFETY: done before any other thread of this process uses the driver.
        unsafe { std::env::set_var("CUDA_MODULE_LOADING", "EAGER") };
        // SAFETY: calls of the driver's API with pointers to locals that live across the call.
        unsafe {
            check(sys::cuInit(0), "start its driver")?;
            let mut count = 0;
            check(sys::cuDeviceGetCount(&mut count), "count the cards")?;
            if ordinal as c_int >= count {
                let what = format!("there is no GPU number {ordinal}: this machine has {count}, counted from 0");
                return Err(DeviceError::Device(what));
            }
            let mut device = 0;
            check(sys::cuDeviceGet(&mut device, ordinal as c_int), "open the card")?;
            let nvml = Nvml::open(&pci_bus_id(device)?);
            let used_before = nvml.as_ref().and_then(Nvml::used_bytes).unwrap_or(0);
            let mut context = ptr::null_mut();
            check(sys::cuDevicePrimaryCtxRetain(&mut context, device), "make a context")?;
            let mut cuda = Cuda {
                device,
                context,
                streams: [ptr::null_mut(); 3],
                modules: Vec::new(),
                functions: HashMap::new(),
                name: name(device)?,
                capability: (0, 0),
                multiprocessors: 0,
                nvml,
                used_before,
            };
            cuda.prepare()?;
            Ok(cuda)
        }
    }

    fn prepare(&mut self) -> Result<(), DeviceError> {
        use sys::CUdevice_attribute as A;
        self.make_current()?;
        let major = self.attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        self.capability = (major, minor);
        self.multiprocessors = self.attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        // SAFETY: calls of the driver's API with pointers to locals that live across the call; images are whole fatbins.
        unsafe {
            // Memory that the driver would set aside for kernels' stacks, heaps and prints: ours use none.
            for limit in [sys::CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE, sys::CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE] {
                // A driver may refuse to go below its own minimum.
                let _ = sys::cuCtxSetLimit(limit, 0);
            }
            check(sys::cuCtxSetLimit(sys::CUlimit::CU_LIMIT_STACK_SIZE, 1024), "set the stack size")?;
            for stream in &mut self.streams {
                let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
                check(sys::cuStreamCreate(stream, flags), "make a stream")?;
            }
            for (file, image) in kernels::IMAGES {
                let mut module = ptr::null_mut();
                let result = sys::cuModuleLoadData(&mut module, image.as_ptr().cast());
                if result == sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU && kernels::optional(file) {
                    continue;
                }
                check(result, &format!("load the kernels of {file}"))?;
                self.modules.push(module);
                self.list_kernels(module)?;
            }
        }
        Ok(())
    }

    fn list_kernels(&mut self, module: sys::CUmodule) -> Result<(), DeviceError> {
        let mut count = 0;
        // SAFETY: calls of the driver's API with pointers to locals that live across the call; it writes `count` handles, and
        // points names to strings of the module.
        unsafe {
            check(sys::cuModuleGetFunctionCount(&mut count, module), "count its kernels")?;
            let mut functions = vec![ptr::null_mut(); count as usize];
            check(sys::cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, module), "list its kernels")?;
            for function in functions {
                let mut name = ptr::null();
                check(sys::cuFuncGetName(&mut name, function), "name a kernel")?;
                self.functions.insert(CStr::from_ptr(name).to_string_lossy().into_owned(), function);
            }
        }
        Ok(())
    }

    fn make_current(&self) -> Result<(), DeviceError> {
        // SAFETY: the context lives as long as `self`.
        check(unsafe { sys::cuCtxSetCurrent(self.context) }, "use its context")
    }

    /// Bytes that are free, and all of them.
    fn memory(&self) -> Result<(u64, u64), DeviceError> {
        self.make_current()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both live across the call.
        check(unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) }, "say how much memory is free")?;
        Ok((free as u64, total as u64))
    }

    fn attribute(&self, attribute: sys::CUdevice_attribute) -> Result<u32, DeviceError> {
        let mut value = 0;
        // SAFETY: `value` lives across the call.
        check(unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, self.device) }, "say what it is")?;
        Ok(value as u32)
    }

    fn stream(&self, stream: Stream) -> sys::CUstream {
        self.streams[stream as usize]
    }
}

fn name(device: sys::CUdevice) -> Result<String, DeviceError> {
    let mut text = [0; 256];
    // SAFETY: the buffer lives across the call, which writes a string that ends in it.
    unsafe {
        check(sys::cuDeviceGetName(text.as_mut_ptr(), text.len() as c_int, device), "say its name")?;
        Ok(CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned())
    }
}

fn pci_bus_id(device: sys::CUdevice) -> Result<CString, DeviceError> {
    let mut text = [0; 32];
    // SAFETY: as in `name`.
    unsafe {
        check(sys::cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as c_int, device), "say its place")?;
        Ok(CStr::from_ptr(text.as_ptr()).to_owned())
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // SAFETY: nothing uses the handles any more; errors at this point have nobody to go to.
        unsafe {
            sys::cuCtxSetCurrent(self.context);
            for module in &self.modules {
                sys::cuModuleUnload(*module);
            }
            for stream in self.streams.iter().filter(|s| !s.is_null()) {
                sys::cuStreamDestroy_v2(*stream);
            }
            sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

// SAFETY of every block below: handles and addresses came from this driver and live, by the contract of `Driver`.
impl Driver for Cuda {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn capability(&self) -> (u32, u32) {
        self.capability
    }

    fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    fn used_bytes(&self) -> u64 {
        match self.nvml.as_ref().and_then(Nvml::used_bytes) {
            Some(used) => used.saturating_sub(self.used_before),
            // Without the management library others on the card cannot be told apart: what they use counts as ours.
            None => self.memory().map_or(0, |(free, total)| total - free),
        }
    }

    fn free_bytes(&self) -> Result<u64, DeviceError> {
        Ok(self.memory()?.0)
    }

    fn alloc(&self, bytes: u64) -> Result<u64, DeviceError> {
        self.make_current()?;
        let mut address = 0;
        // SAFETY: see above.
        let result = unsafe { sys::cuMemAlloc_v2(&mut address, bytes.max(1) as usize) };
        if refused(result) {
            return Err(DeviceError::OutOfMemory { what: "the GPU's arenas", bytes });
        }
        check(result, "allocate memory")?;
        Ok(address)
    }

    fn free(&self, address: u64) {
        // SAFETY: see above.
        unsafe {
            sys::cuCtxSetCurrent(self.context);
            sys::cuMemFree_v2(address);
        }
    }

    fn alloc_host(&self, bytes: u64) -> Result<HostMemory, DeviceError> {
        self.make_current()?;
        let pages = Pages::new(bytes)?;
        // SAFETY: see above; the pages live until `free_host` has undone this.
        let result = unsafe {
            sys::cuMemHostRegister_v2(pages.address.cast(), pages.bytes as usize, sys::CU_MEMHOSTREGISTER_PORTABLE)
        };
        // The driver reports a refusal by the system in several ways.
        if result != sys::CUresult::CUDA_SUCCESS {
            return Err(DeviceError::OutOfMemory { what: "page-locked host memory", bytes });
        }
        let address = pages.address;
        std::mem::forget(pages);
        Ok(HostMemory { address, bytes })
    }

    fn free_host(&self, memory: HostMemory) {
        // SAFETY: see above.
        unsafe {
            sys::cuCtxSetCurrent(self.context);
            sys::cuMemHostUnregister(memory.address.cast());
        }
        drop(Pages { address: memory.address, bytes: Pages::whole(memory.bytes) });
    }

    fn kernel(&self, name: &str, shared_bytes: u32) -> Result<Kernel, DeviceError> {
        self.make_current()?;
        let function = self.functions.get(name).copied();
        let function =
            function.ok_or_else(|| DeviceError::Device(format!("the kernel {name} is not in this build")))?;
        if shared_bytes > 48 << 10 {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: see above.
            let set = unsafe { sys::cuFuncSetAttribute(function, attribute, shared_bytes as c_int) };
            check(set, &format!("give {name} {shared_bytes} bytes of shared memory"))?;
        }
        Ok(Kernel(function as u64))
    }

    fn launch(&self, stream: Stream, kernel: Kernel, launch: &Launch) -> Result<(), DeviceError> {
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: launch.grid[0],
            gridDimY: launch.grid[1],
            gridDimZ: launch.grid[2],
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared_bytes,
            hStream: self.stream(stream),
            attrs: &mut attribute,
            numAttrs: u32::from(launch.overlaps && self.capability.0 >= 9),
        };
        // The driver reads as many bytes as the kernel declares.
        debug_assert!(launch.params().len() <= PARAM_BYTES_MAX);
        let mut params: [*mut c_void; 1] = [launch.params().as_ptr().cast_mut().cast()];
        // SAFETY: see above; the struct is the kernel's only parameter.
        let result = unsafe {
            sys::cuLaunchKernelEx(&config, kernel.0 as sys::CUfunction, params.as_mut_ptr(), ptr::null_mut())
        };
        if result == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { check(result, &format!("start {}", launch.kernel)) }
    }

    fn copy_in(&self, stream: Stream, to: u64, from: *const u8, bytes: u64) -> Result<(), DeviceError> {
        // SAFETY: see above.
        check(
            unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes as usize, self.stream(stream)) },
            "copy to the card",
        )
    }

    fn copy_out(&self, stream: Stream, to: *mut u8, from: u64, bytes: u64) -> Result<(), DeviceError> {
        // SAFETY: see above.
        check(
            unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from, bytes as usize, self.stream(stream)) },
            "copy to the host",
        )
    }

    fn copy(&self, stream: Stream, to: u64, from: u64, bytes: u64) -> Result<(), DeviceError> {
        // SAFETY: see above.
        check(unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes as usize, self.stream(stream)) }, "copy on the card")
    }

    fn set(&self, stream: Stream, to: u64, value: u8, bytes: u64) -> Result<(), DeviceError> {
        // SAFETY: see above.
        check(unsafe { sys::cuMemsetD8Async(to, value, bytes as usize, self.stream(stream)) }, "set memory")
    }

    fn event(&self, timed: bool) -> Result<Event, DeviceError> {
        self.make_current()?;
        let mut event = ptr::null_mut();
        let flags = if timed { 0 } else { sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32 };
        // SAFETY: see above.
        check(unsafe { sys::cuEventCreate(&mut event, flags) }, "make an event")?;
        Ok(Event(event as u64))
    }

    fn free_event(&self, event: Event) {
        // SAFETY: see above.
        unsafe { sys::cuEventDestroy_v2(event.0 as sys::CUevent) };
    }

    fn record(&self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        // SAFETY: see above.
        check(unsafe { sys::cuEventRecord(event.0 as sys::CUevent, self.stream(stream)) }, "record an event")
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        // SAFETY: see above.
        check(unsafe { sys::cuStreamWaitEvent(self.stream(stream), event.0 as sys::CUevent, 0) }, "wait for an event")
    }

    fn is_done(&self, event: Event) -> bool {
        // SAFETY: see above.
        unsafe { sys::cuEventQuery(event.0 as sys::CUevent) == sys::CUresult::CUDA_SUCCESS }
    }

    fn wait_host(&self, event: Event) -> Result<(), DeviceError> {
        // SAFETY: see above.
        check(unsafe { sys::cuEventSynchronize(event.0 as sys::CUevent) }, "finish its work")
    }

    fn elapsed_ms(&self, from: Event, to: Event) -> Result<f32, DeviceError> {
        let mut ms = 0.0;
        // SAFETY: see above.
        let result = unsafe { sys::cuEventElapsedTime_v2(&mut ms, from.0 as sys::CUevent, to.0 as sys::CUevent) };
        check(result, "say how long its work took")?;
        Ok(ms)
    }

    fn synchronize(&self, stream: Stream) -> Result<(), DeviceError> {
        self.make_current()?;
        // SAFETY: see above.
        check(unsafe { sys::cuStreamSynchronize(self.stream(stream)) }, "finish its work")
    }

    fn begin_graph(&self) -> Result<(), DeviceError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: see above.
        check(unsafe { sys::cuStreamBeginCapture_v2(self.stream(Stream::Compute), mode) }, "begin a graph")
    }

    fn end_graph(&self) -> Result<Graph, DeviceError> {
        let (mut graph, mut ready) = (ptr::null_mut(), ptr::null_mut());
        let stream = self.stream(Stream::Compute);
        // SAFETY: see above; the graph is copied when it is made ready.
        unsafe {
            check(sys::cuStreamEndCapture(stream, &mut graph), "end a graph")?;
            let result = sys::cuGraphInstantiateWithFlags(&mut ready, graph, 0);
            sys::cuGraphDestroy(graph);
            check(result, "make a graph ready")?;
            check(sys::cuGraphUpload(ready, stream), "upload a graph")?;
        }
        Ok(Graph(ready as u64))
    }

    fn launch_graph(&self, graph: Graph) -> Result<(), DeviceError> {
        // SAFETY: see above.
        check(unsafe { sys::cuGraphLaunch(graph.0 as sys::CUgraphExec, self.stream(Stream::Compute)) }, "start a graph")
    }

    fn free_graph(&self, graph: Graph) {
        // SAFETY: see above.
        unsafe { sys::cuGraphExecDestroy(graph.0 as sys::CUgraphExec) };
    }

    fn enter(&self) -> Result<(), DeviceError> {
        self.make_current()
    }
}
