//! Tasks from their beginning to their end, and what steers them on the way.

mod bulk;
mod cancel;
mod change;
mod dead_letters;
mod lists;
mod queues;
mod topics;
mod walk;
