//! Events and graphs that go with their owner, also where making the rest of it fails.

use std::ops::Deref;
use std::sync::Arc;

use tailrace_device::DeviceError;

use super::{Driver, Event, Graph};

/// What a driver makes and must be told to destroy.
pub(crate) trait Handle: Copy {
    fn free(self, driver: &dyn Driver);
}

impl Handle for Event {
    fn free(self, driver: &dyn Driver) {
        driver.free_event(self);
    }
}

impl Handle for Graph {
    fn free(self, driver: &dyn Driver) {
        driver.free_graph(self);
    }
}

/// A handle of an owner.
pub(crate) struct Owned<H: Handle> {
    driver: Arc<dyn Driver>,
    handle: H,
}

impl<H: Handle> Owned<H> {
    pub(crate) fn new(driver: &Arc<dyn Driver>, handle: H) -> Self {
        Owned { driver: Arc::clone(driver), handle }
    }
}

impl Owned<Event> {
    /// A new event; `timed` as in [`Driver::event`].
    pub(crate) fn event(driver: &Arc<dyn Driver>, timed: bool) -> Result<Self, DeviceError> {
        Ok(Owned::new(driver, driver.event(timed)?))
    }
}

impl<H: Handle> Deref for Owned<H> {
    type Target = H;

    fn deref(&self) -> &H {
        &self.handle
    }
}

impl<H: Handle> Drop for Owned<H> {
    fn drop(&mut self) {
        self.handle.free(&*self.driver);
    }
}
