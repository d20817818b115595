//! From a plan's ops to launches: made once, when the plan is loaded.

use std::collections::HashMap;
use std::sync::Arc;

use tailrace_device::kv::Phase;
use tailrace_device::plan::spec::{Activation, Pairing, Reach};
use tailrace_device::plan::{
    self, ActivationType, Bucket, BufferId, CachePlace, Gain, Inputs, LayerId, MatrixInput, Op, Plan, Product, RowKind,
    WeightForm, WeightId,
};
use tailrace_device::{DeviceError, synthetic};
use tailrace_types::{KvType, WeightType};

use crate::arenas::Arenas;
use crate::driver::owned::Owned;
use crate::driver::{Driver, Graph, Kernel, Stream};
use crate::launch::{Launch, attention, elementwise, gemm, head, matmul_f32, matvec_rows, weights};
use crate::layout;
use crate::params::{
    AddNormParams, AttentionParams, EmbedParams, FillParams, GateParams, GatherParams, MatVecParams, Matrix,
    NormParams, Outputs, RopeStoreParams, RopeTableParams, SoftCapParams, Step, StepRow, TopParams,
};
use crate::sizes::{Card, group_leaves, matrix_input};
use crate::step::StepLayout;

/// Rows of a prefill are launched in multiples of this.
pub(crate) const ROW_TILE: u32 = 128;

/// A launch whose kernel was found.
#[derive(Clone, Copy)]
pub(crate) struct Prepared {
    pub(crate) kernel: Kernel,
    pub(crate) launch: Launch,
}

/// One step of a compiled program.
pub(crate) enum Item {
    /// The same in every step.
    Launch(Box<Prepared>),
    /// Depends on where the cells are.
    Attention(Box<Site>),
}

/// Attention of one layer.
pub(crate) struct Site {
    /// Its place among the layers that have a tail.
    pub(crate) tail_layer: Option<u32>,
    /// All but what varies from step to step.
    pub(crate) params: AttentionParams,
    pub(crate) kind: SiteKind,
    tensor_cores: bool,
    rows: u32,
    card: Card,
}

/// How a layer's attention is launched.
pub(crate) enum SiteKind {
    /// Partials of leaves, then their fold.
    Decode { partials: Kernel, fold: Kernel },
    /// One kernel with a carry.
    Whole { kernel: Kernel },
}

impl Site {
    /// The launch of partials.
    pub(crate) fn partials(&self, params: &AttentionParams) -> Launch {
        self.decode(params)[0]
    }

    /// The launch of the fold.
    pub(crate) fn fold(&self, params: &AttentionParams) -> Launch {
        self.decode(params)[1]
    }

    /// What the kernel with a carry gets for rows from `first` on.
    pub(crate) fn params_of_rows(&self, first: u32) -> AttentionParams {
        let mut p = self.params;
        let (row, head) = (u64::from(first), u64::from(p.heads));
        let values = row * head * u64::from(p.dv);
        let moved = |address: u64, bytes: u64| if address == 0 { 0 } else { address + bytes };
        p.step.rows += row * size_of::<StepRow>() as u64;
        p.qkv += row * u64::from(p.qkv_cols) * 4;
        p.carry += row * head * u64::from(attention::record_floats(p.dv)) * 4;
        p.dst.f32 = moved(p.dst.f32, values * 4);
        p.dst.bf16 = moved(p.dst.bf16, values * 2);
        p.dst.q8 = moved(p.dst.q8, row * p.dst.q8_row_bytes);
        p
    }

    fn decode(&self, params: &AttentionParams) -> [Launch; 2] {
        let Card { multiprocessors, capability, .. } = self.card;
        attention::decode(params, params.groups, self.rows, multiprocessors, capability)
    }

    /// The launch of a kernel with a carry, over `rows` rows.
    pub(crate) fn whole(&self, params: &AttentionParams, rows: u32) -> Launch {
        match self.tensor_cores {
            true => attention::prefill(params, rows, self.card.capability),
            false => attention::plain(params, rows),
        }
    }
}

