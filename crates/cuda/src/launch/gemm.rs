//! Launches of `kernels/gemm.cu` and `kernels/gemm_wgmma.cu`: products of a prefill.
//!
//! Weights that are not bf16 rows already are decoded to a scratch buffer first, as many rows at a time as it holds, and
//! neighbours that share their input are multiplied in one launch: on a large card a matrix of 1,024 rows alone leaves half of
//! the multiprocessors idle.

use tailrace_types::WeightType;

use super::Launch;
use super::weights::{RowLayout, TILE_COLS, TILE_ROWS, dequant};
use crate::layout::PLANES_MAX;
use crate::params::{DequantParams, GemmParams};

/// The most bytes of scratch of a product: what larger matrices gain by a larger one is less than 1%.
const SCRATCH_MAX: u64 = 96 << 20;

/// Matrices of one launch.
const JOINED_MAX: usize = 3;

/// `c[m][..n] (+)= a W^T + bias`.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// Type of the weights.
    pub ty: WeightType,
    /// Their planes.
    pub planes: [u64; PLANES_MAX],
    /// Rows of the matrix: columns of the output.
    pub n: u32,
    /// Columns of the matrix, a multiple of 32.
    pub k: u32,
    /// Bias, or 0.
    pub bias: u64,
    /// Input, bf16 `[m][k]`, with whole tiles of 128 rows.
    pub a: u64,
    /// First element of the output, f32.
    pub c: u64,
    /// Elements from row to row of the output.
    pub c_cols: u32,
    /// Whether the product is added to the output.
    pub accumulate: bool,
    /// Scratch of the bytes that [`scratch_bytes`] says.
    pub scratch: u64,
}

/// Which kernel multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// Without matrix instructions for bf16.
    Plain,
    /// Matrix instructions of a warp.
    Mma,
    /// Those of a warp group.
    Wgmma,
}

impl Path {
    fn of(capability: u32) -> Self {
        match capability {
            ..80 => Path::Plain,
            90 => Path::Wgmma,
            _ => Path::Mma,
        }
    }

    /// Whether weights of type `ty` are decoded first. Dense bf16 is what the kernels but one read as it is.
    fn decodes(self, ty: WeightType) -> bool {
        self == Path::Wgmma || ty != WeightType::BF16
    }

    fn layout(self) -> RowLayout {
        if self == Path::Wgmma { RowLayout::Tiles } else { RowLayout::Dense }
    }

    fn launch(self, params: &GemmParams, multiprocessors: u32) -> Launch {
        match self {
            Path::Plain => {
                const TILE: u32 = 64;
                Launch::new("gemm_plain", [params.m.div_ceil(TILE), params.n.div_ceil(TILE), 1], 256, params)
            }
            Path::Mma => {
                const TILE: u32 = 128;
                const SHARED: u32 = 4 * 2 * TILE * 32 * 2;
                let grid = [params.m.div_ceil(TILE), params.n.div_ceil(TILE), 1];
                Launch::new("gemm", grid, 256, params).shared(SHARED)
            }
            Path::Wgmma => {
                const STAGES: u32 = 4;
                const STAGE_BYTES: u32 = (128 + TILE_ROWS) * TILE_COLS * 2;
                const BARRIERS: u32 = 2 * 8;
                let shared = STAGES * (STAGE_BYTES + BARRIERS);
                Launch::new("gemm_wgmma", [multiprocessors, 1, 1], 384, params).shared(shared)
            }
        }
    }
}

/// Bytes of scratch for a product with a matrix of `rows` rows of `cols` values: twice the matrix, so that neighbours of its
/// size or smaller join it, but at most 96 MiB.
pub fn scratch_bytes(ty: WeightType, rows: u64, cols: u64, capability: u32) -> u64 {
    if !Path::of(capability).decodes(ty) {
        return 0;
    }
    let tile_rows = u64::from(TILE_ROWS);
    let most = (SCRATCH_MAX / (tile_rows * row_bytes(cols))).max(1) * tile_rows;
    (2 * rows.next_multiple_of(tile_rows)).min(most) * row_bytes(cols)
}

/// Bytes of a decoded row: whole tiles of columns.
fn row_bytes(cols: u64) -> u64 {
    cols.next_multiple_of(u64::from(TILE_COLS)) * 2
}

/// The launches of products for `rows` rows on a card of compute capability `capability` (90 is 9.0). Products that share
/// scratch follow one another in `products`, whose scratch is as large as the largest of them asks.
pub fn products(products: &[Product], rows: u32, capability: u32, multiprocessors: u32, out: &mut Vec<Launch>) {
    let path = Path::of(capability);
    let bytes = |p: &Product| scratch_bytes(p.ty, p.n.into(), p.k.into(), capability);
    let scratch = products.iter().map(bytes).max().unwrap_or(0);
    let mut rest = products;
    while let Some(first) = rest.first() {
        let joined = if path.decodes(first.ty) { joinable(rest, path) } else { 1 };
        let (run, others) = rest.split_at(joined);
        rest = others;
        if path.decodes(first.ty) {
            let slice_rows = (scratch / row_bytes(first.k.into())) as u32 / TILE_ROWS * TILE_ROWS;
            decoded(run, slice_rows, rows, path, multiprocessors, out);
        } else {
            let whole = Piece { product: first, first: 0, count: first.n, at: 0 };
            out.push(path.launch(&gemm_params(first.planes[0], &[whole], rows), multiprocessors));
        }
    }
}

