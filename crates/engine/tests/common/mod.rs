//! Engines on the Null device, and clients of them.

#![allow(dead_code)] // Each test file uses its own part.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use tailrace_device::kv::Phase;
use tailrace_device::null::{NullExecutor, NullLoader};
use tailrace_device::plan::spec::{
    Activation, Attention, Block, Ffn, Linear, Mixer, ModelSpec, Norm, Pairing, Reach, Residual, Rope, TensorSlice,
};
use tailrace_device::plan::{Limits, Plan};
use tailrace_device::{DeviceError, Executor, HighWater, Submission, Traffic};
use tailrace_engine::{DoneReason, Engine, EngineConfig, Event, Generation, Handle, Request, SamplingParams, Stats};
use tailrace_text::{SpecialIds, TokenKind, Tokenizer, Vocabulary};
use tailrace_types::{TokenId, WeightType};

/// Tokens that are words; before them come 256 bytes and the two control tokens.
const WORDS: u32 = 60;
pub(crate) const BOS: TokenId = TokenId(256);
pub(crate) const EOS: TokenId = TokenId(257);
pub(crate) const VOCAB: u32 = 258 + WORDS;

/// A SentencePiece vocabulary of bytes, two control tokens and words of one and two characters.
pub(crate) fn tokenizer(add_bos: bool) -> Arc<Tokenizer> {
    let bytes = (0..=255).map(|b| format!("<0x{b:02X}>"));
    let control = ["<s>", "</s>"].map(str::to_owned);
    let words = (0..WORDS).map(|i| match char::from_u32('a' as u32 + i % 26) {
        Some(c) if i < 26 => c.to_string(),
        Some(c) => format!("{c}{}é", i / 26),
        None => String::new(),
    });
    let kinds = [vec![TokenKind::Byte; 256], vec![TokenKind::Control; 2], vec![TokenKind::Normal; WORDS as usize]];
    let vocabulary = Vocabulary {
        model: "llama".to_owned(),
        tokens: bytes.chain(control).chain(words).collect(),
        kinds: kinds.concat(),
        special: SpecialIds { bos: Some(BOS.0), eos: Some(EOS.0), ..SpecialIds::default() },
        add_bos: Some(add_bos),
        ..Vocabulary::default()
    };
    Arc::new(Tokenizer::new(vocabulary).expect("a vocabulary without flaws"))
}

fn slice(tensor: u32, rows: u64, cols: u64) -> TensorSlice {
    TensorSlice { tensor, ty: WeightType::F32, first_row: 0, rows, cols }
}

fn linear(rows: u64, cols: u64) -> Linear {
    Linear { weight: slice(0, rows, cols), bias: None }
}

fn block(reach: Reach) -> Block {
    let norm = || Norm { weight: slice(1, 1, 32), eps: 1e-5 };
    let rope =
        Rope { pairing: Pairing::Half, dims: 16, base: 1e4, linear: 1.0, factors: None, yarn: None, mscale: 1.0 };
    let attention = Attention {
        q: linear(32, 32),
        k: linear(16, 32),
        v: linear(16, 32),
        o: linear(32, 32),
        q_norm: None,
        k_norm: None,
        rope,
        heads: 2,
        kv_heads: 1,
        dk: 16,
        dv: 16,
        scale: 0.25,
        cap: None,
        reach,
    };
    let ffn = Ffn { gate: linear(64, 32), up: linear(64, 32), down: linear(32, 64), activation: Activation::Silu };
    Block {
        mixer: Residual { pre: norm(), inner: Mixer::Attention(attention), post: None },
        ffn: Residual { pre: norm(), inner: ffn, post: None },
    }
}

/// A model of one layer for each reach.
pub(crate) fn spec(layers: &[Reach]) -> ModelSpec {
    ModelSpec {
        width: 32,
        vocab: VOCAB,
        context: 1 << 20,
        embed: slice(2, u64::from(VOCAB), 32),
        embed_scale: 1.0,
        blocks: layers.iter().map(|reach| block(*reach)).collect(),
        out_norm: Norm { weight: slice(1, 1, 32), eps: 1e-5 },
        head: linear(u64::from(VOCAB), 32),
        logit_cap: None,
    }
}

/// Bytes of one block of a global layer of [`spec`].
pub(crate) const FRAME_BYTES: u64 = 256 * (16 + 16) * 2;

pub(crate) fn executor(layers: &[Reach], limits: &Limits, loader: NullLoader) -> NullExecutor {
    let plan = Plan::new(&spec(layers), limits, &loader).expect("limits that can be planned");
    NullExecutor::new(plan, loader)
}

pub(crate) fn start_on(executor: impl Executor + 'static) -> Handle {
    let config = EngineConfig { executor: Box::new(executor), tokenizer: tokenizer(true) };
    Engine::start(config).expect("the engine starts")
}

/// An engine with one global layer.
pub(crate) fn start(limits: &Limits) -> Handle {
    start_on(executor(&[Reach::Global], limits, NullLoader::default()))
}

