//! How a weight matrix lies in device memory.
//!
//! A GGUF block mixes fields of different widths (a Q6_K block is 210 bytes), so that in a file neighbouring codes are neither
//! aligned nor adjacent. On the device each field of the block is a *plane* of its own, `[rows][blocks of a row][field bytes]`,
//! with the codes first. The bytes inside a field are those of the file, but for codes of `Q4_K` and `Q5_K`, which are gathered by
//! groups of 32 (`kernels/weights.cuh`); no byte is added but between planes.

use tailrace_types::WeightType;

/// Every plane begins at a multiple of this many bytes.
pub const PLANE_ALIGN: u64 = 256;

/// The most planes that a type has.
pub const PLANES_MAX: usize = 4;

/// One field of every block of a matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plane {
    /// First byte, from the matrix's first.
    pub offset: u64,
    /// Bytes of the field in one block.
    pub block_bytes: u32,
    /// Offset of the field in the file's block.
    pub field_offset: u32,
}

/// The planes of a matrix, in the order of their offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planes {
    planes: [Plane; PLANES_MAX],
    count: usize,
}

impl Planes {
    /// Device addresses of the planes of a matrix at `base`; 0 for those that the type does not have.
    pub fn addresses(&self, base: u64) -> [u64; PLANES_MAX] {
        let mut addresses = [0; PLANES_MAX];
        for (address, plane) in addresses.iter_mut().zip(self.iter()) {
            *address = base + plane.offset;
        }
        addresses
    }
}

impl std::ops::Deref for Planes {
    type Target = [Plane];

    fn deref(&self) -> &[Plane] {
        &self.planes[..self.count]
    }
}

/// Fields of a block of type `ty`, each as (bytes, offset in the file's block): the order of the planes.
const fn fields(ty: WeightType) -> &'static [(u32, u32)] {
    match ty {
        WeightType::F32 => &[(4, 0)],
        WeightType::F16 | WeightType::BF16 => &[(2, 0)],
        // Codes; then d, or d and m.
        WeightType::Q8_0 => &[(32, 2), (2, 0)],
        WeightType::Q4_0 | WeightType::IQ4_NL => &[(16, 2), (2, 0)],
        WeightType::Q4_1 => &[(16, 4), (4, 0)],
        WeightType::MXFP4 => &[(16, 1), (1, 0)],
        // Codes, fifth bits; then d, or d and m.
        WeightType::Q5_0 => &[(16, 6), (4, 2), (2, 0)],
        WeightType::Q5_1 => &[(16, 8), (4, 4), (4, 0)],
        // Codes, their high bits where the type has them, scales of sub-blocks; then d, or d and dmin.
        WeightType::Q2_K => &[(64, 16), (16, 0), (4, 80)],
        WeightType::Q3_K => &[(64, 32), (32, 0), (12, 96), (2, 108)],
        WeightType::Q4_K => &[(128, 16), (12, 4), (4, 0)],
        WeightType::Q5_K => &[(128, 48), (32, 16), (12, 4), (4, 0)],
        WeightType::Q6_K => &[(128, 0), (64, 128), (16, 192), (2, 208)],
        // Codes, low bits of scales, high bits of scales, d.
        WeightType::IQ4_XS => &[(128, 8), (4, 4), (2, 2), (2, 0)],
    }
}

/// The planes of a matrix of `rows` rows of `cols` values, a whole number of blocks.
pub fn planes(ty: WeightType, rows: u64, cols: u64) -> Planes {
    lay_out(ty, rows, cols).0
}

/// Bytes that a matrix takes, a multiple of [`PLANE_ALIGN`].
pub fn matrix_bytes(ty: WeightType, rows: u64, cols: u64) -> u64 {
    lay_out(ty, rows, cols).1
}

/// The planes and the end of the last one.
fn lay_out(ty: WeightType, rows: u64, cols: u64) -> (Planes, u64) {
    let fields = fields(ty);
    let blocks = rows * (cols / u64::from(ty.block().elements));
    let mut planes = [Plane::default(); PLANES_MAX];
    let mut end = 0;
    for (plane, &(block_bytes, field_offset)) in planes.iter_mut().zip(fields) {
        *plane = Plane { offset: end, block_bytes, field_offset };
        end += (blocks * u64::from(block_bytes)).next_multiple_of(PLANE_ALIGN);
    }
    (Planes { planes, count: fields.len() }, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_every_type_cover_its_block_once() {
        for &ty in WeightType::ALL {
            let mut covered = vec![0; ty.block().bytes as usize];
            for plane in planes(ty, 1, u64::from(ty.block().elements)).iter() {
                let first = plane.field_offset as usize;
                covered[first..first + plane.block_bytes as usize].iter_mut().for_each(|count| *count += 1);
            }
            assert!(covered.iter().all(|&count| count == 1), "{ty}: {covered:?}");
        }
    }

    #[test]
    fn planes_are_aligned_and_do_not_overlap() {
        for &ty in WeightType::ALL {
            for (rows, blocks) in [(1, 1), (3, 5), (128, 20), (151_936, 28)] {
                let cols = blocks * u64::from(ty.block().elements);
                let mut end = 0;
                for plane in planes(ty, rows, cols).iter() {
                    assert_eq!(plane.offset % PLANE_ALIGN, 0);
                    assert!(plane.offset >= end, "{ty}: a plane begins inside the one before it");
                    end = plane.offset + rows * blocks * u64::from(plane.block_bytes);
                }
                let total = matrix_bytes(ty, rows, cols);
                assert!(end <= total && total - end < PLANE_ALIGN);
            }
        }
    }

    #[test]
    fn a_matrix_of_q4_k() {
        let planes = planes(WeightType::Q4_K, 5, 512);
        let expected = [(0, 128, 16), (1280, 12, 4), (1536, 4, 0)];
        let found: Vec<_> = planes.iter().map(|p| (p.offset, p.block_bytes, p.field_offset)).collect();
        assert_eq!(found, expected);
        assert_eq!(matrix_bytes(WeightType::Q4_K, 5, 512), 1792);
        assert_eq!(planes.addresses(1 << 20), [1 << 20, (1 << 20) + 1280, (1 << 20) + 1536, 0]);
    }
}
