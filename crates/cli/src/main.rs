//! `tailrace`: runs GGUF models whose KV cache does not fit on the device.

mod args;
mod chat;
mod inspect;
mod interrupt;
mod limits;
mod plan;
mod prompt;
mod run;
mod sampling;
mod session;
mod size;
mod summary;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse_from(args::with_long_names(std::env::args_os()));
    let result = match &cli.command {
        Command::Run(args) => run::run(args),
        Command::Chat(args) => chat::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Inspect(args) => inspect::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has left: nothing is lost, and nobody is there to be told.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tailrace: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
}
