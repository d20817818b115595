//! On a GPU, where there is one: the table of op cases, the row law, a long run, and what the kernels reach.

#[path = "../../engine/tests/common/golden.rs"]
mod models;

#[path = "common/long.rs"]
mod long;

use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tailrace_cpu::naive::NaiveLoader;
use tailrace_cuda::CudaLoader;
use tailrace_device::conformance::{Precision, Reference, bench, bench_cases, cases, failures, row_law, row_law_cases};

/// Held by the test that uses the card: one of them counts its memory.
static IN_USE: Mutex<()> = Mutex::new(());

/// The card, which is closed before the next test has it, or `None` and a line that says so.
fn card(test: &str) -> Option<(MutexGuard<'static, ()>, CudaLoader)> {
    match tailrace_cuda::available() {
        Ok(()) => {
            let in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
            Some((in_use, CudaLoader::open(0).expect("the card opens").with_short_ring()))
        }
        Err(reason) => {
            // Past the capture of output: a test that did not run says so.
            let _ = writeln!(std::io::stderr(), "skipped {test}: {reason}");
            None
        }
    }
}

#[test]
fn every_case() {
    let Some((_in_use, device)) = card("every_case") else { return };
    let failures = failures(&cases(), &device, &mut Reference::new(&NaiveLoader), Precision::TensorCores);
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn rows_have_the_same_bits_whatever_is_computed_with_them() {
    let Some((_in_use, device)) = card("rows_have_the_same_bits") else { return };
    for group in row_law_cases() {
        assert_eq!(row_law(&group, &device).expect("it runs"), None);
    }
}

#[test]
fn a_long_run_takes_no_more_memory_and_changes_no_bit() {
    let Some((_in_use, device)) = card("a_long_run") else { return };
    let length = long::Length { steps: 2000, counted: 100, between: 40, others: 1500 };
    long::check(&models::named("type-q8_0"), &device, length);
}

/// `cargo test --release -p tailrace-cuda --test card -- --ignored --nocapture`
#[test]
#[ignore = "a benchmark"]
fn rates_of_the_cases() {
    let Some((_in_use, device)) = card("rates_of_the_cases") else { return };
    for case in bench_cases() {
        match bench(&case, &device, Duration::from_millis(100)) {
            Ok(m) => println!(
                "{}: {:.1} us, {:.2} TB/s, {:.1} TFLOP/s",
                case.case.name,
                m.seconds * 1e6,
                m.bytes_per_second / 1e12,
                m.flops_per_second / 1e12
            ),
            Err(error) => println!("{}: {error}", case.case.name),
        }
    }
}
