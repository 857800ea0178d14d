//! openraft's own suite for log stores.
