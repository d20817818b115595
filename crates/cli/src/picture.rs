//! Pictures of what was measured.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::file::NewFile;

/// Where a picture goes.
#[derive(Debug, Args)]
pub(crate) struct PictureArgs {
    /// Draw the result to this file (SVG).
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// A picture to be drawn, if one is wanted. Whether its file can be written is known before anything is computed.
#[derive(Default)]
pub(crate) struct Picture(Option<NewFile>);

impl Picture {
    pub(crate) fn new(args: &PictureArgs) -> Result<Self> {
        Ok(Picture(args.svg.as_deref().map(NewFile::create).transpose()?))
    }

    /// Writes what `svg` draws, where a picture is wanted.
    pub(crate) fn draw(self, svg: impl FnOnce() -> String) -> Result<()> {
        self.0.map_or(Ok(()), |file| file.fill(&svg()))
    }
}
