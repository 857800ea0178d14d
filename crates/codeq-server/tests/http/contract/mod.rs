//! Every route: exact shapes, codes and texts.

mod admin;
mod bodies;
mod details;
mod edge;
mod enqueue;
mod limits;
mod reads;
mod unknown;
mod workers;
