//! A model that is open, planned, loaded and ready.

use std::io::{IsTerminal, Write};
use std::path::Path;

use anyhow::{Result, bail};
use tailrace_device::LoadOptions;
use tailrace_engine::{Handle, OpenModel};
use tailrace_plan::Plan;

use crate::args::ModelArgs;
use crate::{limits, plan};

pub(crate) struct Session {
    pub(crate) handle: Handle,
    pub(crate) plan: Plan,
}

impl Session {
    /// Reads everything of a model but its weights.
    pub(crate) fn open(path: &Path) -> Result<OpenModel> {
        let model = tailrace_engine::open(path)?;
        for warning in &model.warnings {
            eprintln!("tailrace: {warning}");
        }
        Ok(model)
    }

    /// Plans, refuses a prompt of `prompt_tokens` that the context cannot hold, and loads.
    pub(crate) fn start(
        model: OpenModel,
        args: &ModelArgs,
        logit_rows: u32,
        prompt_tokens: usize,
        verbose: bool,
    ) -> Result<Session> {
        let mut resolved = limits::resolve(args, model.spec(), logit_rows)?;
        let plan = limits::plan(model.spec(), &mut resolved)?;
        for note in &resolved.notes {
            eprintln!("tailrace: {note}");
        }
        let cells = plan.cache.sequence_cells;
        if prompt_tokens > cells as usize {
            let needed = prompt_tokens as u64 * args.parallel as u64;
            bail!(
                "the prompt has {prompt_tokens} tokens, the context holds {cells}; use -c {needed} or a shorter prompt"
            );
        }
        if verbose {
            eprint!("{}", plan::describe(&plan));
        }
        let mut progress = Progress::new();
        let mut show = |fraction| progress.show("loading", fraction);
        let handle = model.start(&resolved.limits, &resolved.loader, LoadOptions::default(), &mut show)?;
        progress.clear();
        Ok(Session { handle, plan })
    }

    pub(crate) fn progress(&self) -> Progress {
        Progress::new()
    }
}

/// A line on standard error that says how far something is; silent where that is no terminal.
pub(crate) struct Progress {
    terminal: bool,
    /// What the line shows; nothing where there is no line.
    shown: Option<u32>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Progress { terminal: std::io::stderr().is_terminal(), shown: None }
    }

    /// Shows `fraction` of `what`.
    pub(crate) fn show(&mut self, what: &str, fraction: f32) {
        let percent = (fraction * 100.0) as u32;
        if self.terminal && self.shown != Some(percent) {
            eprint!("\r{what} {percent:>3} %\x1b[K");
            // Progress that cannot be shown is no reason to stop.
            let _ = std::io::stderr().flush();
            self.shown = Some(percent);
        }
    }

    /// Takes the line away.
    pub(crate) fn clear(&mut self) {
        if self.shown.take().is_some() {
            eprint!("\r\x1b[K");
        }
    }
}