/// How many of the first products can share launches: the same input, outputs side by side, whole tiles of rows but for the
/// last.
fn joinable(products: &[Product], path: Path) -> usize {
    let joins = |pair: &[Product]| {
        let (p, next) = (&pair[0], &pair[1]);
        let same = (p.a, p.k, p.c_cols, p.accumulate) == (next.a, next.k, next.c_cols, next.accumulate);
        same && path.decodes(next.ty) && p.n.is_multiple_of(TILE_ROWS) && next.c == p.c + u64::from(p.n) * 4
    };
    1 + products.windows(2).take(JOINED_MAX - 1).take_while(|pair| joins(pair)).count()
}

/// Rows of one matrix in a slice.
struct Piece<'a> {
    product: &'a Product,
    /// First row in the matrix.
    first: u32,
    count: u32,
    /// First row in the slice.
    at: u32,
}

/// The rows of all matrices of a run in slices: each is decoded, then multiplied.
fn decoded(run: &[Product], slice_rows: u32, rows: u32, path: Path, multiprocessors: u32, out: &mut Vec<Launch>) {
    let total: u32 = run.iter().map(|p| p.n).sum();
    let mut start = 0;
    for tiles in slices(total.div_ceil(TILE_ROWS), slice_rows / TILE_ROWS, rows, multiprocessors) {
        let end = total.min(start + tiles * TILE_ROWS);
        let pieces = pieces(run, start, end);
        for piece in &pieces {
            let p = piece.product;
            let params = DequantParams {
                plane: p.planes,
                out: p.scratch + u64::from(piece.at) * row_bytes(p.k.into()),
                first: piece.first,
                count: piece.count,
                k: p.k,
                reserved: 0,
            };
            out.push(dequant(p.ty, path.layout(), &params));
        }
        out.push(path.launch(&gemm_params(run[0].scratch, &pieces, rows), multiprocessors));
        start = end;
    }
}

/// Sizes, in tiles of [`TILE_ROWS`], of the slices that `tiles` tiles take the least time in, none above `most`. A slice's
/// tiles are made in rounds of one on each multiprocessor, and what an incomplete round costs depends on the slice's size.
fn slices(tiles: u32, most: u32, rows: u32, multiprocessors: u32) -> Vec<u32> {
    let row_tiles = rows.div_ceil(128);
    // Of the first t tiles: the least cost and the last slice's size.
    let mut best = vec![(0, 0)];
    for t in 1..=tiles {
        let ending = |size: u32| (best[(t - size) as usize].0 + slice_cost(size * row_tiles, multiprocessors), size);
        best.extend((1..=most.min(t)).map(ending).min());
    }
    let mut sizes = Vec::new();
    let mut left = tiles;
    while left > 0 {
        let size = best[left as usize].1;
        sizes.push(size);
        left -= size;
    }
    sizes
}

/// What a slice of `tiles` tiles costs, in hundredths of a round: measured on an H200, whose last round takes 0.65 where its
/// tiles are cut in two and 0.4 where they are cut in four (`gemm_wgmma.cu`), and which starts a slice in a tenth of a round.
fn slice_cost(tiles: u32, multiprocessors: u32) -> u32 {
    let rest = tiles % multiprocessors;
    let last = match rest {
        0 => 0,
        _ if rest * 4 <= multiprocessors => 40,
        _ if rest * 2 <= multiprocessors => 65,
        _ => 100,
    };
    10 + tiles / multiprocessors * 100 + last
}

/// What of each matrix lies in rows `start .. end` of the run.
fn pieces(run: &[Product], start: u32, end: u32) -> Vec<Piece<'_>> {
    let mut pieces = Vec::with_capacity(JOINED_MAX);
    let mut base = 0;
    for product in run {
        let (low, high) = (start.max(base), end.min(base + product.n));
        if low < high {
            pieces.push(Piece { product, first: low - base, count: high - low, at: low - start });
        }
        base += product.n;
    }
    pieces
}

