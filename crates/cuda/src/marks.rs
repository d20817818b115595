//! Events at numbered points of a stream, in order.

use std::collections::VecDeque;
use std::sync::Arc;

use tailrace_device::DeviceError;

use crate::driver::owned::Owned;
use crate::driver::{Driver, Event, Stream};

/// Marks that one stream leaves, each after the work up to some number, for another stream to wait for.
///
/// Events are used in turn. The pool must be as large as the number of marks that can matter at once; an older one is then
/// covered by those after it.
pub(crate) struct Marks {
    from: Stream,
    to: Stream,
    events: Vec<Owned<Event>>,
    next: usize,
    marks: VecDeque<(u64, usize)>,
    /// Number of the last mark.
    recorded: u64,
    /// Number that the other stream is known to wait for.
    reached: u64,
}

impl Marks {
    /// Marks left by `from` for `to`, of which `count` matter at once.
    pub(crate) fn new(driver: &Arc<dyn Driver>, from: Stream, to: Stream, count: usize) -> Result<Self, DeviceError> {
        let events = (0..count.max(1)).map(|_| Owned::event(driver, false)).collect::<Result<_, _>>()?;
        Ok(Marks { from, to, events, next: 0, marks: VecDeque::with_capacity(count.max(1)), recorded: 0, reached: 0 })
    }

    /// Number of the last mark.
    pub(crate) fn recorded(&self) -> u64 {
        self.recorded
    }

    /// Marks that the work up to number `end` has been given to the stream.
    pub(crate) fn record(&mut self, driver: &dyn Driver, end: u64) -> Result<(), DeviceError> {
        if self.marks.len() == self.events.len() {
            self.marks.pop_front();
        }
        driver.record(self.from, *self.events[self.next])?;
        self.recorded = end;
        self.marks.push_back((end, self.next));
        self.next = (self.next + 1) % self.events.len();
        Ok(())
    }

    /// Lets the other stream wait until the work up to number `end` is done. What was waited for before is not waited for again.
    pub(crate) fn wait(&mut self, driver: &dyn Driver, end: u64) -> Result<(), DeviceError> {
        let mut last = None;
        while self.reached < end
            && let Some((mark, event)) = self.marks.pop_front()
        {
            (self.reached, last) = (mark, Some(event));
        }
        match last {
            // What is done need not be waited for, which would keep kernels from overlapping.
            Some(event) if !driver.is_done(*self.events[event]) => driver.wait(self.to, *self.events[event]),
            _ => Ok(()),
        }
    }
}