/// A program for up to `rows` rows.
pub(crate) struct Compiled {
    pub(crate) rows: u32,
    pub(crate) items: Vec<Item>,
    /// The same with everything in frames. The first graph is short: while it runs, the others are started.
    pub(crate) graphs: Vec<Owned<Graph>>,
}

/// Launches of the first graph of a decode step. Starting a graph takes the longer the more launches it has, and the device
/// waits meanwhile.
const FIRST_GRAPH_ITEMS: usize = 24;

/// Every program of a plan, in every bucket of rows.
pub(crate) struct Programs {
    /// For 1, 2, ... row tiles.
    prefill: Vec<Compiled>,
    /// For 1, 2, 4, ... rows, the head included.
    decode: Vec<Compiled>,
    /// For 1, 2, 4, ... rows, after a prefill and after a decode.
    heads: [Vec<Compiled>; 2],
    fill: Vec<FillParams>,
    fill_kernel: Kernel,
    logits: u64,
}

/// Buckets of up to `most` rows: powers of two, and `most`.
fn buckets(most: u32) -> impl Iterator<Item = u32> {
    let powers = std::iter::successors(Some(1u32), |n| n.checked_mul(2)).take_while(move |&n| n < most);
    powers.chain([most])
}

/// The first of `programs` that has room for `rows`.
fn bucket(programs: &[Compiled], rows: u32) -> &Compiled {
    programs.iter().find(|p| p.rows >= rows).expect("a submission's rows were checked against its bucket")
}

impl Programs {
    /// Compiles every program, and makes the graphs.
    pub(crate) fn new(
        driver: &Arc<dyn Driver>,
        plan: &Plan,
        arenas: &Arenas,
        layout: &StepLayout,
        card: Card,
    ) -> Result<Self, DeviceError> {
        let mut kernels = Kernels { driver: &**driver, found: HashMap::new() };
        let lower = |kernels: &mut Kernels<'_>, bucket, rows| -> Result<Vec<Item>, DeviceError> {
            Lowering::new(plan, arenas, layout, card, bucket, rows).body(kernels)
        };
        let tiles = plan.limits.chunk.div_ceil(ROW_TILE);
        let mut prefill = Vec::new();
        for tile in 1..=tiles {
            let rows = (tile * ROW_TILE).min(plan.limits.chunk);
            prefill.push(Compiled { rows, items: lower(&mut kernels, Bucket::Prefill, rows)?, graphs: Vec::new() });
        }
        let head = |kernels: &mut Kernels<'_>, phase, rows| -> Result<Vec<Item>, DeviceError> {
            Lowering::new(plan, arenas, layout, card, Bucket::Head, rows).head(kernels, phase)
        };
        let mut decode = Vec::new();
        for rows in buckets(plan.limits.sequences) {
            let mut items = lower(&mut kernels, Bucket::Decode, rows)?;
            if rows <= plan.limits.logit_rows {
                items.extend(head(&mut kernels, Phase::Decode, rows)?);
            }
            decode.push(Compiled { rows, items, graphs: Vec::new() });
        }
        let mut heads = [Vec::new(), Vec::new()];
        for (heads, phase) in heads.iter_mut().zip([Phase::Prefill, Phase::Decode]) {
            for rows in buckets(plan.limits.logit_rows) {
                heads.push(Compiled { rows, items: head(&mut kernels, phase, rows)?, graphs: Vec::new() });
            }
        }
        let lowering = Lowering::new(plan, arenas, layout, card, Bucket::Head, 1);
        let logits = lowering.buffer(BufferId(plan.head.buffers.len() as u32 - 1));
        let fill = lowering.fills();
        let fill_kernel = match fill.first() {
            Some(params) => kernels.prepare(elementwise::fill_cells(params, 1))?.kernel,
            None => Kernel(0),
        };
        let mut programs = Programs { prefill, decode, heads, fill, fill_kernel, logits };
        programs.make_graphs(driver)?;
        Ok(programs)
    }

    fn make_graphs(&mut self, driver: &Arc<dyn Driver>) -> Result<(), DeviceError> {
        for program in &mut self.decode {
            let (first, rest) = program.items.split_at(FIRST_GRAPH_ITEMS.min(program.items.len()));
            for items in [first, rest].into_iter().filter(|items| !items.is_empty()) {
                program.graphs.push(Owned::new(driver, graph_of(&**driver, items)?));
            }
        }
        Ok(())
    }

    /// Whether a tail block that several sequences read is read once: kernels with a carry read the tail of one at a time.
    pub(crate) fn shares_tail(&self) -> bool {
        let whole = |item: &Item| matches!(item, Item::Attention(s) if matches!(s.kind, SiteKind::Whole { .. }));
        !self.decode.iter().flat_map(|p| &p.items).any(whole)
    }

    pub(crate) fn prefill(&self, rows: u32) -> &Compiled {
        bucket(&self.prefill, rows)
    }

    pub(crate) fn decode(&self, rows: u32) -> &Compiled {
        bucket(&self.decode, rows)
    }

    pub(crate) fn head(&self, phase: Phase, rows: u32) -> &Compiled {
        let heads = match phase {
            Phase::Prefill => &self.heads[0],
            Phase::Decode => &self.heads[1],
        };
        bucket(heads, rows)
    }

    /// Address of the logits of the head's first row.
    pub(crate) fn logits(&self) -> u64 {
        self.logits
    }

    /// Gives the launches that fill the cells of `rows` rows to `launch`.
    pub(crate) fn fill(
        &self,
        rows: u32,
        seed: u64,
        launch: impl Fn(&Prepared) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        for (layer, params) in self.fill.iter().enumerate() {
            // The kernel goes on from here as `synthetic::cell` does.
            let params = FillParams { seed: synthetic::mix(seed) ^ (layer as u64) << 32, ..*params };
            launch(&Prepared { kernel: self.fill_kernel, launch: elementwise::fill_cells(&params, rows) })?;
        }
        Ok(())
    }
}

