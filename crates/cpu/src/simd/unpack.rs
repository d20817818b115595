//! Values of packed weights as `f32`.

use half::{bf16, f16};
use tailrace_types::WeightType;

use super::dispatch::{Kernel, run};
use super::dot::Simd;
use super::isa::Isa;
use super::lanes::{LANES, Lanes};
use super::matmul::Weights;
use super::weights::{self, Shape, Weight, block_bytes, units};
use std::marker::PhantomData;

/// Values of unit `u` of a packed block as `[32][16]`, rounded as the format's definition says:
/// `d * code`, then plus the minimum.
///
/// # Safety
/// As [`Weight::unit`]; `to` is writable for 512 values.
#[inline(always)]
pub(super) unsafe fn unit_values<S: Simd, W: Weight>(block: *const u8, u: usize, to: *mut f32) {
    // SAFETY: the caller's contract.
    unsafe {
        let unit = W::unit::<S>(block, u);
        for q in 0..8 {
            let (scale, min) = (unit.scale[q / 4], unit.min[q / 4]);
            let quad = S::lanes(unit.quads[q]);
            for j in 0..4 {
                let code = S::ints_right(quad, 8 * j as u32, 255);
                let value = S::to_f32(S::ints_add(code, -i32::from(W::OFFSET))).mul(scale);
                let value = if W::Shape::MIN {
                    value.add(min)
                } else {
                    value
                };
                value.store(to.add(LANES * (4 * q + j)));
            }
        }
    }
}

/// Writes row `row` of group `group` of `w` as `k` values, exactly those of the file's row.
///
/// # Panics
/// If there is no such row or `out` has not `k` values.
pub fn unpack_row(isa: Isa, w: &Weights<'_>, (group, row): (usize, usize), out: &mut [f32]) {
    assert!(row < LANES && out.len() == w.k, "a row of `k` values");
    let group = w.group(group);
    macro_rules! unpack {
        ($weight:ident) => {
            run(isa, UnpackRow::<weights::$weight> { group, row, out, of: PhantomData })
        };
    }
    match w.ty {
        WeightType::F32 => gather(group, row, out, f32::from_le_bytes),
        WeightType::F16 => gather(group, row, out, |bytes| f16::from_le_bytes(bytes).to_f32()),
        WeightType::BF16 => gather(group, row, out, |bytes| bf16::from_le_bytes(bytes).to_f32()),
        WeightType::Q4_0 => unpack!(Q4_0),
        WeightType::Q4_1 => unpack!(Q4_1),
        WeightType::Q5_0 => unpack!(Q5_0),
        WeightType::Q5_1 => unpack!(Q5_1),
        WeightType::Q8_0 => unpack!(Q8_0),
        WeightType::Q2_K => unpack!(Q2_K),
        WeightType::Q3_K => unpack!(Q3_K),
        WeightType::Q4_K => unpack!(Q4_K),
        WeightType::Q5_K => unpack!(Q5_K),
        WeightType::Q6_K => unpack!(Q6_K),
        WeightType::IQ4_NL => unpack!(IQ4_NL),
        WeightType::IQ4_XS => unpack!(IQ4_XS),
        WeightType::MXFP4 => unpack!(MXFP4),
    }
}

/// Lane `row` of values of `N` bytes.
fn gather<const N: usize>(
    group: &[u8],
    row: usize,
    out: &mut [f32],
    value: impl Fn([u8; N]) -> f32,
) {
    let values = group.as_chunks::<N>().0;
    for (out, lanes) in out.iter_mut().zip(values.as_chunks::<LANES>().0) {
        *out = value(lanes[row]);
    }
}

struct UnpackRow<'a, W> {
    group: &'a [u8],
    row: usize,
    out: &'a mut [f32],
    of: PhantomData<W>,
}

impl<W: Weight> Kernel for UnpackRow<'_, W> {
    type Output = ();

    /// Decodes all 16 rows a unit at a time and keeps one: a gather reads few rows, so the
    /// arithmetic that is thrown away costs less than a layout that serves both would.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut values = [[0.0; LANES]; 32];
        let outs = self.out.as_chunks_mut::<32>().0.iter_mut();
        for (index, out) in outs.enumerate() {
            let (b, u) = (index / units::<W>(), index % units::<W>());
            // SAFETY: the caller vouches for the instructions; the group has a unit for every 32 outputs.
            unsafe {
                let block = self.group.as_ptr().add(b * block_bytes::<W>());
                unit_values::<S, W>(block, u, values.as_mut_ptr().cast());
            }
            for (out, lanes) in out.iter_mut().zip(&values) {
                *out = lanes[self.row];
            }
        }
    }
}
