//! The log from the outside: one module per thing that can happen to it.

#![allow(missing_docs)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod basics;
mod crash;
mod damage;
mod disk;
mod fixture;
mod full;
mod model;
mod reader;
mod support;
mod tail;
mod watermark;
