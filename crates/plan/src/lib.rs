//! From a model and its limits to everything that a run will execute and every byte it will hold.

pub mod spec;

pub use spec::ModelSpec;
