//! The documentation: links that lead somewhere, commands that run, reference pages that match the code.

mod commands;
mod http;
mod links;
mod pages;
mod programs;
mod reference;
mod server;