/// A graph of launches, with everything in frames.
fn graph_of(driver: &dyn Driver, items: &[Item]) -> Result<Graph, DeviceError> {
    driver.begin_graph()?;
    let given = items.iter().try_for_each(|item| match item {
        Item::Launch(prepared) => driver.launch(Stream::Compute, prepared.kernel, &prepared.launch),
        Item::Attention(site) => site.resident(driver),
    });
    // A recording that was begun is ended, whatever came of it.
    let graph = driver.end_graph();
    given?;
    graph
}

impl Site {
    /// Attention of a decode step whose cells are all in frames: constant, for a graph.
    fn resident(&self, driver: &dyn Driver) -> Result<(), DeviceError> {
        // Every leaf that there may be; those that a view lacks are passed over.
        let params = AttentionParams {
            frames: 1,
            tail_first: 0,
            tail_end: 0,
            leaf_first: 0,
            leaf_end: u32::MAX,
            begins: 1,
            ends: 1,
            rows: self.rows,
            ..self.params
        };
        match self.kind {
            SiteKind::Decode { partials, fold } => {
                driver.launch(Stream::Compute, partials, &self.partials(&params))?;
                driver.launch(Stream::Compute, fold, &self.fold(&params))
            }
            SiteKind::Whole { kernel } => driver.launch(Stream::Compute, kernel, &self.whole(&params, self.rows)),
        }
    }
}

/// Kernels that were found, by name.
struct Kernels<'a> {
    driver: &'a dyn Driver,
    found: HashMap<&'static str, (Kernel, u32)>,
}

