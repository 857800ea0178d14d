//! Tokens against a provider.
