//! Model files, from opening to running.

mod common;

use std::path::PathBuf;

use tailrace_device::null::NullLoader;
use tailrace_device::plan::spec::Reach;
use tailrace_device::plan::{Limits, PlanError, WeightForm};
use tailrace_device::{DeviceError, LoadOptions, WeightFile};
use tailrace_engine::{Engine, GgufWeights, LoadError, OpenModel, Request, open, start_shape};
use tailrace_gguf::{Gguf, decode_row};

fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden/models")
}

fn models() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(golden()).expect("the golden models are there");
    let paths = entries.map(|entry| entry.expect("a readable folder").path());
    paths.filter(|path| path.extension().is_some_and(|e| e == "gguf")).collect()
}

fn started(model: &OpenModel, limits: &Limits) -> Result<tailrace_engine::Handle, LoadError> {
    let mut fraction = 0.0;
    let handle = model.start(limits, &NullLoader::default(), LoadOptions::default(), &mut |f| fraction = f)?;
    assert_eq!(fraction, 1.0);
    Ok(handle)
}

#[test]
fn every_golden_model_runs() {
    let models = models();
    assert!(models.len() > 10);
    for path in models {
        let model = open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let handle = started(&model, &Limits::new(512)).expect("it fits");
        assert_eq!((handle.vocab(), handle.plan().vocab), (model.spec().vocab, model.spec().vocab));
        let prompt = handle.tokenizer().encode("a model", true, false);
        let request = Request { max_tokens: 5, stop_at_eog: false, ..Request::new(prompt) };
        let completion = handle.submit(request).expect("it can run").complete().expect("it runs");
        assert_eq!(completion.tokens.len(), 5);
    }
}

#[test]
fn a_shape_runs_without_a_file() {
    let spec = common::spec(&[Reach::Sliding(64), Reach::Global]);
    let handle = start_shape(&spec, &Limits::new(512), &NullLoader::default(), 3, &mut |_| {}).expect("it fits");
    let request = Request { max_tokens: 9, ..Request::new(common::prompt(1, 20)) };
    let completion = handle.submit(request).expect("it can run").complete().expect("it runs");
    // No token ends the text, and none prints any.
    assert_eq!((completion.tokens.len(), completion.text.as_str()), (9, ""));
}

#[test]
fn weights_are_the_bytes_of_the_file() {
    for path in models() {
        let model = open(&path).expect("a good file");
        let weights = GgufWeights::new(&model.gguf);
        let plan = model.plan(&Limits::new(512), &NullLoader::default()).expect("it fits");
        for weight in &plan.weights {
            let slice = &weight.slice;
            let row_bytes = slice.ty.block().bytes_of(slice.cols).expect("rows are whole blocks") as usize;
            let data = model.gguf.tensor_data(slice.tensor as usize);
            let first = slice.first_row as usize;
            for row in [0, slice.rows / 2, slice.rows - 1] {
                let at = (first + row as usize) * row_bytes;
                assert_eq!(weights.rows(slice, row, 1).expect("it exists")[..], data[at..at + row_bytes]);
            }
            let all = weights.rows(slice, 0, slice.rows).expect("they exist").into_owned();
            weights.release(slice, 0, slice.rows);
            assert_eq!(weights.rows(slice, 0, slice.rows).expect("they exist")[..], all[..]);
            if weight.form == WeightForm::Vector {
                let mut expected = vec![0.0; (slice.rows * slice.cols) as usize];
                decode_row(slice.ty, &all, &mut expected);
                assert_eq!(weights.values(slice).expect("they exist"), expected);
            }
            for (row, count) in [(0, slice.rows + 1), (slice.rows, 1), (u64::MAX, 1), (1, u64::MAX)] {
                assert!(matches!(weights.rows(slice, row, count), Err(DeviceError::Weights(_))));
                weights.release(slice, row, count);
            }
        }
    }
}

#[test]
fn errors_are_one_line() {
    let missing = open(golden().join("no-such-model.gguf")).map(drop).expect_err("there is none");
    assert!(matches!(missing, LoadError::File(_)));
    let empty = Gguf::from_bytes(Vec::new()).map_err(LoadError::from).map(drop).expect_err("nothing in it");
    let model = open(golden().join("qwen3.gguf")).expect("a good file");
    let zero = started(&model, &Limits::new(0)).map(drop).expect_err("no context");
    assert!(matches!(zero, LoadError::Plan(PlanError::Zero(_))));
    for error in [missing, empty, zero] {
        let text = error.to_string();
        assert!(!text.is_empty() && !text.contains('\n'), "{text:?}");
    }
}

#[test]
fn an_engine_is_started_again_from_the_same_file() {
    let model = open(golden().join("llama-tied.gguf")).expect("a good file");
    let run = || {
        let handle = started(&model, &Limits::new(512)).expect("it fits");
        let tokens = common::run(&handle, common::greedy(common::prompt(1, 30)[..1].to_vec(), 3)).tokens;
        handle.stop();
        tokens
    };
    let _: fn(tailrace_engine::EngineConfig) -> Result<tailrace_engine::Handle, _> = Engine::start;
    assert_eq!(run(), run());
}
