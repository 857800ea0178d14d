//! What a tenant may do and hold.
