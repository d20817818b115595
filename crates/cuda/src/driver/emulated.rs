//! A GPU that is not there: the same kernels, compiled for the CPU, and streams whose work runs in an order that is as
//! unkind as events allow. For tests.

#![allow(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard};

use libloading::Library;
use tailrace_device::DeviceError;

use super::{Driver, Event, Graph, HostMemory, Kernel, Stream};
use crate::launch::Launch;

/// Which streams run as early as they may. All others run as late as they may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Copies overtake kernels: a slot that was not waited for is overwritten before it is read.
    LinkFirst,
    /// Kernels overtake copies: a slot that was not waited for is read before it is written.
    ComputeFirst,
}

type Emulate = unsafe extern "C" fn(*const c_char, *const c_uint, c_uint, c_uint, *const c_void, usize) -> c_int;

/// A card of the emulator.
pub struct Emulated {
    emulate: Emulate,
    _library: Library,
    order: Order,
    state: Mutex<State>,
}

#[derive(Clone)]
enum Work {
    Launch(CString, Box<Launch>),
    Copy { to: u64, from: u64, bytes: u64 },
    Set { to: u64, value: u8, bytes: u64 },
    Record(u64, u64),
    Wait(u64, u64),
}

#[derive(Default)]
struct State {
    streams: [VecDeque<Work>; 3],
    /// Of each event: records that were asked for, and that were reached.
    events: HashMap<u64, (u64, u64)>,
    recording: Option<Vec<Work>>,
    graphs: HashMap<u64, Vec<Work>>,
    memory: HashMap<u64, Box<[u128]>>,
    kernels: Vec<CString>,
    handles: u64,
    used: u64,
    /// How many more things it gives: all where there is none.
    gives: Option<u64>,
}

impl Emulated {
    /// A card whose streams run in that order.
    pub fn new(order: Order) -> Self {
        // SAFETY: the object that the build made of the kernels; its initialisers fill tables.
        let library = unsafe { Library::new(env!("TAILRACE_EMULATED_KERNELS")) }.expect("the emulated kernels");
        // SAFETY: the emulator's C interface.
        let emulate = unsafe { *library.get::<Emulate>(b"tailrace_emulate\0").expect("the emulator's entry") };
        Emulated { emulate, _library: library, order, state: Mutex::default() }
    }

    /// From now on gives that many allocations, events and graphs, and fails after them.
    pub fn give_only(&self, count: u64) {
        self.state().gives = Some(count);
    }

    /// Allocations, events and graphs that were given and not taken back.
    pub fn given(&self) -> usize {
        let state = self.state();
        state.memory.len() + state.events.len() + state.graphs.len()
    }