impl Kernels<'_> {
    fn prepare(&mut self, launch: Launch) -> Result<Prepared, DeviceError> {
        let known = self.found.get(launch.kernel).filter(|(_, shared)| *shared >= launch.shared_bytes);
        let kernel = match known {
            Some(&(kernel, _)) => kernel,
            None => {
                let kernel = self.driver.kernel(launch.kernel, launch.shared_bytes)?;
                self.found.insert(launch.kernel, (kernel, launch.shared_bytes));
                kernel
            }
        };
        Ok(Prepared { kernel, launch })
    }
}

/// The lowering of one program.
struct Lowering<'a> {
    plan: &'a Plan,
    arenas: &'a Arenas,
    layout: &'a StepLayout,
    card: Card,
    program: &'a plan::Program,
    bucket: Bucket,
    rows: u32,
    step: Step,
}

impl<'a> Lowering<'a> {
    fn new(plan: &'a Plan, arenas: &'a Arenas, layout: &'a StepLayout, card: Card, bucket: Bucket, rows: u32) -> Self {
        let base = arenas.row(RowKind::Step);
        let program = plan.program(bucket);
        let step = match bucket {
            Bucket::Prefill | Bucket::Decode => layout.addresses(base),
            Bucket::Head => layout.head_addresses(base),
        };
        Lowering { plan, arenas, layout, card, program, bucket, rows, step }
    }

    fn body(&self, kernels: &mut Kernels<'_>) -> Result<Vec<Item>, DeviceError> {
        let mut items = Vec::new();
        for op in &self.program.ops {
            match op {
                &Op::Attention { layer, qkv, dst, carry, .. } => {
                    items.push(Item::Attention(Box::new(self.attention(kernels, layer, qkv, dst, carry)?)));
                }
                op => {
                    let mut launches = Vec::new();
                    self.launches(op, &mut launches)?;
                    for launch in launches {
                        items.push(Item::Launch(Box::new(kernels.prepare(launch)?)));
                    }
                }
            }
        }
        Ok(items)
    }

    /// Gathers the wanted rows, runs the head over them, and chooses the candidates.
    fn head(&self, kernels: &mut Kernels<'_>, phase: Phase) -> Result<Vec<Item>, DeviceError> {
        let body = match phase {
            Phase::Prefill => &self.plan.prefill,
            Phase::Decode => &self.plan.decode,
        };
        let stream = body.ops.iter().find_map(|op| if let Op::Embed { dst, .. } = op { Some(*dst) } else { None });
        let stream = body.buffer(stream.expect("a body begins with an embedding"));
        let base = self.arenas.row(RowKind::Step);
        let gather = GatherParams {
            rows: self.layout.wanted_rows(base),
            src: self.arenas.buffer(stream, false),
            dst: self.buffer(BufferId(0)),
            cols: stream.cols as u32,
            count: self.rows,
        };
        let mut items = vec![Item::Launch(Box::new(kernels.prepare(elementwise::gather_rows(&gather))?))];
        items.extend(self.body(kernels)?);
        let top = TopParams {
            logits: self.buffer(BufferId(self.program.buffers.len() as u32 - 1)),
            out: base + self.layout.candidates,
            scratch: base + self.layout.top_scratch,
            vocab: self.plan.vocab,
            rows: self.rows,
            k: head::TOP_MAX.min(self.plan.vocab),
            reserved: 0,
        };
        for launch in head::top(&top) {
            items.push(Item::Launch(Box::new(kernels.prepare(launch)?)));
        }
        Ok(items)
    }

    /// Address of a buffer.
    fn buffer(&self, id: BufferId) -> u64 {
        self.arenas.buffer(self.program.buffer(id), self.bucket == Bucket::Head)
    }

    fn cols(&self, id: BufferId) -> u32 {
        self.program.buffer(id).cols as u32
    }

    /// Address of a vector, or of a matrix.
    fn weight(&self, id: WeightId) -> u64 {
        self.arenas.weight(&self.plan.weights[id.0 as usize])
    }

