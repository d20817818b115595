//! `tailrace inspect`: what is in a model file.

use std::collections::BTreeMap;
use std::io::{self, Write};

use anyhow::Result;
use tailrace_gguf::{Gguf, escape};
use tailrace_types::Bytes;

use crate::args::InspectArgs;

pub(crate) fn run(args: &InspectArgs) -> Result<()> {
    let file = Gguf::open(&args.model)?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    for (key, value) in file.metadata().iter() {
        writeln!(out, "{} = {value}", escape(key.as_bytes()))?;
    }
    let mut types: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for tensor in file.tensors() {
        let (count, bytes) = types.entry(tensor.ty.name()).or_default();
        *count += 1;
        *bytes += tensor.bytes;
        if args.tensors {
            writeln!(
                out,
                "{:<40} {:<8} {:?} {} bytes",
                escape(tensor.name.as_bytes()),
                tensor.ty.name(),
                tensor.shape(),
                tensor.bytes
            )?;
        }
    }
    let total: u64 = file.tensors().iter().map(|t| t.bytes).sum();
    writeln!(out, "{} tensors, {}", file.tensors().len(), Bytes(total))?;
    for (name, (count, bytes)) in types {
        writeln!(out, "  {name:<8} {count:>5} tensors {:>12}", Bytes(bytes).to_string())?;
    }
    match tailrace_models::read(&file) {
        Ok(model) => writeln!(
            out,
            "{}: {} layers, width {}, trained for {} tokens",
            model.arch,
            model.spec.blocks.len(),
            model.spec.width,
            model.spec.context
        )?,
        Err(error) => writeln!(out, "not runnable: {error}")?,
    }
    out.flush()?;
    Ok(())
}
