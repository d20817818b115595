//! Events and graphs that go with their owner, also where making the rest of it fails.

use std::ops::Deref;
use std::sync::Arc;

use tailrace_device::DeviceError;

use super::{Driver, Event, Graph};

/// An event of an owner.
pub(crate) struct OwnedEvent {
    driver: Arc<dyn Driver>,
    event: Event,
}

impl OwnedEvent {
    /// A new event; `timed` as in [`Driver::event`].
    pub(crate) fn new(driver: &Arc<dyn Driver>, timed: bool) -> Result<Self, DeviceError> {
        Ok(OwnedEvent { event: driver.event(timed)?, driver: Arc::clone(driver) })
    }
}

impl Deref for OwnedEvent {
    type Target = Event;

    fn deref(&self) -> &Event {
        &self.event
    }
}

impl Drop for OwnedEvent {
    fn drop(&mut self) {
        self.driver.free_event(self.event);
    }
}

/// A graph of an owner.
pub(crate) struct OwnedGraph {
    driver: Arc<dyn Driver>,
    graph: Graph,
}

impl OwnedGraph {
    pub(crate) fn new(driver: &Arc<dyn Driver>, graph: Graph) -> Self {
        OwnedGraph { driver: Arc::clone(driver), graph }
    }
}

impl Deref for OwnedGraph {
    type Target = Graph;

    fn deref(&self) -> &Graph {
        &self.graph
    }
}

impl Drop for OwnedGraph {
    fn drop(&mut self) {
        self.driver.free_graph(self.graph);
    }
}
