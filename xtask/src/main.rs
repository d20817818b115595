//! Tasks of the workspace: `cargo xtask --help`.

use std::process::ExitCode;

use clap::Parser;

/// Tasks of the workspace that are not part of the product.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    Tidy(xtask::tidy::Args),
    Model(xtask::model::Args),
    Bench(xtask::bench::Args),
    Exact(xtask::exact::Args),
    Reference(xtask::reference::Args),
    Perplexity(xtask::perplexity::Args),
    CudaToolchain(xtask::toolchain::Args),
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Tidy(args) => args.run(),
        Command::Model(args) => args.run(),
        Command::Bench(args) => args.run(),
        Command::Exact(args) => args.run(),
        Command::Reference(args) => args.run(),
        Command::Perplexity(args) => args.run(),
        Command::CudaToolchain(args) => args.run(),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
