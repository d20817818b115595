//! The table of op cases, on every instruction set against the naive executor.

use tailrace_cpu::naive::NaiveLoader;
use tailrace_cpu::simd::isa::IsaLevel;
use tailrace_cpu::{CpuLoader, Isa};
use tailrace_device::conformance::{Case, Precision, cases, check, row_law, row_law_cases};

/// All cases run on the fastest level and on AVX2, whose tiles differ; the others share their parts.
fn suits(isa: Isa, case: &Case) -> bool {
    case.quick || isa == Isa::detect() || isa.level() == IsaLevel::Avx2
}

#[test]
fn every_case_on_every_instruction_set() {
    let mut failures = Vec::new();
    for isa in Isa::available() {
        let device = CpuLoader::new(2, isa);
        for case in cases().iter().filter(|case| suits(isa, case)) {
            let name = format!("{} on {}", case.name, isa.level().name());
            match check(case, &device, &NaiveLoader, Precision::Single) {
                Ok(checked) => {
                    let wrong = checked.iter().filter(|checked| !checked.holds());
                    failures.extend(wrong.map(|checked| format!("{name}: {checked}")));
                }
                Err(error) => failures.push(format!("{name}: {error}")),
            }
        }
    }
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn rows_have_the_same_bits_whatever_is_computed_with_them() {
    for isa in [Isa::PORTABLE, Isa::detect()] {
        let device = CpuLoader::new(2, isa);
        for group in row_law_cases() {
            let differs = row_law(&group, &device).expect("it runs");
            assert_eq!(differs, None, "{}", isa.level().name());
        }
    }
}
