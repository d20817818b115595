//! Files that are written.

use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::{Builder, NamedTempFile};

use crate::path::shown;

/// A file to add lines to; made if it is not there.
pub(crate) fn append(path: &Path) -> Result<File> {
    let file = File::options().append(true).create(true).open(path);
    file.with_context(|| format!("cannot write {}", shown(path)))
}

/// A file that appears under its name when it is complete: until then, and if it never is, what was there before stays.
pub(crate) struct NewFile {
    to: BufWriter<Target>,
    path: PathBuf,
}

enum Target {
    /// Beside the file that it becomes.
    Temporary(NamedTempFile),
    /// A device or a pipe, which nothing can take the place of.
    Special(File),
}

impl NewFile {
    /// Begins a file.
    ///
    /// # Errors
    ///
    /// Nothing can be written there. Errors name the file, here and later.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        // Of a link what it points to is written, not the link.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let target = Self::open(&path).map_err(|error| named(&path, &error))?;
        Ok(NewFile { to: BufWriter::new(target), path })
    }

    fn open(path: &Path) -> io::Result<Target> {
        match path.metadata() {
            Ok(found) if found.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(found) if !found.is_file() => return File::options().write(true).open(path).map(Target::Special),
            _ => {}
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut builder = Builder::new();
        // Those of any new file, where the builder would let nobody else read it.
        #[cfg(unix)]
        builder.permissions(<Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o666));
        builder.prefix(".tailrace-").tempfile_in(folder).map(Target::Temporary)
    }

    /// Writes all of the file, and ends it.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub(crate) fn fill(mut self, text: &str) -> Result<()> {
        self.write_all(text.as_bytes())?;
        self.finish()
    }

    /// Ends the file.
    ///
    /// # Errors
    ///
    /// The last bytes cannot be written.
    pub(crate) fn finish(self) -> Result<()> {
        let NewFile { to, path } = self;
        let ended = to.into_inner().map_err(io::IntoInnerError::into_error).and_then(|target| match target {
            Target::Temporary(file) => file.persist(&path).map(|_| ()).map_err(|error| error.error),
            Target::Special(_) => Ok(()),
        });
        Ok(ended.map_err(|error| named(&path, &error))?)
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot write {}: {error}", shown(path)))
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to.write(bytes).map_err(|error| named(&self.path, &error))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush().map_err(|error| named(&self.path, &error))
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Target::Temporary(file) => file.write(bytes),
            Target::Special(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Target::Temporary(file) => file.flush(),
            Target::Special(file) => file.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_that_is_not_ended_leaves_what_was_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        fs::write(&path, "before").expect("a file");
        let mut file = NewFile::create(&path).expect("a place");
        file.write_all(b"after").expect("written");
        drop(file);
        assert_eq!(fs::read_to_string(&path).expect("a file"), "before");
        let mut file = NewFile::create(&path).expect("a place");
        file.write_all(b"after").expect("written");
        file.finish().expect("ended");
        assert_eq!(fs::read_to_string(&path).expect("a file"), "after");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing is left beside it");
        #[cfg(unix)]
        {
            let link = folder.path().join("link");
            std::os::unix::fs::symlink(&path, &link).expect("a link");
            let mut file = NewFile::create(&link).expect("a place");
            file.write_all(b"through").expect("written");
            file.finish().expect("ended");
            assert_eq!(fs::read_to_string(&path).expect("a file"), "through");
        }
    }

    #[test]
    fn errors_name_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        for path in [folder.path(), Path::new("/nowhere/file")] {
            let error = NewFile::create(path).err().expect("no file").to_string();
            assert!(error.starts_with(&format!("cannot write {}", path.display())), "{error}");
        }
        if Path::new("/dev/full").exists() {
            let mut file = NewFile::create(Path::new("/dev/full")).expect("a device");
            file.write_all(b"x").expect("in memory");
            let error = file.finish().expect_err("no space").to_string();
            assert!(error.starts_with("cannot write /dev/full"), "{error}");
        }
    }
}
