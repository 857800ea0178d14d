//! Where webhooks go, over real sockets: only where they may, and without harm from whoever is there.

mod addresses;
mod dialling;
mod posts;
mod random;
mod receivers;
mod support;
mod tls;