    fn planes(&self, id: WeightId) -> [u64; layout::PLANES_MAX] {
        let slice = &self.plan.weights[id.0 as usize].slice;
        layout::planes(slice.ty, slice.rows, slice.cols).addresses(self.weight(id))
    }

    fn outputs(&self, dst: Inputs) -> Outputs {
        let address = |id: Option<BufferId>| id.map_or(0, |id| self.buffer(id));
        Outputs {
            f32: address(dst.f32),
            q8: address(dst.q8),
            bf16: address(dst.bf16),
            q8_row_bytes: dst.q8.map_or(0, |id| self.program.buffer(id).row_bytes),
        }
    }

    fn launches(&self, op: &Op, out: &mut Vec<Launch>) -> Result<(), DeviceError> {
        let (step, rows) = (self.step, self.rows);
        match op {
            &Op::RopeTable { rope, dst } => {
                let rope_spec = &self.plan.ropes[rope.0 as usize];
                let before: u64 = self.plan.ropes[..rope.0 as usize].iter().map(|r| u64::from(r.dims / 2) * 8).sum();
                let params = RopeTableParams {
                    step,
                    frequencies: self.arenas.row(RowKind::Step) + self.layout.frequencies + before,
                    dst: self.buffer(dst),
                    pairs: rope_spec.dims / 2,
                    mscale: rope_spec.mscale,
                };
                out.push(elementwise::rope_table(&params, rows));
            }
            &Op::Embed { table, scale, dst } => out.push(self.embed(table, scale, dst)),
            &Op::Norm { src, gain, dst } => {
                let (cols, dst) = (self.cols(src), self.outputs(dst));
                let params = NormParams {
                    step,
                    src: self.buffer(src),
                    gain: self.weight(gain.weight),
                    dst,
                    cols,
                    eps: gain.eps,
                };
                out.push(elementwise::rms_norm(&params, rows));
            }
            &Op::AddNorm { src, gain, dst } => {
                let (cols, dst) = (self.cols(src), self.buffer(dst));
                let params = AddNormParams {
                    step,
                    src: self.buffer(src),
                    gain: self.weight(gain.weight),
                    dst,
                    cols,
                    eps: gain.eps,
                };
                out.push(elementwise::add_norm(&params, rows));
            }
            Op::MatMul { src, products, dst, accumulate, scratch } => {
                self.mat_mul(*src, products, *dst, *accumulate, *scratch, out)?;
            }
            &Op::RopeStore { layer, qkv, q_norm, k_norm, table } => {
                out.push(self.rope_store(layer, qkv, (q_norm, k_norm), table));
            }
            &Op::Gate { src, activation, dst } => {
                let activation = match activation {
                    Activation::Silu => 0,
                    Activation::GeluTanh => 1,
                    Activation::GeluTanhF16 => 2,
                };
                let (cols, dst) = (self.cols(src) / 2, self.outputs(dst));
                out.push(elementwise::gate(&GateParams { step, src: self.buffer(src), dst, cols, activation }, rows));
            }
            &Op::SoftCap { buffer, cap } => {
                let (values, cols) = (self.buffer(buffer), self.cols(buffer));
                out.push(elementwise::soft_cap(&SoftCapParams { step, values, cols, cap, rows: 0, reserved: 0 }, rows));
            }
            Op::Attention { .. } => return Err(DeviceError::Misuse("attention outside a body")),
        }
        Ok(())
    }

    fn embed(&self, table: WeightId, scale: f32, dst: BufferId) -> Launch {
        let weight = &self.plan.weights[table.0 as usize];
        let on_host = weight.form == WeightForm::HostRows;
        let params = EmbedParams {
            step: self.step,
            plane: if on_host { [0; layout::PLANES_MAX] } else { self.planes(table) },
            gathered: self.arenas.row(RowKind::Step) + self.layout.gathered,
            dst: self.buffer(dst),
            cols: weight.slice.cols as u32,
            ty: weight.slice.ty as u32,
            scale,
            reserved: 0,
        };
        weights::embed(&params, self.rows)
    }

