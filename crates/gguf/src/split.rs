//! Models in several files, `<prefix>-00001-of-0000N.gguf`.

use std::path::{Path, PathBuf};

use crate::error::{Fault, GgufError};
use crate::metadata::Metadata;

/// Most files of one model: far more than anyone splits into, far fewer than a process may open.
pub(crate) const SHARDS_MAX: u32 = 512;

/// What a file says about the split that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// Number of this file, from 0.
    pub(crate) number: u32,
    /// Files in all.
    pub(crate) count: u32,
    /// Tensors in all files, where the file says so.
    pub(crate) tensors: Option<u64>,
}

impl Split {
    /// The split that `metadata` belongs to; `None` for a model in one file.
    pub(crate) fn of(metadata: &Metadata) -> Result<Option<Self>, Fault> {
        let fault = |error: GgufError| Fault::Split(error.to_string());
        let count = metadata.u32("split.count").map_err(fault)?.unwrap_or(0);
        if count <= 1 {
            return Ok(None);
        }
        if count > SHARDS_MAX {
            return Err(Fault::Split(format!(
                "metadata key \"split.count\" is {count}, and at most {SHARDS_MAX} files can make a model"
            )));
        }
        Ok(Some(Self {
            number: metadata.u32("split.no").map_err(fault)?.unwrap_or(0),
            count,
            tensors: metadata.u64("split.tensors.count").map_err(fault)?,
        }))
    }
}

/// Paths of the files after the first, built from the first's path alone: nothing in a file can lead elsewhere.
pub(crate) fn siblings(first: &Path, count: u32) -> Result<Vec<PathBuf>, Fault> {
    let fault = || {
        Fault::Split(format!(
            "is file 1 of {count}, so its name must end in \"-00001-of-{count:05}.gguf\" for the others to be found"
        ))
    };
    let name = first.file_name().and_then(|name| name.to_str()).ok_or_else(fault)?;
    let prefix = name.strip_suffix(&format!("-00001-of-{count:05}.gguf")).ok_or_else(fault)?;
    Ok((2..=count).map(|number| first.with_file_name(format!("{prefix}-{number:05}-of-{count:05}.gguf"))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_other_files_follow_from_the_first() {
        let paths = siblings(Path::new("/m/a-00001-of-00003.gguf"), 3).unwrap();
        let expected = ["/m/a-00002-of-00003.gguf", "/m/a-00003-of-00003.gguf"];
        assert_eq!(paths, expected.map(PathBuf::from));
        for wrong in ["/m/a.gguf", "/m/a-00002-of-00003.gguf", "/m/a-00001-of-00004.gguf", "/", ""] {
            let text = siblings(Path::new(wrong), 3).unwrap_err().to_string();
            assert!(text.contains("-00001-of-00003.gguf"), "{wrong}: {text}");
        }
    }

    #[test]
    fn one_file_is_no_split() {
        let mut metadata = Metadata::new();
        assert_eq!(Split::of(&metadata), Ok(None));
        metadata.insert("split.count", 1u16);
        assert_eq!(Split::of(&metadata), Ok(None));
        metadata.insert("split.count", 3u16);
        metadata.insert("split.no", 2u16);
        metadata.insert("split.tensors.count", 9i32);
        let split = Split { number: 2, count: 3, tensors: Some(9) };
        assert_eq!(Split::of(&metadata), Ok(Some(split)));
    }

    #[test]
    fn absurd_splits_are_refused() {
        let mut metadata = Metadata::new();
        metadata.insert("split.count", u64::MAX);
        assert!(Split::of(&metadata).is_err());
        metadata.insert("split.count", 65_535u16);
        assert!(Split::of(&metadata).is_err());
        metadata.insert("split.count", 2u16);
        metadata.insert("split.tensors.count", -1i32);
        assert!(Split::of(&metadata).is_err());
    }
}
