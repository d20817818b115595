//! The committed tiny models, which another program wrote.

mod common;

use std::path::{Path, PathBuf};

use tailrace_gguf::Gguf;
use tailrace_models::Model;
use tailrace_plan::spec::{Reach, Yarn};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/models")
}

fn model(name: &str) -> Model {
    let file = Gguf::open(folder().join(format!("{name}.gguf"))).unwrap();
    let model = tailrace_models::read(&file).unwrap();
    common::check(&model.spec, &file);
    assert_eq!(model.name, name);
    assert_eq!(model.warnings, Vec::<String>::new());
    model
}

#[test]
fn every_model_is_read_without_a_warning() {
    let mut count = 0;
    for entry in folder().read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "gguf") {
            let name = path.file_stem().unwrap().to_str().unwrap();
            let kind = name.strip_prefix("type-");
            let model = model(name);
            if let Some(kind) = kind {
                assert_eq!(model.spec.embed.ty.name().to_lowercase(), kind);
            }
            count += 1;
        }
    }
    assert!(count >= 26, "only {count} models in {}", folder().display());
}

#[test]
fn what_a_case_pins_down_is_in_its_spec() {
    let attention = |name: &str, layer: usize| model(name).spec.blocks[layer].attention().clone();
    let fused = attention("llama-fused", 1);
    assert_eq!(fused.q.weight.tensor, fused.v.weight.tensor);
    assert_eq!(fused.v.bias.unwrap().first_row, fused.v.weight.first_row);
    assert!(attention("llama-untied", 0).o.bias.is_some());
    assert!(attention("llama-factors", 0).rope.factors.is_some());
    assert_eq!(attention("llama-linear", 0).rope.linear, 4.0);
    let yarn = attention("llama-yarn", 0).rope.yarn;
    assert_eq!(yarn, Some(Yarn { original_context: 64, ext_factor: 1.0, beta_fast: 32.0, beta_slow: 1.0 }));
    assert!(attention("qwen2", 0).k.bias.is_some());
    assert!(attention("qwen3", 0).k_norm.is_some());
    assert_eq!(attention("gemma3", 4).reach, Reach::Sliding(32));
    assert_eq!(attention("gemma3", 5).reach, Reach::Global);
    assert_eq!(attention("gemma3-cap", 5).rope.dims, 8);
    assert_eq!(model("gemma3-cap").spec.logit_cap, Some(5.0));
}