/// `count` tokens that are text, different for each seed.
pub(crate) fn prompt(seed: u32, count: usize) -> Vec<TokenId> {
    let token = |i: usize| {
        let x = (i as u32).wrapping_mul(0x9e37_79b9).wrapping_add(seed.wrapping_mul(0x85eb_ca6b));
        TokenId(258 + (x ^ x >> 15).wrapping_mul(0x2c1b_3c6d) / 7 % WORDS)
    };
    (0..count).map(token).collect()
}

/// A greedy request that no end-of-generation token ends.
pub(crate) fn greedy(prompt: Vec<TokenId>, max_tokens: u32) -> Request {
    Request { max_tokens, sampling: SamplingParams::greedy(), stop_at_eog: false, ..Request::new(prompt) }
}

/// Everything that a generation said.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Heard {
    pub(crate) tokens: Vec<TokenId>,
    /// Text of each token.
    texts: Vec<String>,
    pub(crate) text: String,
    /// Where the last rewind went.
    pub(crate) rewound: Option<u32>,
    /// Logits with their positions, in order of arrival.
    pub(crate) logits: Vec<(u32, Vec<f32>)>,
    /// Rows of each group of logits.
    pub(crate) groups: Vec<u32>,
    pub(crate) progress: Vec<(u32, u32)>,
    pub(crate) end: Option<Result<(DoneReason, Stats), tailrace_engine::EngineError>>,
}

impl Heard {
    pub(crate) fn take(&mut self, event: Event) {
        match event {
            Event::Token { id, text } => {
                self.tokens.push(id);
                self.texts.push(text);
            }
            Event::Logits { first_position, rows, values } => {
                assert_eq!(values.len(), (rows * VOCAB) as usize);
                let rows_of = values.chunks_exact(VOCAB as usize).map(<[f32]>::to_vec);
                self.logits.extend((first_position..).zip(rows_of));
                self.groups.push(rows);
            }
            Event::PrefillProgress { done, total } => self.progress.push((done, total)),
            Event::Rewound { kept, sampled } => {
                self.tokens.truncate(sampled as usize);
                self.texts.truncate(sampled as usize);
                self.rewound = Some(kept);
            }
            Event::Done { reason, stats } => self.end = Some(Ok((reason, stats))),
            Event::Error(error) => self.end = Some(Err(error)),
        }
        if self.end.is_some() {
            self.text = self.texts.concat();
        }
    }

    pub(crate) fn reason(&self) -> DoneReason {
        self.done().0
    }

    pub(crate) fn stats(&self) -> Stats {
        self.done().1
    }

    fn done(&self) -> (DoneReason, Stats) {
        match &self.end {
            Some(Ok(done)) => *done,
            other => panic!("the generation ended with {other:?}"),
        }
    }
}

pub(crate) fn hear(generation: Generation) -> Heard {
    let mut heard = Heard::default();
    for event in generation {
        heard.take(event);
    }
    heard
}

pub(crate) fn run(handle: &Handle, request: Request) -> Heard {
    hear(handle.submit(request).expect("a request that can run"))
}

/// A device that tells of each submission with rows, and waits for permission to make it.
pub(crate) struct Gate {
    pub(crate) inner: NullExecutor,
    pub(crate) told: Sender<(Phase, usize)>,
    pub(crate) permits: Receiver<()>,
}

/// The other side of a [`Gate`].
pub(crate) struct Keeper {
    pub(crate) told: Receiver<(Phase, usize)>,
    pub(crate) permits: Sender<()>,
}

pub(crate) fn gate(inner: NullExecutor) -> (Gate, Keeper) {
    let ((told, heard), (permits, asked)) = (channel(), channel());
    (Gate { inner, told, permits: asked }, Keeper { told: heard, permits })
}

impl Keeper {
    /// Waits until the device is asked for a submission, and lets it pass.
    pub(crate) fn pass(&self) -> (Phase, usize) {
        let told = self.told.recv().expect("the engine runs");
        self.permits.send(()).expect("the engine runs");
        told
    }
}

impl Gate {
    /// Waits for permission. A keeper that is gone lets everything pass.
    fn pass(&self, submission: &Submission<'_>) {
        if !submission.rows.is_empty() && self.told.send((submission.phase, submission.rows.len())).is_ok() {
            let _ = self.permits.recv();
        }
    }
}

impl Executor for Gate {
    fn plan(&self) -> &Plan {
        self.inner.plan()
    }

    fn submit(&mut self, submission: &Submission<'_>) -> Result<(), DeviceError> {
        self.pass(submission);
        self.inner.submit(submission)
    }

    fn logits(&mut self, rows: &[u32]) -> Result<&[f32], DeviceError> {
        self.inner.logits(rows)
    }

    fn fill(&mut self, submission: &Submission<'_>, seed: u64) -> Result<(), DeviceError> {
        self.pass(submission);
        self.inner.fill(submission, seed)
    }

    fn high_water(&self) -> Vec<HighWater> {
        self.inner.high_water()
    }

    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }
}
