//! The tiny models of `golden/models` in tests: what is expected of them, and ways to run them.

#![allow(dead_code)]

use std::path::{Path, PathBuf};

use serde_json::Value;
use tailrace_device::plan::{ActivationType, Limits};
use tailrace_device::{LoadOptions, Loader};
use tailrace_engine::{Event, Handle, LogitsWanted, OpenModel, Request, Snapshot, open};
use tailrace_types::{KvType, TokenId};

/// Models in the folder.
pub(crate) const MODELS: usize = 27;

/// Of them, those named for a weight type.
pub(crate) const TYPE_MODELS: usize = 16;

/// Bound on log-probabilities against the golden ones; every wrong variant of a model is off by ten times as much.
pub(crate) const GOLDEN_BOUND: f64 = 2e-3;

/// A model, its tokens and what is expected of them.
pub(crate) struct Golden {
    pub(crate) name: String,
    pub(crate) model: OpenModel,
    pub(crate) tokens: Vec<TokenId>,
    /// For each position `lse` and pairs of a token and its log-probability.
    pub(crate) positions: Vec<(f64, Vec<(usize, f64)>)>,
}

impl Golden {
    pub(crate) fn read(path: &Path) -> Golden {
        let text = std::fs::read_to_string(path.with_extension("json")).expect("each model has its values");
        let json: Value = serde_json::from_str(&text).expect("it is JSON");
        let list = |value: &Value| value.as_array().expect("a list").clone();
        let number = |value: &Value| value.as_f64().expect("a number");
        let position = |entry: &Value| {
            let pairs = list(&entry[1]).into_iter().zip(list(&entry[2]));
            (number(&entry[0]), pairs.map(|(id, logp)| (number(&id) as usize, number(&logp))).collect())
        };
        let golden = Golden {
            name: path.file_stem().and_then(|stem| stem.to_str()).expect("a name").to_owned(),
            model: open(path).expect("a good file"),
            tokens: list(&json["tokens"]).iter().map(|id| TokenId(number(id) as u32)).collect(),
            positions: list(&json["positions"]).iter().map(position).collect(),
        };
        assert!(golden.tokens.len() >= 32 && golden.positions.len() == golden.tokens.len(), "{}", golden.name);
        golden
    }

    /// The model's tokens over and over, `count` in all.
    pub(crate) fn repeated(&self, count: usize) -> Vec<TokenId> {
        self.tokens.iter().copied().cycle().take(count).collect()
    }

    /// Largest distance of `logits` to the expected values.
    pub(crate) fn error(&self, logits: &Logits) -> f64 {
        assert_eq!(logits.rows().count(), self.positions.len());
        let errors = logits.rows().zip(&self.positions).flat_map(|(row, (expected, pairs))| {
            let lse = lse(row);
            let logp = move |&(id, logp): &(usize, f64)| f64::from(row[id]) - lse - logp;
            assert_eq!(pairs.len(), 8);
            pairs.iter().map(logp).chain([lse - expected])
        });
        errors.map(f64::abs).fold(0.0, worst)
    }
}

/// `max` that keeps a NaN: a poisoned result is the worst.
pub(crate) fn worst(a: f64, b: f64) -> f64 {
    if a.is_nan() || a >= b { a } else { b }
}

/// The logarithm of the sum of the exponentials.
pub(crate) fn lse(row: &[f32]) -> f64 {
    let top = row.iter().copied().fold(f32::MIN, f32::max);
    f64::from(top) + row.iter().map(|x| f64::from(x - top).exp()).sum::<f64>().ln()
}

/// Models whose names begin with `prefix`, in order of name.
pub(crate) fn golden(prefix: &str) -> Vec<Golden> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden/models");
    let entries = std::fs::read_dir(folder).expect("the golden models are there");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    paths.retain(|path| {
        let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        path.extension().is_some_and(|extension| extension == "gguf") && name.starts_with(prefix)
    });
    paths.sort();
    paths.iter().map(|path| Golden::read(path)).collect()
}

pub(crate) fn named(name: &str) -> Golden {
    golden(name).into_iter().find(|golden| golden.name == name).expect("the model is there")
}

