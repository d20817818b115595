//! A model on disk: one container, or several that belong together.

use std::io;
use std::ops::Range;
use std::path::Path;

use crate::error::{Fault, GgufError, TensorFault, escape, quote};
use crate::header::Header;
use crate::metadata::Metadata;
use crate::mmap::Mapping;
use crate::parse::{self, Container, TensorInfo};
use crate::split::{self, Split};

/// A GGUF model: its metadata, its tensors and their bytes.
///
/// Everything was checked when it was opened: each tensor's bytes lie within its file, and no two tensors overlap.
pub struct Gguf {
    header: Header,
    shards: Vec<Shard>,
}

/// Files of a model, as far as they were read.
struct Opened {
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    shards: Vec<Shard>,
}

struct Shard {
    /// Path or stand-in, escaped.
    name: String,
    storage: Storage,
}

enum Storage {
    Mapped(Mapping),
    Owned(Vec<u8>),
}

impl Gguf {
    /// Opens the model at `path`, mapped into memory. Of a split model it is the path of the first file; the others lie beside it.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or breaks a rule of the format.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        let path = path.as_ref();
        let (mut opened, split) = Opened::begin(Shard::open(path)?)?;
        if let Some(split) = split {
            let siblings = split::siblings(path, split.count).map_err(|fault| opened.shards[0].invalid(fault))?;
            for sibling in siblings {
                opened.append(Shard::open(&sibling)?, split)?;
            }
        }
        opened.finish(split)
    }

    /// Reads a model that is in memory.
    ///
    /// # Errors
    ///
    /// As [`Gguf::open`]; the file is called `memory`.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, GgufError> {
        Self::from_shards(vec![bytes])
    }

    /// Reads a split model that is in memory, first file first.
    ///
    /// # Errors
    ///
    /// As [`Gguf::open`]; the files are called `memory`, `memory 2` and so on.
    pub fn from_shards(shards: Vec<Vec<u8>>) -> Result<Self, GgufError> {
        let given = shards.len();
        let mut shards = shards.into_iter().enumerate().map(|(i, bytes)| Shard {
            name: match i {
                0 => "memory".to_owned(),
                _ => format!("memory {}", i + 1),
            },
            storage: Storage::Owned(bytes),
        });
        let first = shards.next().unwrap_or(Shard { name: "memory".to_owned(), storage: Storage::Owned(Vec::new()) });
        let (mut opened, split) = Opened::begin(first)?;
        let count = split.map_or(1, |split| split.count as usize);
        if given != count {
            let problem = format!("is file 1 of {count}, and {given} were given");
            return Err(opened.shards[0].invalid(Fault::Split(problem)));
        }
        if let Some(split) = split {
            for shard in shards {
                opened.append(shard, split)?;
            }
        }
        opened.finish(split)
    }

    /// Its keys and tensors.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Keys and values (of the first file, where the model is split).
    pub fn metadata(&self) -> &Metadata {
        self.header.metadata()
    }

    /// Every tensor, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        self.header.tensors()
    }

    /// Index in [`Gguf::tensors`] of the tensor called `name`.
    pub fn tensor_index(&self, name: &str) -> Option<usize> {
        self.header.tensor_index(name)
    }

    /// The bytes of tensor `index`: rows of blocks, at no alignment that a wider type could rely on.
    ///
    /// # Panics
    ///
    /// If there is no such tensor.
    pub fn tensor_data(&self, index: usize) -> &[u8] {
        let tensor = &self.tensors()[index];
        &self.shards[tensor.shard].bytes()[data_range(tensor)]
    }

    /// Gives back the memory that `range` of the bytes of tensor `index` occupies as pages of the file. Reading it again brings it
    /// back, so this is only about memory: a loader that releases what it has copied never holds the model twice.
    ///
    /// # Panics
    ///
    /// If there is no such tensor, or the range is not within it.
    pub fn release(&self, index: usize, range: Range<usize>) {
        self.advise(index, range, Mapping::release);
    }

    /// Has the system read `range` of the bytes of tensor `index` before it is needed.
    ///
    /// # Panics
    ///
    /// If there is no such tensor, or the range is not within it.
    pub fn will_need(&self, index: usize, range: Range<usize>) {
        self.advise(index, range, Mapping::will_need);
    }

    fn advise(&self, index: usize, range: Range<usize>, advise: fn(&Mapping, Range<usize>)) {
        let tensor = &self.tensors()[index];
        let data = data_range(tensor);
        assert!(
            range.start <= range.end && range.end <= data.len(),
            "{range:?} lies within the {} bytes of {}",
            data.len(),
            tensor.name
        );
        if let Storage::Mapped(mapping) = &self.shards[tensor.shard].storage {
            advise(mapping, data.start + range.start..data.start + range.end);
        }
    }

    /// Bytes of all files.
    pub fn file_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.bytes().len() as u64).sum()
    }

    /// Names of the files, escaped.
    pub fn file_names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.shards.iter().map(|shard| shard.name.as_str())
    }

    /// Checks that no file became shorter since it was opened. Reading tensor data beyond the new end would end the process, so a
    /// loader asks before it begins.
    ///
    /// # Errors
    ///
    /// [`GgufError::Changed`], or an error of the system.
    pub fn check_length(&self) -> Result<(), GgufError> {
        for shard in &self.shards {
            if let Storage::Mapped(mapping) = &shard.storage {
                let opened = mapping.bytes().len() as u64;
                let now = mapping.len_now().map_err(|source| shard.io(source))?;
                if now < opened {
                    return Err(GgufError::Changed { file: shard.name.clone(), opened, now });
                }
            }
        }
        Ok(())
    }
}

