//! Compiles the kernels with nvcc, where there is one, and embeds the result. Never looks at the machine's own GPU and never
//! downloads: without nvcc nothing is embedded, and the device says so.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, thread};

#[derive(serde::Deserialize)]
struct Archs {
    archs: Vec<u32>,
    ptx: u32,
}

fn main() {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo says where the crate is"));
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo says where output goes"));
    let folder = root.join("kernels");
    for watched in ["kernels", "emulator", "build.rs"] {
        println!("cargo:rerun-if-changed={}", root.join(watched).display());
    }
    for variable in ["TAILRACE_CUDA_ARCHS", "TAILRACE_NVCC", "CUDA_HOME", "CUDA_PATH"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let files = sources(&folder);
    let nvcc = nvcc(&root);
    let images = match &nvcc {
        Some(nvcc) => compile_all(nvcc, &files, &out, &archs(&folder)),
        None => {
            println!(
                "cargo:warning=no nvcc: built without GPU kernels (install the CUDA toolkit, or run cargo xtask cuda-toolchain)"
            );
            Vec::new()
        }
    };
    write_images(&out, &images, nvcc.is_some());
    if env::var_os("CARGO_FEATURE_EMULATOR").is_some() {
        emulated(&root, &files, &out);
    }
}

/// The kernel files, sorted.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the kernels' folder");
    let mut files: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "cu"));
    files.sort();
    files
}

/// nvcc: named by the environment, on the path, in a toolkit's usual place, or installed by `cargo xtask cuda-toolchain`.
fn nvcc(root: &Path) -> Option<PathBuf> {
    let named = env::var_os("TAILRACE_NVCC").map(PathBuf::from);
    let homes =
        ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(env::var_os).map(|home| Path::new(&home).join("bin/nvcc"));
    let path = env::var_os("PATH").unwrap_or_default();
    let on_path = env::split_paths(&path).map(|folder| folder.join("nvcc")).collect::<Vec<_>>();
    let installed = root.join("../../.cache/cuda/nvidia/cu13/bin/nvcc");
    let places = homes.chain(on_path).chain([PathBuf::from("/usr/local/cuda/bin/nvcc"), installed]);
    named.into_iter().chain(places).find(|path| path.is_file())
}

/// Architectures to compile for: those of `archs.toml`, or the comma-separated ones of TAILRACE_CUDA_ARCHS (`90,ptx`).
fn archs(folder: &Path) -> (Vec<u32>, Option<u32>) {
    let text = fs::read_to_string(folder.join("archs.toml")).expect("archs.toml");
    let file: Archs = toml::from_str(&text).expect("archs.toml lists archs and ptx");
    let Ok(narrowed) = env::var("TAILRACE_CUDA_ARCHS") else { return (file.archs, Some(file.ptx)) };
    let asked: Vec<&str> = narrowed.split(',').map(str::trim).filter(|a| !a.is_empty()).collect();
    let archs = asked.iter().filter_map(|a| a.parse().ok()).filter(|a| file.archs.contains(a)).collect();
    (archs, asked.contains(&"ptx").then_some(file.ptx))
}

/// One image of each file, and whether it is for special architectures alone.
fn compile_all(nvcc: &Path, files: &[PathBuf], out: &Path, archs: &(Vec<u32>, Option<u32>)) -> Vec<(PathBuf, bool)> {
    let jobs = env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(1).max(1);
    let mut images = Vec::new();
    for group in files.chunks(jobs) {
        let compiled: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> =
                group.iter().map(|file| scope.spawn(move || compile(nvcc, file, out, archs))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a compiler thread")).collect()
        });
        images.extend(compiled.into_iter().flatten());
    }
    images
}

/// Compiles one file to a fatbin; `None` where none of its architectures is wanted.
fn compile(nvcc: &Path, file: &Path, out: &Path, (archs, ptx): &(Vec<u32>, Option<u32>)) -> Option<(PathBuf, bool)> {
    let text = fs::read_to_string(file).expect("a kernel file");
    let special = text.lines().next().and_then(|line| line.strip_prefix("// archs:")).map(str::trim);
    let mut targets = Vec::new();
    match special {
        Some(names) => {
            let wanted =
                |name: &&str| archs.iter().any(|a| name.trim_end_matches(char::is_alphabetic) == a.to_string());
            for name in names.split_whitespace().filter(wanted) {
                targets.push(format!("arch=compute_{name},code=sm_{name}"));
            }
        }
        None => {
            targets.extend(archs.iter().map(|a| format!("arch=compute_{a},code=sm_{a}")));
            targets.extend(ptx.map(|a| format!("arch=compute_{a},code=compute_{a}")));
        }
    }
    if targets.is_empty() {
        return None;
    }
    let image = out.join(file.file_name().expect("a file")).with_extension("fatbin");
    let mut command = Command::new(nvcc);
    command.args(["-ccbin", "g++", "-std=c++17", "-O3", "-fatbin", "-o"]).arg(&image).arg(file);
    for target in targets {
        command.args(["-gencode", &target]);
    }
    run_if_changed(&mut command, file, &image);
    Some((image, special.is_some()))
}

