//! The ops of a program, one after another, each over all rows.

use half::{bf16, f16};
use tailrace_device::kv::{SequencePlan, StepPlan};
use tailrace_device::plan::spec::{Activation, Reach};
use tailrace_device::plan::{
    Buffer, BufferId, CachePlace, Content, Gain, Inputs, Layer, LayerId, Op, Plan, Product, Program, WeightId,
};
use tailrace_device::{DeviceError, Row, synthetic};
use tailrace_gguf::decode_row;
use tailrace_types::{BLOCK_CELLS, KvType};

use super::attention::{Softmax, attend, is_visible};
use super::elementwise::{gelu_tanh, gelu_tanh_f16, rms_norm, silu, soft_cap};
use super::matmul::{dequantize, product, quantize_block};
use super::memory::{Arena, Memory, NAN_BYTE, Part, home_block, ring_block};
use super::rope::turn;
use crate::q8::Q8_VALUES;

type Done = Result<(), DeviceError>;

/// What never changes after loading.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) plan: Plan,
    /// Bytes of each of the plan's weights: a matrix as the file has it, a vector as f32.
    pub(super) weights: Vec<Vec<u8>>,
    /// Angle per position of each pair of each rope, in radians.
    pub(super) frequencies: Vec<Vec<f64>>,
    pub(super) poison: bool,
}

/// One run of a program.
pub(super) struct Run<'a> {
    pub(super) model: &'a Model,
    pub(super) memory: &'a mut Memory,
    pub(super) program: &'a Program,
    /// Where the program's buffers are.
    pub(super) arena: Arena,
    pub(super) rows: &'a [Row],
    /// Where the cells are; the head needs none.
    pub(super) cache: &'a StepPlan,
}

