//! Launches of `kernels/matvec_*.cu`: weights x few rows of activations.

use tailrace_types::WeightType;

use super::Launch;
use crate::layout;
use crate::params::MatVecParams;

/// Rows that one launch computes from one pass over the weights.
pub const ROWS_MAX: u32 = 8;

const WARP: u32 = 32;
/// Warps of a block. There is one block for each multiprocessor.
const WARPS: u32 = 16;
/// Slots of a warp's ring: `RING_ITEMS` of `kernels/matvec.cuh`.
const RING_ITEMS: u32 = 3;
/// Shared memory that the rings of a block may take.
const RINGS_MAX: u32 = 160 << 10;
/// Width of a copy, which narrow planes are widened to at both ends of an item.
const COPY_BYTES: u32 = 16;
/// Values of a block of floats in `kernels/matvec_types.cuh`.
const FLOAT_BLOCK: u32 = 8;
/// Most tiles of an item; a tile is one unit for each lane.
const TILES_MAX: u32 = 8;

/// What a type's kernels are called for 1, 2, 4 and 8 rows.
fn kernels(ty: WeightType) -> [&'static str; 4] {
    macro_rules! named {
        ($name:literal) => {
            [
                concat!("matvec_", $name, "_r1"),
                concat!("matvec_", $name, "_r2"),
                concat!("matvec_", $name, "_r4"),
                concat!("matvec_", $name, "_r8"),
            ]
        };
    }
    match ty {
        WeightType::Q8_0 => named!("q8_0"),
        WeightType::Q4_0 => named!("q4_0"),
        WeightType::Q4_1 => named!("q4_1"),
        WeightType::Q5_0 => named!("q5_0"),
        WeightType::Q5_1 => named!("q5_1"),
        WeightType::IQ4_NL => named!("iq4_nl"),
        WeightType::MXFP4 => named!("mxfp4"),
        WeightType::Q2_K => named!("q2_k"),
        WeightType::Q3_K => named!("q3_k"),
        WeightType::Q4_K => named!("q4_k"),
        WeightType::Q5_K => named!("q5_k"),
        WeightType::Q6_K => named!("q6_k"),
        WeightType::IQ4_XS => named!("iq4_xs"),
        WeightType::F16 => named!("f16"),
        WeightType::BF16 => named!("bf16"),
        WeightType::F32 => named!("f32"),
    }
}

/// How a type's rows are cut into tiles.
struct Geometry {
    /// Bytes of a tile in each plane.
    tile_bytes: Vec<(u32, bool)>,
    /// Blocks of a tile, as the kernels count them.
    tile_blocks: u32,
    /// Values of a tile.
    tile_values: u32,
}

impl Geometry {
    fn of(ty: WeightType) -> Self {
        let elements = ty.block().elements as u32;
        // Floats come in blocks of 8 that are units; a unit of the others is 32 values.
        let (block_values, planes_per_block, tile_values) =
            if elements == 1 { (FLOAT_BLOCK, FLOAT_BLOCK, WARP * FLOAT_BLOCK) } else { (elements, 1, WARP * 32) };
        let tile_blocks = tile_values / block_values;
        let planes = layout::planes(ty, 1, u64::from(elements));
        let tile_bytes = planes
            .iter()
            .map(|plane| {
                let block_bytes = plane.block_bytes * planes_per_block;
                (block_bytes * tile_blocks, !block_bytes.is_multiple_of(COPY_BYTES))
            })
            .collect();
        Geometry { tile_bytes, tile_blocks, tile_values }
    }

    /// Bytes of a slot for items of `tiles` tiles: `room_before` of `kernels/weight_ring.cuh`.
    fn slot_bytes(&self, tiles: u32) -> u32 {
        let room = |&(bytes, narrow): &(u32, bool)| {
            (bytes * tiles).next_multiple_of(COPY_BYTES) + if narrow { COPY_BYTES } else { 0 }
        };
        self.tile_bytes.iter().map(room).sum()
    }
}

/// `y (+)= W x + bias` for at most `rows` rows, on a card with `multiprocessors` multiprocessors whose blocks may have
/// `shared_max` bytes of shared memory. `params.item_blocks` is chosen here.
///
/// None where not even one row of `x` fits beside the smallest rings.
pub fn matvec(
    ty: WeightType,
    params: &MatVecParams,
    rows: u32,
    multiprocessors: u32,
    shared_max: u32,
) -> Option<Launch> {
    let geometry = Geometry::of(ty);
    let rings = |warps: u32, tiles: u32| warps * RING_ITEMS * geometry.slot_bytes(tiles);
    let row_bytes = u32::try_from(params.x_row_bytes).ok()?;
    let beside = |rows: u32| shared_max.checked_sub(rows.checked_mul(row_bytes)?);

    // As many rows at once as leave room for rings, and as many warps.
    let bucket = rows.clamp(1, ROWS_MAX).next_power_of_two();
    let choices = [WARPS, WARPS / 2, WARPS / 4]
        .into_iter()
        .flat_map(|warps| (0..=bucket.ilog2()).rev().map(move |log| (warps, log)));
    let (warps, log) = choices
        .filter(|&(warps, log)| beside(1 << log).is_some_and(|room| rings(warps, 1) <= room))
        .max_by_key(|&(warps, log)| (log, warps))?;
    let room = beside(1 << log)?.min(RINGS_MAX);

    // Items of equal size, as large as the room allows.
    let row_tiles = params.k.div_ceil(geometry.tile_values);
    let largest = (1..=TILES_MAX.min(row_tiles)).rev().find(|&tiles| rings(warps, tiles) <= room).unwrap_or(1);
    let tiles = row_tiles.div_ceil(row_tiles.div_ceil(largest));
    let params = MatVecParams { item_blocks: tiles * geometry.tile_blocks, ..*params };

    let grid = [multiprocessors, rows.div_ceil(1 << log), 1];
    let shared = rings(warps, tiles) + (row_bytes << log);
    Some(Launch::new(kernels(ty)[log as usize], grid, warps * WARP, &params).shared(shared))
}