    fn mat_mul(
        &self,
        src: Inputs,
        products: &[Product],
        dst: BufferId,
        accumulate: bool,
        scratch: Option<BufferId>,
        out: &mut Vec<Launch>,
    ) -> Result<(), DeviceError> {
        let activations = self.plan.limits.activations;
        let input = |p: &Product| matrix_input(self.bucket, self.ty(p.weight), activations);
        let mut rest = products;
        while let Some(first) = rest.first() {
            if input(first) == MatrixInput::Bf16 {
                let a = self.buffer(src.bf16.expect("lowering gives every product inputs that it reads"));
                let same = rest.iter().take_while(|p| input(p) == MatrixInput::Bf16).count();
                let joined: Vec<_> =
                    rest[..same].iter().map(|p| self.product(a, p, dst, accumulate, scratch)).collect();
                gemm::products(&joined, self.rows, self.card.capability, self.card.multiprocessors, out);
                rest = &rest[same..];
                continue;
            }
            // Up to three matrices of one type share a launch.
            let same = rest.iter().take(3).take_while(|p| self.ty(p.weight) == self.ty(first.weight)).count();
            out.push(self.matvec(src, &rest[..same], dst, accumulate, input(first)));
            rest = &rest[same..];
        }
        Ok(())
    }

    fn ty(&self, id: WeightId) -> WeightType {
        self.plan.weights[id.0 as usize].slice.ty
    }

    fn matvec(&self, src: Inputs, products: &[Product], dst: BufferId, accumulate: bool, input: MatrixInput) -> Launch {
        let x = if input == MatrixInput::Q8 { src.q8 } else { src.f32 };
        let x = x.expect("lowering gives every product inputs that it reads");
        let mut matrix = [Matrix::default(); 3];
        for (matrix, product) in matrix.iter_mut().zip(products) {
            *matrix = Matrix {
                plane: self.planes(product.weight),
                bias: product.bias.map_or(0, |b| self.weight(b)),
                rows: self.plan.weights[product.weight.0 as usize].slice.rows as u32,
                first_col: product.first_col,
            };
        }
        let ty = self.ty(products[0].weight);
        let params = MatVecParams {
            step: self.step,
            x: self.buffer(x),
            y: self.buffer(dst),
            x_row_bytes: self.program.buffer(x).row_bytes,
            y_cols: self.cols(dst),
            k: self.cols(x),
            accumulate: accumulate.into(),
            matrices: products.len() as u32,
            matrix,
        };
        match self.plan.limits.activations {
            ActivationType::F32 => matmul_f32::matmul_f32(ty, &params, self.rows),
            ActivationType::Auto => matvec_rows::matvec(ty, &params, self.rows, self.card.multiprocessors),
        }
    }

    fn product(
        &self,
        a: u64,
        product: &Product,
        dst: BufferId,
        accumulate: bool,
        scratch: Option<BufferId>,
    ) -> gemm::Product {
        let slice = &self.plan.weights[product.weight.0 as usize].slice;
        gemm::Product {
            ty: slice.ty,
            planes: self.planes(product.weight),
            n: slice.rows as u32,
            k: slice.cols as u32,
            bias: product.bias.map_or(0, |b| self.weight(b)),
            a,
            c: self.buffer(dst) + u64::from(product.first_col) * 4,
            c_cols: self.cols(dst),
            accumulate,
            scratch: scratch.map_or(0, |s| self.buffer(s)),
        }
    }

