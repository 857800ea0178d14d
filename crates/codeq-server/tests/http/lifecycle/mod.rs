//! Tasks from creation to removal, and the operations that affect them in between.

mod bulk;
mod cancel;
mod change;
mod dead_letters;
mod lists;
mod queues;
mod topics;
mod walk;