impl Opened {
    /// A model of the first file, and the split that it begins.
    fn begin(shard: Shard) -> Result<(Self, Option<Split>), GgufError> {
        let container = shard.parse(0)?;
        let split = Split::of(&container.metadata).map_err(|fault| shard.invalid(fault))?;
        if let Some(Split { number, count, .. }) = split.filter(|split| split.number != 0) {
            return Err(shard.invalid(Fault::Split(format!(
                "is file {} of {count} of a split model; open the file that ends in \"-00001-of-{count:05}.gguf\"",
                u64::from(number) + 1
            ))));
        }
        Ok((Self { metadata: container.metadata, tensors: container.tensors, shards: vec![shard] }, split))
    }

    /// Adds the next file of a split model.
    fn append(&mut self, shard: Shard, first: Split) -> Result<(), GgufError> {
        let number = self.shards.len();
        let container = shard.parse(number)?;
        let split = Split::of(&container.metadata).map_err(|fault| shard.invalid(fault))?;
        let belongs = split.is_some_and(|split| split.number as usize == number && split.count == first.count);
        if !belongs {
            let claim = match split {
                Some(split) => format!("file {} of {}", u64::from(split.number) + 1, split.count),
                None => "a model of its own".to_owned(),
            };
            return Err(shard.invalid(Fault::Split(format!(
                "must be file {} of {}, but its metadata says that it is {claim}; download the model again",
                number + 1,
                first.count
            ))));
        }
        self.tensors.extend(container.tensors);
        self.shards.push(shard);
        Ok(())
    }

    /// Checks what concerns all files together, and indexes the names.
    fn finish(self, split: Option<Split>) -> Result<Gguf, GgufError> {
        let found = self.tensors.len() as u64;
        if let Some(expected) = split.and_then(|split| split.tensors)
            && expected != found
        {
            return Err(self.shards[0].invalid(Fault::Split(format!(
                "must have {expected} tensors in all its files (metadata key \"split.tensors.count\"), and has {found}"
            ))));
        }
        let (header, shards) = (Header::new(self.metadata, self.tensors), self.shards);
        if let Some(again) = header.duplicate() {
            let fault = parse::tensor_fault(&again.name, TensorFault::Duplicate);
            return Err(shards[again.shard].invalid(fault));
        }
        Ok(Gguf { header, shards })
    }
}

/// Where the bytes of `tensor` lie in its file. Both ends were checked against a slice of it, so they fit `usize`.
fn data_range(tensor: &TensorInfo) -> Range<usize> {
    let start = tensor.offset as usize;
    start..start + tensor.bytes as usize
}

impl Shard {
    fn open(path: &Path) -> Result<Self, GgufError> {
        let name = escape(path.as_os_str().as_encoded_bytes());
        match Mapping::open(path) {
            Ok(mapping) => Ok(Self { name, storage: Storage::Mapped(mapping) }),
            Err(source) => Err(GgufError::Io { file: name, source }),
        }
    }

    fn bytes(&self) -> &[u8] {
        match &self.storage {
            Storage::Mapped(mapping) => mapping.bytes(),
            Storage::Owned(bytes) => bytes,
        }
    }

    /// Reads the header as that of file `number`, and gives its pages back: all that it says was copied.
    fn parse(&self, number: usize) -> Result<Container, GgufError> {
        let container = parse::parse(self.bytes(), number).map_err(|fault| self.invalid(fault))?;
        if let Storage::Mapped(mapping) = &self.storage {
            mapping.release(0..container.header_bytes);
        }
        Ok(container)
    }

    fn invalid(&self, fault: Fault) -> GgufError {
        GgufError::Invalid { file: self.name.clone(), fault: Box::new(fault) }
    }

    fn io(&self, source: io::Error) -> GgufError {
        GgufError::Io { file: self.name.clone(), source }
    }
}

impl std::fmt::Debug for Gguf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let files: Vec<String> = self.file_names().map(|name| quote(name.as_bytes())).collect();
        f.debug_struct("Gguf")
            .field("files", &files)
            .field("keys", &self.metadata().len())
            .field("tensors", &self.tensors().len())
            .finish()
    }
}
