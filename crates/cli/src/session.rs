//! A model that is open, planned, loaded and ready.

use std::io::IsTerminal;
use std::path::Path;

use anyhow::{Result, anyhow, bail};
use tailrace_device::LoadOptions;
use tailrace_engine::{EngineError, Handle, OpenModel};
use tailrace_plan::{Plan, RowKind};
use tailrace_types::Bytes;

use crate::args::LimitArgs;
use crate::{limits, plan, stderr};

pub(crate) struct Session {
    pub(crate) handle: Handle,
    pub(crate) plan: Plan,
    /// What computes.
    pub(crate) device: String,
}

/// What a context must have room for.
#[derive(Clone, Copy)]
pub(crate) struct Prompt {
    /// Tokens of the prompt.
    pub(crate) tokens: usize,
    /// Tokens to generate at most.
    pub(crate) max_tokens: u32,
}

/// Room that is suggested for an answer of no given length, in tokens.
const ANSWER_TOKENS: u32 = 256;

impl Session {
    /// Reads everything of a model but its weights.
    pub(crate) fn open(path: &Path) -> Result<OpenModel> {
        let model = tailrace_engine::open(path)?;
        Self::warn(&model);
        Ok(model)
    }

    /// Says what a user should know of a model.
    pub(crate) fn warn(model: &OpenModel) {
        for warning in &model.warnings {
            stderr::note(format_args!("warning: {warning}"));
        }
    }

    /// Plans, refuses a prompt that the context cannot hold, and loads. Everybody needs the logits of last tokens alone.
    pub(crate) fn start(model: OpenModel, args: &LimitArgs, prompt: Option<Prompt>, verbose: bool) -> Result<Session> {
        let check = |plan: &Plan| {
            let cells = plan.cache.sequence_cells;
            if let Some(Prompt { tokens, max_tokens }) = prompt
                && tokens > cells as usize
            {
                let needed = (tokens as u64 + u64::from(max_tokens.min(ANSWER_TOKENS))) * u64::from(args.parallel);
                bail!("the prompt has {tokens} tokens, the context holds {cells}; use -c {needed} or a shorter prompt");
            }
            Ok(())
        };
        Self::load(&model, args, args.parallel, check, verbose)
    }

    /// Plans and loads for an evaluation, which takes `logit_rows` rows of logits at a time.
    pub(crate) fn evaluate(model: &OpenModel, args: &LimitArgs, logit_rows: u32) -> Result<Session> {
        Self::load(model, args, logit_rows, |_| Ok(()), false)
    }

    fn load(
        model: &OpenModel,
        args: &LimitArgs,
        logit_rows: u32,
        check: impl FnOnce(&Plan) -> Result<()>,
        verbose: bool,
    ) -> Result<Session> {
        let mut resolved = limits::resolve(args, model.spec(), logit_rows)?;
        let plan = limits::plan(model.spec(), &mut resolved)?;
        check(&plan)?;
        resolved.notes.iter().for_each(stderr::note);
        if verbose {
            stderr::print(plan::describe(&plan));
        }
        let mut progress = Progress::new();
        let mut show = |fraction| progress.show("loading", fraction);
        let loader = resolved.device.loader.as_ref();
        let started = model.start(&resolved.limits, loader, LoadOptions::default(), &mut show);
        progress.clear();
        let handle = started.map_err(|error| limits::explain(error, &plan))?;
        Ok(Session { handle, plan, device: loader.name() })
    }

    /// A failure of the engine, with what would help.
    pub(crate) fn explain(&self, error: EngineError) -> anyhow::Error {
        let (tail, host) = (self.plan.memory.bytes(RowKind::Tail), self.plan.limits.host_bytes_max);
        match error {
            EngineError::HostFull(_) if tail > host => anyhow!(
                "the tail has used up its limit of {} of host memory, and a full context needs {}; raise --host-mem, or lower -c",
                Bytes(host),
                Bytes(tail)
            ),
            other => other.into(),
        }
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
            stderr::print(format_args!("\r{what} {percent:>3} %\x1b[K"));
            self.shown = Some(percent);
        }
    }

    /// Takes the line away.
    pub(crate) fn clear(&mut self) {
        if self.shown.take().is_some() {
            stderr::print("\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