/// The product with the rows at `b`, which are those of `pieces`.
fn gemm_params(b: u64, pieces: &[Piece], rows: u32) -> GemmParams {
    let p = pieces[0].product;
    let n = pieces.iter().map(|piece| piece.count).sum();
    let mut params = GemmParams {
        a: p.a,
        b,
        c: p.c + u64::from(pieces[0].first) * 4,
        begins: [n; JOINED_MAX],
        m: rows,
        n,
        k: p.k,
        c_cols: p.c_cols,
        accumulate: p.accumulate.into(),
        ..GemmParams::default()
    };
    for (i, piece) in pieces.iter().enumerate() {
        params.begins[i] = piece.at;
        params.bias[i] = match piece.product.bias {
            0 => 0,
            bias => bias + u64::from(piece.first) * 4,
        };
    }
    params
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u32 = 5120;

    fn product(ty: WeightType, n: u32, first_col: u32) -> Product {
        Product {
            ty,
            planes: [1 << 30, 2 << 30, 3 << 30, 0],
            n,
            k: K,
            bias: (1 << 20) + u64::from(first_col) * 4,
            a: 1 << 16,
            c: (1 << 24) + u64::from(first_col) * 4,
            c_cols: 30_000,
            accumulate: false,
            scratch: 1 << 40,
        }
    }

    /// Kernel names and, of products, their parameters.
    fn launches(list: &[Product], capability: u32) -> Vec<(&'static str, Option<GemmParams>)> {
        let mut out = Vec::new();
        products(list, 2048, capability, 132, &mut out);
        let params = |launch: &Launch| {
            let bytes = launch.params();
            let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            launch.kernel.starts_with("gemm").then(|| GemmParams {
                a: long(0),
                b: long(8),
                bias: [long(16), long(24), long(32)],
                c: long(40),
                begins: [word(48), word(52), word(56)],
                m: word(60),
                n: word(64),
                k: word(68),
                c_cols: word(72),
                accumulate: word(76),
            })
        };
        out.iter().map(|launch| (launch.kernel, params(launch))).collect()
    }

    #[test]
    fn queries_keys_and_values_are_one_product() {
        let list = [
            product(WeightType::Q4_K, 5120, 0),
            product(WeightType::Q4_K, 1024, 5120),
            product(WeightType::Q6_K, 1024, 6144),
        ];
        let launches = launches(&list, 90);
        let names: Vec<_> = launches.iter().map(|l| l.0).collect();
        assert_eq!(names, ["dequant_tiles_q4_k", "dequant_tiles_q4_k", "dequant_tiles_q6_k", "gemm_wgmma"]);
        let gemm = launches[3].1.unwrap();
        assert_eq!((gemm.m, gemm.n, gemm.begins), (2048, 7168, [0, 5120, 6144]));
        assert_eq!(gemm.bias, [list[0].bias, list[1].bias, list[2].bias]);
    }

    #[test]
    fn slices_cover_every_row_once_and_fit_the_scratch() {
        for capability in [75, 80, 90, 120] {
            let list = [product(WeightType::Q4_K, 13_824, 0), product(WeightType::Q4_K, 13_823, 13_824)];
            let scratch = scratch_bytes(WeightType::Q4_K, 13_824, K.into(), capability);
            assert!(scratch <= SCRATCH_MAX);
            let mut next = 0;
            for (_, gemm) in launches(&list, capability) {
                let Some(gemm) = gemm else { continue };
                assert_eq!(gemm.c, list[0].c + u64::from(next) * 4);
                assert_eq!(gemm.bias[0], list[0].bias + u64::from(next) * 4);
                assert!(u64::from(gemm.n) * u64::from(K) * 2 <= scratch);
                next += gemm.n;
            }
            assert_eq!(next, 13_824 + 13_823);
        }
    }

    #[test]
    fn slices_fill_rounds() {
        // 33 column tiles by 16 row tiles are four rounds of 132.
        assert_eq!(slices(66, 38, 2048, 132), [33, 33]);
        assert_eq!(slices(1, 38, 1, 132), [1]);
        assert_eq!(slices(0, 38, 1, 132), [0; 0]);
        for (tiles, most, rows) in [(594, 219, 2048), (54, 7, 512), (20, 1, 64)] {
            let sizes = slices(tiles, most, rows, 114);
            assert_eq!(sizes.iter().sum::<u32>(), tiles);
            assert!(sizes.iter().all(|&size| (1..=most).contains(&size)));
        }
    }

    #[test]
    fn outputs_that_are_apart_do_not_join() {
        let list = [product(WeightType::Q4_K, 512, 0), product(WeightType::Q4_K, 512, 1024)];
        let names: Vec<_> = launches(&list, 90).iter().map(|l| l.0).collect();
        assert_eq!(names, ["dequant_tiles_q4_k", "gemm_wgmma", "dequant_tiles_q4_k", "gemm_wgmma"]);
    }

    #[test]
    fn bf16_rows_are_read_where_they_lie() {
        let list = [product(WeightType::BF16, 512, 0)];
        assert_eq!(scratch_bytes(WeightType::BF16, 512, K.into(), 80), 0);
        let launches = launches(&list, 80);
        assert_eq!(launches.len(), 1);
        assert_eq!(launches[0].1.unwrap().b, list[0].planes[0]);
    }
}
