//! Tests of plans as a whole, over random models, devices and limits.

mod common;
mod fit;
mod limits;
mod table;
