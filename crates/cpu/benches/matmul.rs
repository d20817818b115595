//! Speed of the weight kernels: see `main`.

fn main() {}
