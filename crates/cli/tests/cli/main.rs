//! The binary as its users meet it: what it prints where, and how it ends.

mod bad_input;
mod bench;
mod cap;
mod chat;
mod common;
mod demo;
mod eval;
mod plan;
mod report;
mod run;