    fn give(&self) -> Result<(), DeviceError> {
        match &mut self.state().gives {
            Some(0) => Err(DeviceError::Device("nothing more is given".to_owned())),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn push(&self, stream: Stream, work: Work) -> Result<(), DeviceError> {
        let mut state = self.state();
        if stream == Stream::Compute
            && let Some(recording) = state.recording.as_mut()
        {
            recording.push(work);
            return Ok(());
        }
        state.streams[stream as usize].push_back(work);
        match self.order {
            Order::ComputeFirst => self.drain(&mut state, Stream::Compute as usize),
            Order::LinkFirst => {
                while self.step(&mut state, Stream::Link as usize)? || self.step(&mut state, Stream::Clean as usize)? {}
                Ok(())
            }
        }
    }

    /// Runs the next work of a stream; `false` if there is none, or if it waits.
    fn step(&self, state: &mut State, stream: usize) -> Result<bool, DeviceError> {
        match state.streams[stream].front() {
            None => return Ok(false),
            Some(&Work::Wait(event, record)) if state.events[&event].1 < record => return Ok(false),
            Some(_) => {}
        }
        let work = state.streams[stream].pop_front().expect("looked at above");
        match work {
            Work::Wait(..) => {}
            Work::Record(event, record) => state.events.entry(event).or_default().1 = record,
            // SAFETY: addresses of live memory, by the contract of `Driver`.
            Work::Copy { to, from, bytes } => unsafe {
                std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes as usize);
            },
            // SAFETY: as above.
            Work::Set { to, value, bytes } => unsafe { (to as *mut u8).write_bytes(value, bytes as usize) },
            Work::Launch(name, launch) => {
                let params = launch.params();
                // SAFETY: the emulator copies the struct, whose size it checks.
                let failed = unsafe {
                    (self.emulate)(
                        name.as_ptr(),
                        launch.grid.as_ptr(),
                        launch.threads,
                        launch.shared_bytes,
                        params.as_ptr().cast(),
                        params.len(),
                    )
                };
                if failed != 0 {
                    return Err(DeviceError::Device(format!("the emulator failed to run {}", launch.kernel)));
                }
            }
        }
        Ok(true)
    }

    /// Runs everything of a stream, and of others what it waits for.
    fn drain(&self, state: &mut State, stream: usize) -> Result<(), DeviceError> {
        loop {
            while self.step(state, stream)? {}
            let Some(&Work::Wait(event, record)) = state.streams[stream].front() else { return Ok(()) };
            self.reach(state, event, record)?;
        }
    }

    /// Runs the stream that records `event`, until it has.
    fn reach(&self, state: &mut State, event: u64, record: u64) -> Result<(), DeviceError> {
        while state.events[&event].1 < record {
            let records = |w: &Work| matches!(w, Work::Record(e, r) if (*e, *r) == (event, record));
            let stream = state.streams.iter().position(|s| s.iter().any(records));
            let stream = stream.expect("a record that was asked for lies in a stream");
            if !self.step(state, stream)? {
                let Some(&Work::Wait(other, at)) = state.streams[stream].front() else { unreachable!("it has work") };
                self.reach(state, other, at)?;
            }
        }
        Ok(())
    }

    fn handle(&self) -> Result<u64, DeviceError> {
        self.give()?;
        let mut state = self.state();
        state.handles += 1;
        Ok(state.handles)
    }
}

impl Driver for Emulated {
    fn enter(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn name(&self) -> String {
        "emulator".to_owned()
    }

    /// Kernels for special architectures are not emulated.
    fn capability(&self) -> (u32, u32) {
        (8, 0)
    }

    fn multiprocessors(&self) -> u32 {
        2
    }

    fn used_bytes(&self) -> u64 {
        self.state().used
    }

    fn free_bytes(&self) -> Result<u64, DeviceError> {
        Ok(1 << 32)
    }

    fn alloc(&self, bytes: u64) -> Result<u64, DeviceError> {
        self.give()?;
        // NaN everywhere: whoever reads what nobody wrote is noticed.
        let memory = vec![u128::MAX; bytes.div_ceil(16) as usize + 16].into_boxed_slice();
        let address = (memory.as_ptr() as u64).next_multiple_of(256);
        let mut state = self.state();
        state.used += bytes;
        state.memory.insert(address, memory);
        Ok(address)
    }

    fn free(&self, address: u64) {
        let mut state = self.state();
        let memory = state.memory.remove(&address);
        state.used -= memory.map_or(0, |m| (m.len() as u64 - 16) * 16).min(state.used);
    }

    fn alloc_host(&self, bytes: u64) -> Result<HostMemory, DeviceError> {
        self.give()?;
        let memory = vec![u128::MAX; bytes.div_ceil(16) as usize].into_boxed_slice();
        let address = memory.as_ptr() as *mut u8;
        self.state().memory.insert(address as u64, memory);
        Ok(HostMemory { address, bytes })
    }

    fn free_host(&self, memory: HostMemory) {
        self.state().memory.remove(&(memory.address as u64));
    }

    fn kernel(&self, name: &str, _shared_bytes: u32) -> Result<Kernel, DeviceError> {
        let name = CString::new(name).map_err(|_| DeviceError::Misuse("a kernel's name with a zero in it"))?;
        let mut state = self.state();
        state.kernels.push(name);
        Ok(Kernel(state.kernels.len() as u64 - 1))
    }

    fn launch(&self, stream: Stream, kernel: Kernel, launch: &Launch) -> Result<(), DeviceError> {
        let name = self.state().kernels[kernel.0 as usize].clone();
        self.push(stream, Work::Launch(name, Box::new(*launch)))
    }

    fn copy_in(&self, stream: Stream, to: u64, from: *const u8, bytes: u64) -> Result<(), DeviceError> {
        self.push(stream, Work::Copy { to, from: from as u64, bytes })
    }

    fn copy_out(&self, stream: Stream, to: *mut u8, from: u64, bytes: u64) -> Result<(), DeviceError> {
        self.push(stream, Work::Copy { to: to as u64, from, bytes })
    }

    fn copy(&self, stream: Stream, to: u64, from: u64, bytes: u64) -> Result<(), DeviceError> {
        self.push(stream, Work::Copy { to, from, bytes })
    }

    fn set(&self, stream: Stream, to: u64, value: u8, bytes: u64) -> Result<(), DeviceError> {
        self.push(stream, Work::Set { to, value, bytes })
    }

    fn event(&self, _timed: bool) -> Result<Event, DeviceError> {
        let event = self.handle()?;
        self.state().events.insert(event, (0, 0));
        Ok(Event(event))
    }

    fn free_event(&self, event: Event) {
        self.state().events.remove(&event.0);
    }

    fn record(&self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        let record = {
            let mut state = self.state();
            let asked = &mut state.events.get_mut(&event.0).expect("an event of this driver").0;
            *asked += 1;
            *asked
        };
        self.push(stream, Work::Record(event.0, record))
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        let record = self.state().events[&event.0].0;
        self.push(stream, Work::Wait(event.0, record))
    }

    fn is_done(&self, event: Event) -> bool {
        let (asked, reached) = self.state().events[&event.0];
        reached == asked
    }

    fn wait_host(&self, event: Event) -> Result<(), DeviceError> {
        let mut state = self.state();
        let record = state.events[&event.0].0;
        self.reach(&mut state, event.0, record)
    }

    fn elapsed_ms(&self, _from: Event, _to: Event) -> Result<f32, DeviceError> {
        Ok(1.0)
    }

    fn synchronize(&self, stream: Stream) -> Result<(), DeviceError> {
        self.drain(&mut self.state(), stream as usize)
    }

    fn begin_graph(&self) -> Result<(), DeviceError> {
        self.state().recording = Some(Vec::new());
        Ok(())
    }

    fn end_graph(&self) -> Result<Graph, DeviceError> {
        let recording = self.state().recording.take().ok_or(DeviceError::Misuse("no graph was begun"))?;
        let graph = self.handle()?;
        let mut state = self.state();
        state.graphs.insert(graph, recording);
        Ok(Graph(graph))
    }

    fn launch_graph(&self, graph: Graph) -> Result<(), DeviceError> {
        let recording = self.state().graphs[&graph.0].clone();
        recording.into_iter().try_for_each(|work| self.push(Stream::Compute, work))
    }

    fn free_graph(&self, graph: Graph) {
        self.state().graphs.remove(&graph.0);
    }
}
