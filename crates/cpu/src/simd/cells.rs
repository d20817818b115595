//! Storage types of keys and values, as the kernels read and write them: a type is one implementation of [`Cells`] and one
//! line of [`with_cells`].

use half::{bf16, f16};
use tailrace_types::KvType;

use super::isa::Isa;
use super::lanes::{LANES, Lanes, lanes_kernel};

/// A storage type. Elements are numbered from the start of a row of cells.
pub(super) trait Cells {
    /// Bytes of an element.
    const BYTES: usize;

    /// `n <= 16` values from the `element`-th on, zeros in the other lanes.
    ///
    /// # Safety
    /// The processor has the instructions of `L` (so for every function), and the named elements are readable; no pointer
    /// needs alignment.
    unsafe fn load<L: Lanes>(from: *const u8, element: usize, n: usize) -> L;

    /// The columns of the 16 x 16 values whose row `i` starts at element `first + i * stride`.
    ///
    /// # Safety
    /// The rows are readable.
    #[inline(always)]
    unsafe fn load_columns<L: Lanes>(from: *const u8, first: usize, stride: usize) -> [L; LANES] {
        // SAFETY: the caller's contract.
        unsafe {
            let mut rows = [L::zero(); LANES];
            for (i, row) in rows.iter_mut().enumerate() {
                *row = Self::load(from, first + i * stride, LANES);
            }
            L::transpose(rows)
        }
    }

    /// Writes the first `n <= 16` values from the `element`-th on, rounded to nearest even.
    ///
    /// # Safety
    /// The named elements are writable.
    unsafe fn store<L: Lanes>(values: L, to: *mut u8, element: usize, n: usize);
}

/// 32-bit floats.
pub(super) struct F32;

impl Cells for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const u8, element: usize, n: usize) -> L {
        // SAFETY: the caller's contract.
        unsafe {
            match n {
                LANES => L::load(from.cast::<f32>().add(element)),
                _ => L::load_first(from.cast::<f32>().add(element), n),
            }
        }
    }

    #[inline(always)]
    unsafe fn store<L: Lanes>(values: L, to: *mut u8, element: usize, n: usize) {
        // SAFETY: the caller's contract.
        unsafe { values.store_first(to.cast::<f32>().add(element), n) }
    }
}

/// 16-bit floats.
pub(super) struct F16;

impl Cells for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const u8, element: usize, n: usize) -> L {
        // SAFETY: the caller's contract.
        unsafe {
            match n {
                LANES => L::load_f16(from.cast::<f16>().add(element)),
                _ => L::load_f16_first(from.cast::<f16>().add(element), n),
            }
        }
    }

    #[inline(always)]
    unsafe fn load_columns<L: Lanes>(from: *const u8, first: usize, stride: usize) -> [L; LANES] {
        // SAFETY: the caller's contract.
        unsafe { L::load_f16_columns(from.cast::<f16>().add(first), stride) }
    }

    #[inline(always)]
    unsafe fn store<L: Lanes>(values: L, to: *mut u8, element: usize, n: usize) {
        // SAFETY: the caller's contract.
        unsafe { values.store_f16_first(to.cast::<f16>().add(element), n) }
    }
}

/// The upper halves of 32-bit floats.
pub(super) struct Bf16;

impl Cells for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const u8, element: usize, n: usize) -> L {
        // SAFETY: the caller's contract.
        unsafe {
            match n {
                LANES => L::load_bf16(from.cast::<bf16>().add(element)),
                _ => L::load_bf16_first(from.cast::<bf16>().add(element), n),
            }
        }
    }

    #[inline(always)]
    unsafe fn load_columns<L: Lanes>(from: *const u8, first: usize, stride: usize) -> [L; LANES] {
        // SAFETY: the caller's contract.
        unsafe { L::load_bf16_columns(from.cast::<bf16>().add(first), stride) }
    }

    #[inline(always)]
    unsafe fn store<L: Lanes>(values: L, to: *mut u8, element: usize, n: usize) {
        // SAFETY: the caller's contract.
        unsafe { values.store_bf16_first(to.cast::<bf16>().add(element), n) }
    }
}

