//! Transitions of tasks as a stream.
