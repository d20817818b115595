//! Products of packed weights with rows of activations: arguments and the choice of a kernel.

use std::marker::PhantomData;

use tailrace_types::WeightType;

use super::isa::Isa;
use super::quantize::Q8Rows;
use super::{matmul_f32 as f32_kernels, matmul_q8 as q8_kernels};
use crate::pack::{ROWS, group_bytes};

/// A range of packed groups of a matrix.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    pub(super) ty: WeightType,
    pub(super) k: usize,
    pub(super) bytes: &'a [u8],
    pub(super) group_bytes: usize,
}

impl<'a> Weights<'a> {
    /// Whole groups of rows of `k` values of type `ty`, as made by [`pack_rows`](crate::pack::pack_rows).
    ///
    /// # Panics
    /// If `k` is zero or no whole number of blocks, or the bytes are no whole number of groups.
    pub fn new(ty: WeightType, k: usize, bytes: &'a [u8]) -> Self {
        let group_bytes = group_bytes(ty, k).expect("rows of whole blocks");
        assert!(k > 0 && bytes.len().is_multiple_of(group_bytes), "whole groups");
        Weights { ty, k, bytes, group_bytes }
    }

    /// Bytes of one group, at least 1.
    pub fn group_bytes(&self) -> usize {
        self.group_bytes
    }

    /// Number of groups.
    pub fn groups(&self) -> usize {
        self.bytes.len() / self.group_bytes
    }

    /// The packed groups.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Groups `range` of these.
    pub fn slice(&self, range: std::ops::Range<usize>) -> Self {
        let bytes = &self.bytes[range.start * self.group_bytes..range.end * self.group_bytes];
        Weights { bytes, ..*self }
    }

    /// Group `group`.
    pub(super) fn group(&self, group: usize) -> &'a [u8] {
        &self.bytes[group * self.group_bytes..][..self.group_bytes]
    }
}

/// The part of a row-major matrix of `f32` that a product writes: all its rows, some of its columns.
#[derive(Debug)]
pub struct Columns<'a> {
    first: *mut f32,
    rows: usize,
    columns: usize,
    stride: usize,
    matrix: PhantomData<&'a mut [f32]>,
}

// SAFETY: a `Columns` is an exclusive borrow of its elements, like `&mut [f32]`.
unsafe impl Send for Columns<'_> {}

impl<'a> Columns<'a> {
    /// Columns `range` of a matrix with rows of `stride` values.
    ///
    /// # Panics
    /// If the matrix is no whole number of rows or the range does not lie in a row.
    pub fn new(matrix: &'a mut [f32], stride: usize, range: std::ops::Range<usize>) -> Self {
        assert!(stride > 0 && matrix.len().is_multiple_of(stride), "whole rows");
        assert!(range.start <= range.end && range.end <= stride, "columns of a row");
        // SAFETY: the matrix is borrowed for 'a, and the range lies in each of its rows.
        unsafe {
            let first = matrix.as_mut_ptr().add(range.start);
            Self::from_raw(first, matrix.len() / stride, range.len(), stride)
        }
    }

    /// `columns` values at `first`, and as many at every multiple of `stride` behind it, for `rows` rows.
    ///
    /// # Safety
    /// For `'a` the values are initialised, writable and used through this value alone; values between
    /// them may be in use elsewhere, by other threads too.
    pub unsafe fn from_raw(first: *mut f32, rows: usize, columns: usize, stride: usize) -> Self {
        Columns { first, rows, columns, stride, matrix: PhantomData }
    }

    /// The same columns, for a shorter time.
    pub fn reborrow(&mut self) -> Columns<'_> {
        Columns { ..*self }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The values of `row` from `column` on, and how many of 16 are inside.
    pub(super) fn at(&mut self, row: usize, column: usize) -> (*mut f32, usize) {
        assert!(row < self.rows && column < self.columns, "inside the matrix");
        // SAFETY: the element lies inside the matrix.
        let at = unsafe { self.first.add(row * self.stride + column) };
        (at, (self.columns - column).min(ROWS))
    }
}

/// What happens to a product before it is stored: `y = x W (+ bias) (+ y)`, in that order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// Added to every row; one value for each column.
    pub bias: Option<&'a [f32]>,
    /// Whether the product is added to what is there instead of replacing it.
    pub accumulate: bool,
}

/// Checks that the parts of a product fit together.
fn check(w: &Weights<'_>, x: (usize, usize), y: &Columns<'_>, epilogue: &Epilogue<'_>) {
    assert_eq!(x, (y.rows(), w.k), "activations of the product's shape");
    assert!(y.columns().div_ceil(ROWS) == w.groups(), "a group for every 16 columns");
    let bias = epilogue.bias.is_none_or(|bias| bias.len() == y.columns());
    assert!(bias, "a bias for every column");
}

/// Multiplies quantised activations by quantised weights.
///
/// Column `n` of `y` is output row `n` of `w`. Each element is a sum over units of 32 values of `k`,
/// ascending, of exact integer products that are scaled and added by fused multiply-adds; its bits do not
/// depend on how many rows or groups a call has.
///
/// # Panics
/// If the shapes do not fit together or `w` is a float type.
pub fn matmul_q8(isa: Isa, w: &Weights<'_>, x: Q8Rows<'_>, y: Columns<'_>, epilogue: Epilogue<'_>) {
    check(w, (x.rows(), x.k()), &y, &epilogue);
    assert!(!w.ty.is_float(), "float weights take float activations");
    q8_kernels::product(isa, q8_kernels::Product { w: *w, x, y, epilogue });
}

/// Multiplies `f32` activations, rows of exactly `k` values, by weights of any type.
///
/// Column `n` of `y` is output row `n` of `w`. Each element is a chain of fused multiply-adds over `k`,
/// ascending, of the values that [`unpack_row`](super::unpack::unpack_row) gives; its bits do not depend
/// on how many rows or groups a call has.
///
/// # Panics
/// If the shapes do not fit together.
pub fn matmul_f32(isa: Isa, w: &Weights<'_>, x: &[f32], y: Columns<'_>, epilogue: Epilogue<'_>) {
    check(w, (x.len() / w.k, w.k), &y, &epilogue);
    assert!(x.len().is_multiple_of(w.k), "whole rows");
    f32_kernels::product(isa, f32_kernels::Product { w: *w, x, y, epilogue });
}