/// Runs `$call` with the type `$cells` that implements the storage type `$ty`.
macro_rules! with_cells {
    ($ty:expr, $cells:ident => $call:expr) => {
        match $ty {
            ::tailrace_types::KvType::F16 => with_cells!(@ $cells = F16, $call),
            ::tailrace_types::KvType::Bf16 => with_cells!(@ $cells = Bf16, $call),
            ::tailrace_types::KvType::F32 => with_cells!(@ $cells = F32, $call),
        }
    };
    (@ $cells:ident = $name:ident, $call:expr) => {{
        type $cells = $crate::simd::cells::$name;
        $call
    }};
}

pub(super) use with_cells;

/// Writes `values` as elements of a cell, rounded to nearest even.
///
/// # Panics
/// If `out` is not the bytes of as many elements.
pub fn store(isa: Isa, ty: KvType, values: &[f32], out: &mut [u8]) {
    assert_eq!(out.len() as u64, ty.row_bytes(values.len() as u32));
    // SAFETY: `out` has room for as many elements as there are values.
    with_cells!(ty, C => unsafe { store_row::<C>(isa, values.as_ptr(), out.as_mut_ptr(), values.len()) });
}

lanes_kernel! {
    fn store_row[C: Cells](x: *const f32, out: *mut u8, n: usize) = store_body[C];
}

/// # Safety
/// `x` holds `n` values and `out` has room for `n` elements.
#[inline(always)]
unsafe fn store_body<L: Lanes, C: Cells>(x: *const f32, out: *mut u8, n: usize) {
    for i in (0..n).step_by(LANES) {
        let left = (n - i).min(LANES);
        // SAFETY: i + left <= n.
        unsafe { C::store(L::load_first(x.add(i), left), out, i, left) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_round_like_half() {
        for isa in Isa::available() {
            for n in [1, 7, 15, 16, 17, 64, 100] {
                let x: Vec<f32> = (0..n).map(|i| (i as f32 - 40.0) * 0.037_3).collect();
                let rounded = |ty: KvType| {
                    let mut out = vec![0; ty.row_bytes(n as u32) as usize];
                    store(isa, ty, &x, &mut out);
                    out
                };
                let want: Vec<u8> = x.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect();
                assert_eq!(rounded(KvType::F16), want, "{isa:?} n = {n}");
                let want: Vec<u8> = x.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect();
                assert_eq!(rounded(KvType::Bf16), want, "{isa:?} n = {n}");
                let want: Vec<u8> = x.iter().flat_map(|&x| x.to_le_bytes()).collect();
                assert_eq!(rounded(KvType::F32), want, "{isa:?} n = {n}");
            }
        }
    }

    lanes_kernel! {
        fn load_row[C: Cells](from: *const u8, to: *mut f32) = load_body[C];
    }

    /// # Safety
    /// `from` holds 16 elements, and `to` has room for as many values.
    #[inline(always)]
    unsafe fn load_body<L: Lanes, C: Cells>(from: *const u8, to: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { C::load::<L>(from, 0, LANES).store(to) }
    }

    /// What dropped frames and consumed slots are filled with must be noticed wherever it is read.
    #[test]
    fn bytes_of_ones_are_no_numbers() {
        for isa in Isa::available() {
            for &ty in KvType::ALL {
                let mut values = [0.0; LANES];
                // SAFETY: no element is larger than 4 bytes.
                with_cells!(ty, C => unsafe { load_row::<C>(isa, [0xff; 4 * LANES].as_ptr(), values.as_mut_ptr()) });
                assert!(values.iter().all(|x| x.is_nan()), "{isa:?} {ty}");
            }
        }
    }

    #[test]
    fn element_sizes_are_those_of_the_types() {
        for &ty in KvType::ALL {
            assert_eq!(with_cells!(ty, C => C::BYTES) as u64, ty.row_bytes(1), "{ty}");
        }
    }
}