    fn rope_store(
        &self,
        layer: LayerId,
        qkv: BufferId,
        norms: (Option<Gain>, Option<Gain>),
        table: BufferId,
    ) -> Launch {
        let spec = &self.plan.layers[layer.0 as usize];
        let rope = &self.plan.ropes[spec.rope.0 as usize];
        let gain = |norm: Option<Gain>| norm.map_or((0, 0.0), |g| (self.weight(g.weight), g.eps));
        let ((q_gain, q_eps), (k_gain, k_eps)) = (gain(norms.0), gain(norms.1));
        let shape = &spec.shape;
        let params = RopeStoreParams {
            step: self.step,
            blocks: self.arenas.layer_blocks(self.plan, layer.0 as usize),
            qkv: self.buffer(qkv),
            q_gain,
            k_gain,
            table: self.buffer(table),
            q_eps,
            k_eps,
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            dk: shape.dk,
            dv: shape.dv,
            pairs: rope.dims / 2,
            adjacent: (rope.pairing == Pairing::Adjacent).into(),
            k_type: kv_kind(shape.k_type),
            v_type: kv_kind(shape.v_type),
        };
        elementwise::rope_store(&params, self.rows)
    }

    fn attention(
        &self,
        kernels: &mut Kernels<'_>,
        layer: LayerId,
        qkv: BufferId,
        dst: Inputs,
        carry: BufferId,
    ) -> Result<Site, DeviceError> {
        let spec = &self.plan.layers[layer.0 as usize];
        let shape = &spec.shape;
        let cells = &self.plan.cache.layers[layer.0 as usize];
        let tail_layer = self.plan.cache.global_layers().position(|(i, _)| i == layer.0 as usize).map(|i| i as u32);
        debug_assert_eq!(tail_layer.is_some(), matches!(cells.place, CachePlace::Frames { .. }));
        let mut params = AttentionParams {
            step: self.step,
            blocks: self.arenas.layer_blocks(self.plan, layer.0 as usize),
            qkv: self.buffer(qkv),
            dst: self.outputs(dst),
            carry: self.buffer(carry),
            qkv_cols: self.cols(qkv),
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            dk: shape.dk,
            dv: shape.dv,
            window: match spec.reach {
                Reach::Global => 0,
                Reach::Sliding(cells) => cells,
            },
            scale: spec.scale,
            cap: spec.cap.unwrap_or(0.0),
            k_type: kv_kind(shape.k_type),
            v_type: kv_kind(shape.v_type),
            group_leaves: group_leaves(shape),
            ..AttentionParams::default()
        };
        params.groups = self.plan.cache.sequence_blocks.div_ceil(params.group_leaves);
        let tensor_cores = self.card.tensor_cores(shape);
        let mut site = Site {
            tail_layer,
            params,
            kind: SiteKind::Whole { kernel: Kernel(0) },
            tensor_cores,
            rows: self.rows,
            card: self.card,
        };
        site.kind = if self.bucket == Bucket::Decode && tensor_cores {
            site.params.partials = self.arenas.row(RowKind::Partials);
            let [partials, fold] = site.decode(&site.params);
            SiteKind::Decode { partials: kernels.prepare(partials)?.kernel, fold: kernels.prepare(fold)?.kernel }
        } else {
            SiteKind::Whole { kernel: kernels.prepare(site.whole(&site.params, self.rows))?.kernel }
        };
        Ok(site)
    }

    /// What fills the cells of each layer.
    fn fills(&self) -> Vec<FillParams> {
        let base = self.arenas.row(RowKind::Step);
        let fill = |layer: usize| {
            let shape = &self.plan.layers[layer].shape;
            FillParams {
                step: self.layout.addresses(base),
                blocks: self.arenas.layer_blocks(self.plan, layer),
                seed: 0,
                kv_heads: shape.kv_heads,
                dk: shape.dk,
                dv: shape.dv,
                k_type: kv_kind(shape.k_type),
                v_type: kv_kind(shape.v_type),
                k_scale: 1.0,
                v_scale: 1.0,
                reserved: 0,
            }
        };
        (0..self.plan.layers.len()).map(fill).collect()
    }
}

/// How the kernels call a storage type of the cache.
pub(crate) fn kv_kind(ty: KvType) -> u32 {
    match ty {
        KvType::F16 => 0,
        KvType::Bf16 => 1,
        KvType::F32 => 2,
    }
}