impl Run<'_> {
    /// Executes every op. Poison: where a buffer of the body begins to live its bytes become NaN, so that nothing is read
    /// before it is written. (The head's first buffer is its input.)
    pub(super) fn run(&mut self) -> Done {
        let program = self.program;
        for (at, op) in program.ops.iter().enumerate() {
            let poison = self.model.poison && self.arena == Arena::Workspace;
            let born = |buffer: &&Buffer| poison && buffer.first_op == at as u32;
            for buffer in program.buffers.iter().filter(born) {
                let part = (self.arena, buffer.offset as usize..(buffer.offset + buffer.bytes()) as usize);
                self.memory.bytes_mut(part)?.fill(NAN_BYTE);
            }
            self.op(op)?;
        }
        Ok(())
    }

    /// The rows of the program's last buffer: the logits, after a head.
    pub(super) fn last_buffer(&self) -> Result<Vec<f32>, DeviceError> {
        let last = BufferId(self.program.buffers.len() as u32 - 1);
        let rows = (0..self.rows.len()).map(|row| self.read(last, row));
        Ok(rows.collect::<Result<Vec<_>, _>>()?.concat())
    }

    fn op(&mut self, op: &Op) -> Done {
        match *op {
            Op::RopeTable { rope, dst } => {
                let frequencies = &self.model.frequencies[rope.0 as usize];
                let mscale = f64::from(self.model.plan.ropes[rope.0 as usize].mscale);
                self.each_row(dst, |run, row| {
                    let angles = frequencies.iter().map(|f| f * f64::from(run.rows[row].position));
                    let cos = angles.clone().map(|angle| (angle.cos() * mscale) as f32);
                    Ok(cos.chain(angles.map(|angle| (angle.sin() * mscale) as f32)).collect())
                })
            }
            Op::Embed { table, scale, dst } => self.each_row(dst, |run, row| {
                let values = run.matrix_row(table, run.rows[row].token.0 as usize);
                Ok(values.iter().map(|x| x * scale).collect())
            }),
            Op::Norm { src, gain, dst } => self.each_input(dst, |run, row| run.normed(&run.read(src, row)?, gain)),
            Op::MatMul { src, ref products, dst, accumulate, .. } => {
                self.each_row(dst, |run, row| run.products(src, products, accumulate.then_some(dst), row))
            }
            Op::RopeStore { layer, qkv, q_norm, k_norm, table } => {
                for row in 0..self.rows.len() {
                    self.rope_store(layer, qkv, (q_norm, k_norm), table, row)?;
                }
                Ok(())
            }
            Op::Attention { layer, qkv, dst, .. } => {
                let outputs = self.attention(layer, qkv)?;
                self.each_input(dst, |_, row| Ok(outputs[row].clone()))
            }
            Op::Gate { src, activation, dst } => self.each_input(dst, |run, row| {
                let values = run.read(src, row)?;
                let (gate, up) = values.split_at(values.len() / 2);
                let activate = match activation {
                    Activation::Silu => silu,
                    Activation::GeluTanh => gelu_tanh,
                    Activation::GeluTanhF16 => gelu_tanh_f16,
                };
                Ok(gate.iter().zip(up).map(|(&gate, up)| activate(gate) * up).collect())
            }),
            Op::AddNorm { src, gain, dst } => self.each_row(dst, |run, row| {
                let branch = run.normed(&run.read(src, row)?, gain)?;
                Ok(run.read(dst, row)?.iter().zip(branch).map(|(x, y)| x + y).collect())
            }),
            Op::SoftCap { buffer, cap } => {
                self.each_row(buffer, |run, row| Ok(run.read(buffer, row)?.iter().map(|&z| soft_cap(z, cap)).collect()))
            }
        }
    }

    /// Writes a buffer's rows.
    fn each_row(&mut self, dst: BufferId, values: impl Fn(&Self, usize) -> Result<Vec<f32>, DeviceError>) -> Done {
        self.each_input(Inputs { f32: Some(dst), q8: None, bf16: None }, values)
    }

    /// Writes rows of matrix inputs in the formats that are asked for.
    fn each_input(&mut self, dst: Inputs, values: impl Fn(&Self, usize) -> Result<Vec<f32>, DeviceError>) -> Done {
        for row in 0..self.rows.len() {
            let values = values(self, row)?;
            if let Some(dst) = dst.f32 {
                let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
                self.memory.bytes_mut(self.row_part(dst, row))?.copy_from_slice(&bytes);
            }
            if let Some(dst) = dst.q8 {
                let blocks: Vec<_> = values.as_chunks::<Q8_VALUES>().0.iter().map(quantize_block).collect();
                let bytes: Vec<u8> = dequantize(&blocks).iter().flat_map(|x| x.to_le_bytes()).collect();
                self.memory.bytes_mut(self.row_part(dst, row))?.copy_from_slice(&bytes);
            }
        }
        Ok(())
    }

    fn row_part(&self, id: BufferId, row: usize) -> Part {
        let buffer = self.program.buffer(id);
        let start = buffer.offset as usize + row * buffer.row_bytes as usize;
        (self.arena, start..start + buffer.row_bytes as usize)
    }

    fn read(&self, id: BufferId, row: usize) -> Result<Vec<f32>, DeviceError> {
        debug_assert_eq!(self.program.buffer(id).content, Content::F32);
        Ok(floats(self.memory.bytes(self.row_part(id, row))?))
    }

    fn matrix_row(&self, id: WeightId, row: usize) -> Vec<f32> {
        let slice = &self.model.plan.weights[id.0 as usize].slice;
        let bytes = &self.model.weights[id.0 as usize];
        let row_bytes = bytes.len() / slice.rows as usize;
        let mut values = vec![0.0; slice.cols as usize];
        decode_row(slice.ty, &bytes[row * row_bytes..][..row_bytes], &mut values);
        values
    }

    fn vector(&self, id: WeightId) -> Vec<f32> {
        floats(&self.model.weights[id.0 as usize])
    }

    fn normed(&self, x: &[f32], gain: Gain) -> Result<Vec<f32>, DeviceError> {
        Ok(rms_norm(x, &self.vector(gain.weight), gain.eps))
    }

    /// `W src + b` of each product side by side, plus the row of `onto`. Quantised weights read quantised rows where there
    /// are any.
    fn products(
        &self,
        src: Inputs,
        products: &[Product],
        onto: Option<BufferId>,
        row: usize,
    ) -> Result<Vec<f32>, DeviceError> {
        let mut outputs = Vec::new();
        for part in products {
            let slice = &self.model.plan.weights[part.weight.0 as usize].slice;
            let x = match src.q8 {
                Some(q8) if !slice.ty.is_float() => doubles(self.memory.bytes(self.row_part(q8, row))?),
                _ => {
                    let x = src.f32.ok_or(DeviceError::Misuse("a product without its input"))?;
                    self.read(x, row)?.into_iter().map(f64::from).collect()
                }
            };
            let mut y = product(slice.ty, &self.model.weights[part.weight.0 as usize], &x);
            if let Some(bias) = part.bias {
                y.iter_mut().zip(self.vector(bias)).for_each(|(y, b)| y.value += f64::from(b));
            }
            debug_assert_eq!(outputs.len(), part.first_col as usize);
            outputs.extend(y.iter().map(|y| y.value));
        }
        if let Some(onto) = onto {
            outputs.iter_mut().zip(self.read(onto, row)?).for_each(|(y, x)| *y += f64::from(x));
        }
        Ok(outputs.into_iter().map(|y| y as f32).collect())
    }

    fn layer(&self, id: LayerId) -> &Layer {
        &self.model.plan.layers[id.0 as usize]
    }

    fn rope_store(
        &mut self,
        id: LayerId,
        qkv: BufferId,
        norms: (Option<Gain>, Option<Gain>),
        table: BufferId,
        row: usize,
    ) -> Done {
        let layer = self.layer(id).clone();
        let shape = layer.shape;
        let dk = shape.dk as usize;
        let pairing = self.model.plan.ropes[layer.rope.0 as usize].pairing;
        let (mut values, table) = (self.read(qkv, row)?, self.read(table, row)?);
        let (qk, v) = values.split_at_mut((shape.heads + shape.kv_heads) as usize * dk);
        for (head, values) in qk.chunks_exact_mut(dk).enumerate() {
            let norm = if head < shape.heads as usize { norms.0 } else { norms.1 };
            if let Some(gain) = norm {
                values.copy_from_slice(&self.normed(values, gain)?);
            }
            turn(values, pairing, &table);
        }
        self.store(id, self.rows[row], &qk[shape.heads as usize * dk..], v)?;
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.memory.bytes_mut(self.row_part(qkv, row))?.copy_from_slice(&bytes);
        Ok(())
    }

    /// Writes a row's cell: keys and values of all heads.
    fn store(&mut self, id: LayerId, row: Row, k: &[f32], v: &[f32]) -> Done {
        let shape = self.layer(id).shape;
        let heads = k.chunks_exact(shape.dk as usize).zip(v.chunks_exact(shape.dv as usize));
        for (head, (k, v)) in heads.enumerate() {
            let [k_cell, v_cell] = self.cell(id, row.view, head as u32, row.position)?;
            self.memory.bytes_mut(k_cell)?.copy_from_slice(&encode(shape.k_type, k));
            self.memory.bytes_mut(v_cell)?.copy_from_slice(&encode(shape.v_type, v));
        }
        Ok(())
    }

    /// Writes random cells for every row, in each layer.
    pub(super) fn fill(&mut self, seed: u64) -> Done {
        for &row in self.rows {
            for layer in 0..self.model.plan.layers.len() as u32 {
                let shape = self.layer(LayerId(layer)).shape;
                let numbers = synthetic::cell(seed, layer, row.position);
                let keys = u64::from(shape.kv_heads * shape.dk);
                let all = keys + u64::from(shape.kv_heads * shape.dv);
                let values: Vec<f32> = (0..all).map(|place| numbers.normal(place)).collect();
                let (k, v) = values.split_at(keys as usize);
                self.store(LayerId(layer), row, k, v)?;
            }
        }
        Ok(())
    }

    /// Where the key and the value of one KV head are at `position` of a sequence.
    fn cell(&self, id: LayerId, view: u32, head: u32, position: u32) -> Result<[Part; 2], DeviceError> {
        let (plan, shape) = (&self.model.plan, &self.layer(id).shape);
        let (cache, sequence) = (&plan.cache.layers[id.0 as usize], &self.cache.sequences[view as usize]);
        let (leaf, cell) = (position / BLOCK_CELLS, u64::from(position % BLOCK_CELLS));
        let (arena, block) = match cache.place {
            CachePlace::Rings { .. } => ring_block(plan, cache, sequence.slot, leaf)?,
            CachePlace::Frames { .. } => {
                let homes = self.cache.segments_of(sequence).iter().flat_map(|segment| self.cache.homes(segment));
                let home = homes.copied().nth(leaf as usize).ok_or(DeviceError::Misuse("a leaf without a home"))?;
                home_block(plan, cache, home)?
            }
        };
        let (k_bytes, v_bytes) = (shape.k_type.row_bytes(shape.dk), shape.v_type.row_bytes(shape.dv));
        let k = u64::from(head) * shape.k_head_bytes() + cell * k_bytes;
        let v =
            u64::from(shape.kv_heads) * shape.k_head_bytes() + u64::from(head) * shape.v_head_bytes() + cell * v_bytes;
        let part = |at: u64, bytes: u64| (arena, block.start + at as usize..block.start + (at + bytes) as usize);
        Ok([part(k, k_bytes), part(v, v_bytes)])
    }

    /// Outputs `[heads * dv]` of every row: one softmax over all cells that it sees.
    fn attention(&self, id: LayerId, qkv: BufferId) -> Result<Vec<Vec<f32>>, DeviceError> {
        let shape = &self.layer(id).shape;
        let mut outputs = vec![vec![0.0; (shape.heads * shape.dv) as usize]; self.rows.len()];
        let mut rest = &mut outputs[..];
        for (view, sequence) in self.cache.sequences.iter().enumerate() {
            let (mine, others) = rest.split_at_mut(sequence.cells as usize);
            let first_row = self.rows.len() - others.len() - mine.len();
            for head in 0..shape.kv_heads {
                self.attend_group(id, (view as u32, sequence), head, (qkv, first_row), mine)?;
            }
            rest = others;
        }
        Ok(outputs)
    }

    /// The outputs of the query heads that share one KV head, for the rows of one sequence.
    fn attend_group(
        &self,
        id: LayerId,
        (view, sequence): (u32, &SequencePlan),
        kv_head: u32,
        (qkv, first_row): (BufferId, usize),
        outputs: &mut [Vec<f32>],
    ) -> Done {
        let Layer { shape, scale, cap, reach, .. } = self.layer(id);
        let window = match *reach {
            Reach::Global => None,
            Reach::Sliding(cells) => Some(cells),
        };
        let first = window.map_or(0, |cells| (sequence.first_cell + 1).saturating_sub(cells));
        let mut cells = Vec::new();
        for position in first..sequence.first_cell + sequence.cells {
            let [k, v] = self.cell(id, view, kv_head, position)?;
            let (k, v) = (self.memory.bytes(k)?, self.memory.bytes(v)?);
            cells.push((position, decode(shape.k_type, k), decode(shape.v_type, v)));
        }
        let (dk, dv) = (shape.dk as usize, shape.dv as usize);
        for (i, output) in outputs.iter_mut().enumerate() {
            let (row, position) = (self.read(qkv, first_row + i)?, sequence.first_cell + i as u32);
            let seen = cells.iter().filter(|(cell, ..)| is_visible(position, *cell, window));
            let seen: Vec<(&[f32], &[f32])> = seen.map(|(_, k, v)| (&k[..], &v[..])).collect();
            let group = shape.group() as usize;
            for head in kv_head as usize * group..(kv_head as usize + 1) * group {
                let softmax = Softmax { scale: *scale, cap: *cap, sink: None };
                attend(&row[head * dk..][..dk], &seen, softmax, &mut output[head * dv..][..dv]);
            }
        }
        Ok(())
    }
}

pub(super) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

pub(super) fn doubles(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks::<8>().0.iter().map(|&b| f64::from_le_bytes(b)).collect()
}

/// A cell's row of one head.
fn encode(ty: KvType, values: &[f32]) -> Vec<u8> {
    match ty {
        KvType::F16 => values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
        KvType::Bf16 => values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
        KvType::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

fn decode(ty: KvType, bytes: &[u8]) -> Vec<f32> {
    match ty {
        KvType::F16 => bytes.as_chunks::<2>().0.iter().map(|&b| f16::from_le_bytes(b).to_f32()).collect(),
        KvType::Bf16 => bytes.as_chunks::<2>().0.iter().map(|&b| bf16::from_le_bytes(b).to_f32()).collect(),
        KvType::F32 => floats(bytes),
    }
}
