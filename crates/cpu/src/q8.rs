//! Activations in 8 bits: the one format that all products with quantised weights read.

/// 32 consecutive values of a row: `values[i] * scale`, about 0.4 % of the largest apart.
///
/// A row of `K` values is `K / 32` of these. The sums serve weights whose codes have an offset or a minimum.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Q8Block {
    /// -127 ..= 127.
    pub values: [i8; 32],
    /// Largest magnitude / 127; 0 for values too small to divide by.
    pub scale: f32,
    /// `scale` times the sum of `values`.
    pub scaled_sum: f32,
    /// Sums of the first and of the last 16 `values`.
    pub sums: [i16; 2],
}

/// Values in a [`Q8Block`].
pub const Q8_VALUES: usize = 32;

/// Bytes of a [`Q8Block`].
pub const Q8_BYTES: usize = size_of::<Q8Block>();

/// Blocks whose largest magnitude lies below this (2^-100) become zeros: its reciprocal would overflow.
pub(crate) const SMALLEST_AMAX: f32 = 7.888_609e-31;

/// Bytes of a row of `k` values.
///
/// # Panics
/// If `k` is no multiple of 32.
pub const fn q8_row_bytes(k: usize) -> usize {
    assert!(k.is_multiple_of(Q8_VALUES), "rows of whole blocks");
    k / Q8_VALUES * Q8_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(Q8_BYTES, 44);
        assert_eq!(q8_row_bytes(576), 18 * 44);
        assert_eq!(SMALLEST_AMAX, 2f32.powi(-100));
    }
}
