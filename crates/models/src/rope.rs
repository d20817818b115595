//! Rotary position embeddings as GGUF files describe them.

use tailrace_gguf::escape;
use tailrace_plan::spec::{Pairing, Rope, Yarn};

use crate::error::ModelError;
use crate::parts::Reader;

/// Base of the frequencies where the file names none.
const BASE_DEFAULT: f32 = 10_000.0;

impl Reader<'_> {
    /// The embedding with the base in key `base`, positions not scaled.
    pub(crate) fn rope(&self, pairing: Pairing, base: &str) -> Result<Rope, ModelError> {
        const DIMS: &str = "rope.dimension_count";
        let dims = self.keys.count(DIMS, 2..=self.sizes.dk)?.unwrap_or(self.sizes.dk);
        if !dims.is_multiple_of(2) {
            return Err(self.keys.range(DIMS, dims, "an even number"));
        }
        Ok(Rope {
            pairing,
            dims,
            // YaRN divides by the logarithm: a base of 1 or less is no base.
            base: self.keys.float(base, 1.001..=1e12)?.unwrap_or(BASE_DEFAULT),
            linear: 1.0,
            factors: None,
            yarn: None,
            mscale: self.keys.float_or_zero("rope.scaling.attn_factor", 1e-3..=1e3)?.unwrap_or(1.0),
        })
    }

    /// `rope` with the scaling of positions that the file asks for.
    pub(crate) fn scaled(&self, rope: Rope) -> Result<Rope, ModelError> {
        const KIND: &str = "rope.scaling.type";
        let factor = match self.scaling_factor("rope.scaling.factor")? {
            Some(factor) => factor,
            // The name of the key in old files.
            None => self.scaling_factor("rope.scale_linear")?.unwrap_or(1.0),
        };
        match self.keys.text(KIND)?.unwrap_or("linear") {
            "none" => Ok(rope),
            "linear" => Ok(Rope { linear: factor, ..rope }),
            "yarn" => self.yarn(rope, factor),
            other => {
                let key = self.keys.key(KIND);
                Err(ModelError::Unsupported { what: format!("the \"{key}\" \"{}\"", escape(other.as_bytes())) })
            }
        }
    }

    fn scaling_factor(&self, name: &str) -> Result<Option<f32>, ModelError> {
        self.keys.float_or_zero(name, 1e-3..=1e6)
    }

    fn yarn(&self, rope: Rope, factor: f32) -> Result<Rope, ModelError> {
        let float = |name: &str, default| Ok::<_, ModelError>(self.keys.float(name, 1e-3..=1e6)?.unwrap_or(default));
        // Writers say -1 for "not set".
        let ext_factor = match self.keys.float("rope.scaling.yarn_ext_factor", -1.0..=1e3)? {
            Some(ext_factor) if ext_factor >= 0.0 => ext_factor,
            _ => 1.0,
        };
        if ext_factor == 0.0 {
            return Ok(Rope { linear: factor, ..rope });
        }
        let original = self.keys.count("rope.scaling.original_context_length", 1..=u32::MAX)?;
        let yarn = Yarn {
            original_context: original.unwrap_or(self.sizes.context),
            ext_factor,
            beta_fast: float("rope.scaling.yarn_beta_fast", 32.0)?,
            beta_slow: float("rope.scaling.yarn_beta_slow", 1.0)?,
        };
        // The paper's temperature of the softmax, applied to queries and keys alike.
        let mscale = if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 };
        Ok(Rope { linear: factor, yarn: Some(yarn), mscale: mscale * rope.mscale, ..rope })
    }
}
