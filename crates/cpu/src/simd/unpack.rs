//! Values of packed weights as `f32`.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

use tailrace_types::WeightType;

use super::dispatch::{Kernel, run};
use super::dot::Simd;
use super::isa::Isa;
use super::lanes::{LANES, Lanes};
use super::matmul::Weights;
use super::weights::{self, Float, Shape, Weight, block_bytes, units, with_weight};

/// Values of `k` that are unpacked at a time: whole blocks of every type.
pub(super) const PANEL_K: usize = 256;

/// Values of a group as `[k][16]`.
pub(super) type Values = [[f32; LANES]; PANEL_K];

/// Unpacks a group's values for `k` in `range`, at most [`PANEL_K`] of them. The range starts at a
/// multiple of 256 and ends at another or at the end of the row.
///
/// # Safety
/// `group` is a packed group of type `ty` whose rows hold `range`; `to` is writable for its values.
pub(super) unsafe fn fill(isa: Isa, ty: WeightType, group: &[u8], range: Range<usize>, to: *mut Values) {
    let to = to.cast::<f32>();
    macro_rules! floats {
        ($float:ty) => {
            run(isa, FillFloats::<$float> { group, range, to, of: PhantomData })
        };
    }
    with_weight!(
        ty, W => run(isa, Fill::<W> { group, range, to, of: PhantomData }),
        else => match ty {
            WeightType::F16 => floats!(weights::F16),
            WeightType::BF16 => floats!(weights::BF16),
            _ => floats!(weights::F32),
        }
    );
}

/// [`fill`] for quantised weights: `d * code`, rounded, then plus the minimum, as the formats say.
struct Fill<'a, W> {
    group: &'a [u8],
    range: Range<usize>,
    to: *mut f32,
    of: PhantomData<W>,
}

impl<W: Weight> Kernel for Fill<'_, W> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let elements = 32 * units::<W>();
        let mut to = self.to;
        for b in self.range.start / elements..self.range.end / elements {
            for u in 0..units::<W>() {
                // SAFETY: the contract of `fill`: the block is in the group, its values have room.
                unsafe {
                    let block = self.group.as_ptr().add(b * block_bytes::<W>());
                    let unit = W::unit::<S>(block, u);
                    for q in 0..8 {
                        let (scale, min) = (unit.scale[q / 4], unit.min[q / 4]);
                        let quad = S::lanes(unit.quads[q]);
                        for j in 0..4 {
                            let code = S::ints_right(quad, 8 * j, 255);
                            let code = S::ints_add(code, -i32::from(W::OFFSET));
                            let mut value = S::to_f32(code).mul(scale);
                            if W::Shape::MIN {
                                value = value.add(min);
                            }
                            value.store(to);
                            to = to.add(LANES);
                        }
                    }
                }
            }
        }
    }
}

/// [`fill`] for float weights.
struct FillFloats<'a, T> {
    group: &'a [u8],
    range: Range<usize>,
    to: *mut f32,
    of: PhantomData<T>,
}

impl<T: Float> Kernel for FillFloats<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (i, k) in self.range.enumerate() {
            // SAFETY: the contract of `fill`.
            unsafe { T::at::<S::F>(self.group.as_ptr(), k).store(self.to.add(LANES * i)) };
        }
    }
}

/// Writes row `row` of group `group` of `w` as `k` values, exactly those of the file's row.
///
/// All 16 rows are unpacked and one is kept: a gather reads few rows, so the arithmetic that is thrown
/// away costs less than a layout that serves both rows and products would.
///
/// # Panics
/// If there is no such row or `out` has not `k` values.
pub fn unpack_row(isa: Isa, w: &Weights<'_>, (group, row): (usize, usize), out: &mut [f32]) {
    assert!(row < LANES && out.len() == w.k, "a row of `k` values");
    let group = w.group(group);
    let mut values = MaybeUninit::<Values>::uninit();
    for (part, out) in out.chunks_mut(PANEL_K).enumerate() {
        let first = part * PANEL_K;
        // SAFETY: a part starts at a multiple of 256; as many values are read as were filled.
        let values = unsafe {
            fill(isa, w.ty, group, first..first + out.len(), values.as_mut_ptr());
            std::slice::from_raw_parts(values.as_ptr().cast::<[f32; LANES]>(), out.len())
        };
        for (out, lanes) in out.iter_mut().zip(values) {
            *out = lanes[row];
        }
    }
}
