//! `tailrace`: runs GGUF models whose KV cache does not fit on the device.

mod args;
mod bench;
mod chat;
mod cuda;
mod demo;
mod device;
mod eval;
mod file;
mod generate;
mod inspect;
mod interrupt;
mod limits;
mod path;
mod picture;
mod plan;
mod prompt;
mod report;
mod run;
mod sampling;
mod session;
mod size;
mod stderr;
mod stdout;
mod summary;

use std::io;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use args::{Cli, Command};

/// Exit status of a command line that cannot be understood.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let parsed = args::with_long_names(std::env::args_os()).map(Cli::try_parse_from);
    let cli = match parsed {
        Ok(Ok(cli)) => cli,
        Ok(Err(error)) => return usage(&error),
        Err(line) => {
            stderr::note(line);
            return USAGE.into();
        }
    };
    let result = match &cli.command {
        Command::Run(args) => run::run(args),
        Command::Demo(args) => demo::run(args).map(|()| true),
        Command::Chat(args) => chat::run(args).map(|()| true),
        Command::Plan(args) => plan::run(args).map(|()| true),
        Command::Inspect(args) => inspect::run(args).map(|()| true),
        Command::Bench(args) => bench::run(args).map(|()| true),
        Command::Eval(args) => eval::run(args).map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => interrupt::STATUS.into(),
        // Whoever read the output has left: nothing is lost, and nobody is there to be told.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            stderr::note(one_line(&error));
            ExitCode::FAILURE
        }
    }
}

/// Prints help where it was asked for, otherwise what is wrong with the command line.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // Nobody there to read it: nothing is lost.
        let _ = error.print();
    } else {
        stderr::note(args::one_line(error));
    }
    if error.use_stderr() { USAGE.into() } else { ExitCode::SUCCESS }
}

/// An error and its causes. Many errors say what caused them in their own words: those are not repeated.
fn one_line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = text + ": " + &cause;
        }
    }
    // Tables end with a line break of their own.
    text.trim_end().to_owned()
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|io| io.kind() == io::ErrorKind::BrokenPipe)
}
