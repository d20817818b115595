//! Launches of this family of kernels.