/// Runs a compiler that writes to `output`, unless the same command over the same text ran before, for this profile or another:
/// most changes are to one file.
fn run_if_changed(command: &mut Command, file: &Path, output: &Path) {
    let mut text = format!("{:?}", command.get_args().filter(|arg| *arg != output.as_os_str()).collect::<Vec<_>>());
    read_with_includes(file, &mut Vec::new(), &mut text);
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    // OUT_DIR is target/PROFILE/build/PACKAGE/out.
    let store = output.ancestors().nth(5).expect("a folder of the target directory").join("kernels");
    let known = store.join(format!("{:016x}", hasher.finish()));
    if fs::copy(&known, output).is_ok() {
        return;
    }
    let result = command.output().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    assert!(result.status.success(), "{}: {}", file.display(), String::from_utf8_lossy(&result.stderr));
    // Whole or not at all, also where two builds run at once. Without the store everything is only slower.
    let part = store.join(format!("{:016x}.{}", hasher.finish(), std::process::id()));
    let kept =
        fs::create_dir_all(&store).and_then(|()| fs::copy(output, &part)).and_then(|_| fs::rename(&part, &known));
    if let Err(error) = kept {
        println!("cargo:warning=compiled kernels are not kept: {error}");
    }
}

/// Appends the text of a file and of the files that it includes from its own folder, each once.
fn read_with_includes(file: &Path, known: &mut Vec<PathBuf>, out: &mut String) {
    let Ok(text) = fs::read_to_string(file) else { return };
    *out += &text;
    let folder = file.parent().expect("a file in a folder");
    let names = text.lines().filter_map(|line| line.trim().strip_prefix("#include \"")?.strip_suffix('"'));
    for name in names {
        let included = folder.join(name);
        if !known.contains(&included) {
            known.push(included.clone());
            read_with_includes(&included, known, out);
        }
    }
}

fn write_images(out: &Path, images: &[(PathBuf, bool)], compiled: bool) {
    let name = |path: &Path| path.file_stem().expect("a file").to_string_lossy().into_owned();
    let mut text = format!("/// Whether there was a compiler.\npub(crate) const COMPILED: bool = {compiled};\n\n");
    if !images.is_empty() {
        // Images are read by the driver as 64-bit words.
        text += "#[repr(align(64))]\nstruct Aligned<T: ?Sized>(T);\n\n";
    }
    let mut entries = String::new();
    for (i, (path, _)) in images.iter().enumerate() {
        text += &format!(
            "static IMAGE_{i}: &Aligned<[u8]> = &Aligned(*include_bytes!({:?}));\n",
            path.display().to_string()
        );
        entries += &format!("(\"{}\", &IMAGE_{i}.0), ", name(path));
    }
    text += &format!("\n/// Files and their fatbins.\npub(crate) static IMAGES: &[(&str, &[u8])] = &[{entries}];\n");
    let optional: Vec<_> = images.iter().filter(|(_, special)| *special).map(|(path, _)| name(path)).collect();
    text += &format!("\n/// Files for special architectures.\nconst OPTIONAL: &[&str] = &{optional:?};\n");
    fs::write(out.join("images.rs"), text).expect("the output folder can be written");
}

/// Compiles the kernels for the CPU, as one shared object that is looked into by name.
fn emulated(root: &Path, files: &[PathBuf], out: &Path) {
    let library = out.join("libtailrace_kernels_emulated.so");
    let flags = [
        "-std=c++17",
        "-O2",
        "-mavx2",
        "-mf16c",
        "-mfma",
        "-DTAILRACE_EMULATED",
        "-fno-weak",
        "-Wno-unknown-pragmas",
        "-fPIC",
    ];
    let mut objects = Vec::new();
    let special = |file: &&PathBuf| fs::read_to_string(file).is_ok_and(|text| text.starts_with("// archs:"));
    let emulator = root.join("emulator/emulator.cpp");
    let plain: Vec<_> = files.iter().filter(|file| !special(file)).chain([&emulator]).collect();
    for group in plain.chunks(2) {
        thread::scope(|scope| {
            for file in group {
                let object = out.join(file.file_name().expect("a file")).with_extension("emulated.o");
                objects.push(object.clone());
                let mut command = Command::new("g++");
                command.args(flags).args(["-x", "c++", "-c"]).arg(file).arg("-o").arg(&object);
                scope.spawn(move || run_if_changed(&mut command, file, &object));
            }
        });
    }
    let mut link = Command::new("g++");
    link.arg("-shared").args(&objects).args(["-ldl", "-o"]).arg(&library);
    let result = link.output().unwrap_or_else(|error| panic!("cannot run g++: {error}"));
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    println!("cargo:rustc-env=TAILRACE_EMULATED_KERNELS={}", library.display());
}
