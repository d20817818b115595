//! Bytes of well-known models.

use tailrace_measure::{kv_bytes, weight_bytes};
use tailrace_models::shapes;
use tailrace_plan::Limits;

#[test]
fn a_step_reads_all_matrices_but_an_untied_embedding() {
    let bytes = |shape: &str| weight_bytes(&shapes::read(shape).expect("a shape").spec) as f64;
    assert!((bytes("qwen2.5-14b:q8_0") / 14.87e9 - 1.0).abs() < 0.005);
    // Tied: the embedding is the head, and read as such.
    assert!((bytes("smollm2-135m:f16") / (2.0 * 134.5e6) - 1.0).abs() < 0.005);
}

#[test]
fn a_step_reads_the_cells_that_it_sees() {
    let limits = Limits::new(4096);
    let qwen = shapes::read("qwen2.5-14b:q8_0").expect("a shape").spec;
    // 48 layers x (K and V) x 8 heads x 128 elements x 2 bytes.
    assert_eq!(kv_bytes(&qwen, &limits, 999, 1), 1000 * 48 * 2 * 8 * 128 * 2);
    let gemma = shapes::read("gemma3-1b:q8_0").expect("a shape").spec;
    // 26 layers of one head of 256; every sixth is global, the others see 512 cells.
    let cell = 2 * 256 * 2;
    assert_eq!(kv_bytes(&gemma, &limits, 2999, 1), (4 * 3000 + 22 * 512) * cell);
    assert_eq!(kv_bytes(&gemma, &limits, 99, 1), 26 * 100 * cell);
    assert_eq!(kv_bytes(&gemma, &limits, 2000, 100), (4 * 2100 + 22 * 611) * cell);
}
