//! Which instruction set the kernels run on: detected or forced once, then passed by value.

use super::lanes::LanesKind;

/// A set of instructions that some kernel is written for, from the slowest to the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IsaLevel {
    /// Plain Rust on arrays, left to the compiler's vectoriser.
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX2 and the integer dot products of AVX-VNNI.
    Avx2Vnni,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX-512 and its integer dot products.
    Avx512Vnni,
}

impl IsaLevel {
    /// Every level, slowest first.
    pub const ALL: &[IsaLevel] =
        &[IsaLevel::Portable, IsaLevel::Avx2, IsaLevel::Avx2Vnni, IsaLevel::Avx512, IsaLevel::Avx512Vnni];

    /// The name used on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            IsaLevel::Portable => "portable",
            IsaLevel::Avx2 => "avx2",
            IsaLevel::Avx2Vnni => "avx2-vnni",
            IsaLevel::Avx512 => "avx512",
            IsaLevel::Avx512Vnni => "avx512-vnni",
        }
    }

    /// Whether this processor can execute the level.
    #[cfg(target_arch = "x86_64")]
    fn is_present(self) -> bool {
        use std::arch::is_x86_feature_detected as has;
        let avx2 = || has!("avx2") && has!("fma") && has!("f16c");
        let avx512 = || avx2() && has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
        match self {
            IsaLevel::Portable => true,
            IsaLevel::Avx2 => avx2(),
            IsaLevel::Avx2Vnni => avx2() && has!("avxvnni"),
            IsaLevel::Avx512 => avx512(),
            IsaLevel::Avx512Vnni => avx512() && has!("avx512vnni"),
        }
    }

    /// Whether this processor can execute the level.
    #[cfg(not(target_arch = "x86_64"))]
    fn is_present(self) -> bool {
        self == IsaLevel::Portable
    }
}

/// Proof that this processor can execute a level: a value exists only for a level that was
/// found at run time, which is what makes kernels that take one sound to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Isa(IsaLevel);

impl Isa {
    /// Plain Rust, present everywhere.
    pub const PORTABLE: Isa = Isa(IsaLevel::Portable);

    /// Every level that this processor has, slowest first.
    pub fn available() -> impl Iterator<Item = Isa> {
        let levels = IsaLevel::ALL.iter().copied();
        levels.filter(|level| level.is_present()).map(Isa)
    }

    /// The fastest level of this processor.
    pub fn detect() -> Isa {
        Isa::available().last().unwrap_or(Isa::PORTABLE)
    }

    /// Exactly `level`, or `None` if this processor lacks it.
    pub fn forced(level: IsaLevel) -> Option<Isa> {
        level.is_present().then_some(Isa(level))
    }

    /// The level that is proven.
    pub const fn level(self) -> IsaLevel {
        self.0
    }

    /// The implementation of [`Lanes`](super::lanes::Lanes) that the level has instructions for.
    pub(crate) const fn lanes(self) -> LanesKind {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            IsaLevel::Avx2 | IsaLevel::Avx2Vnni => LanesKind::Avx2,
            #[cfg(target_arch = "x86_64")]
            IsaLevel::Avx512 | IsaLevel::Avx512Vnni => LanesKind::Avx512,
            _ => LanesKind::Portable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detection_agrees_with_itself() {
        assert_eq!(Isa::available().next(), Some(Isa::PORTABLE));
        for &level in IsaLevel::ALL {
            let present = Isa::available().any(|isa| isa.level() == level);
            assert_eq!(Isa::forced(level).is_some(), present);
        }
        assert!(Isa::available().all(|isa| isa.level() <= Isa::detect().level()));
    }
}
