//! The memory map as a user reads it.

use std::path::Path;

use crate::common::{Fake, Shape};
use tailrace_plan::{Limits, Plan};
use tailrace_types::BLOCK_CELLS;

/// Compares with a file of `golden/plan`; `UPDATE_GOLDEN=1` writes it instead.
fn compare(name: &str, shape: &Shape, limits: &Limits) {
    let plan = Plan::new(&shape.spec(), limits, &Fake::SMALL).expect("a plan");
    let table = plan.memory.to_string();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/plan").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &table).expect("the golden file can be written");
    }
    let golden = std::fs::read_to_string(&path).expect("the golden file is there; UPDATE_GOLDEN=1 writes it");
    assert_eq!(table, golden, "{name} differs; UPDATE_GOLDEN=1 accepts the change");
}

#[test]
fn resident() {
    compare("resident.txt", &Shape::global(4), &Limits::new(16 * BLOCK_CELLS));
}

#[test]
fn spilled() {
    let limits = Limits { sequences: 2, window_cells: Some(1000), ..Limits::new(64 * BLOCK_CELLS) };
    compare("spilled.txt", &Shape::mixed(12, 512), &limits);
}
