//! The service layer.