/// Logits of consecutive positions from 0 on.
pub(crate) struct Logits {
    pub(crate) values: Vec<f32>,
    pub(crate) vocab: usize,
}

impl Logits {
    pub(crate) fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact(self.vocab)
    }

    pub(crate) fn bits(&self) -> Vec<u32> {
        self.values.iter().map(|x| x.to_bits()).collect()
    }

    /// Largest distance of the log-probabilities of each row, ascending.
    pub(crate) fn distances(&self, other: &Logits) -> Vec<f64> {
        assert_eq!((self.values.len(), self.vocab), (other.values.len(), other.vocab));
        let distance = |(a, b): (&[f32], &[f32])| {
            let (lse_a, lse_b) = (lse(a), lse(b));
            let tokens = a.iter().zip(b);
            let each = tokens.map(|(&a, &b)| ((f64::from(a) - lse_a) - (f64::from(b) - lse_b)).abs());
            each.fold(0.0, worst)
        };
        let mut distances: Vec<f64> = self.rows().zip(other.rows()).map(distance).collect();
        distances.sort_by(f64::total_cmp);
        distances
    }
}

/// The largest and the median of ascending distances.
pub(crate) fn largest_and_median(distances: &[f64]) -> (f64, f64) {
    (distances[distances.len() - 1], distances[distances.len() / 2])
}

/// How a sequence is run.
#[derive(Clone)]
pub(crate) struct Way {
    pub(crate) limits: Limits,
    pub(crate) poison: bool,
    /// Tokens of the prompt; the rest is fed one by one.
    pub(crate) prompt: usize,
}

impl Way {
    /// f32 throughout, everything resident, two chunks or more, then half of the tokens one by one.
    pub(crate) fn exact(tokens: usize) -> Way {
        let limits = Limits {
            chunk: 64,
            activations: ActivationType::F32,
            k_type: KvType::F32,
            v_type: KvType::F32,
            ..Limits::new((tokens as u32).next_multiple_of(256))
        };
        Way { limits, poison: false, prompt: tokens / 2 }
    }

    /// Default types.
    pub(crate) fn default_types(tokens: usize) -> Way {
        let exact = Way::exact(tokens);
        let limits = Limits { chunk: 64, ..Limits::new(exact.limits.context_cells) };
        Way { limits, ..exact }
    }

    /// The same through a window of one block, with everything that is dropped made NaN.
    pub(crate) fn spilled(self) -> Way {
        Way { limits: Limits { window_cells: Some(256), ..self.limits }, poison: true, ..self }
    }

    /// Logits of all `tokens`, and the engine's state afterwards.
    pub(crate) fn run(&self, model: &OpenModel, loader: &dyn Loader, tokens: &[TokenId]) -> (Logits, Snapshot) {
        let options = LoadOptions { poison: self.poison };
        let handle = model.start(&self.limits, loader, options, &mut |_| ()).expect("it fits");
        let logits = forced(&handle, tokens, self.prompt);
        let snapshot = handle.snapshot().expect("the engine runs");
        handle.stop();
        (logits, snapshot)
    }
}

/// Logits of all `tokens`, the first `prompt` of which are computed in chunks and the others one by one.
pub(crate) fn forced(handle: &Handle, tokens: &[TokenId], prompt: usize) -> Logits {
    let (prompt, forced) = tokens.split_at(prompt);
    let (forced, max_tokens, logits) = (forced.to_vec(), 0, LogitsWanted::All);
    let request = Request { forced, max_tokens, logits, ..Request::new(prompt.to_vec()) };
    let mut logits = Logits { values: Vec::new(), vocab: handle.vocab() as usize };
    let mut done = false;
    for event in handle.submit(request).expect("it can run") {
        match event {
            Event::Logits { first_position, values, .. } => {
                assert_eq!(first_position as usize, logits.rows().count());
                logits.values.extend(values);
            }
            Event::Done { .. } => done = true,
            Event::Error(error) => panic!("{error}"),
            Event::PrefillProgress { .. } | Event::Token { .. } | Event::Rewound { .. } => {}
        }
    }
    assert!(done && logits.rows().count() == tokens.len());
    logits
}
