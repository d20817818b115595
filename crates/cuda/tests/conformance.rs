//! The table of op cases on the emulated device.

#![cfg(feature = "emulator")]

use std::sync::Arc;

use tailrace_cpu::naive::NaiveLoader;
use tailrace_cuda::CudaLoader;
use tailrace_cuda::driver::emulated::{Emulated, Order};
use tailrace_device::conformance::{Precision, Reference, cases, failures, row_law, row_law_cases};

fn device() -> CudaLoader {
    CudaLoader::on(Arc::new(Emulated::new(Order::LinkFirst))).with_short_ring()
}

#[test]
fn quick_cases() {
    let device = device();
    let (cases, mut reference) = (cases(), Reference::new(&NaiveLoader));
    let quick = cases.iter().filter(|case| case.quick);
    let failures = failures(quick, &device, &mut reference, Precision::TensorCores);
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn rows_have_the_same_bits_whatever_is_computed_with_them() {
    let device = device();
    for mut group in row_law_cases() {
        group.retain(|case| case.quick || case.rows == 128);
        assert_eq!(row_law(&group, &device).expect("it runs"), None);
    }
}
