//! `cargo run --release -p interline-bench -- reliability`: what breaks, and what comes of it, as tables.
//!
//! Each command starts the real program before simulated agent servers and prints what it has found on standard output, and how far it is on
//! standard error. It ends with 1 if anything is wrong. `docs/reliability.md` has the figures.

#![allow(clippy::expect_used, reason = "a measurement that cannot go on should say where")]

mod kill;
mod reliability;
mod stalled;
mod stand;

use clap::{Args, Parser, Subcommand};

#[derive(Parser)]
#[command(name = "interline-bench", about = "What breaks, and what comes of it")]
struct Command {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Runs on all surfaces with faults on both sides, and the verdict on what every client has in the end.
    Reliability(reliability::Wishes),
    /// The program is killed again and again while it works, in each durability.
    Kill(kill::Wishes),
    /// Clients that never read, while much is produced.
    Stalled(stalled::Wishes),
}

/// What all commands have in common.
#[derive(Args, Clone, Debug)]
struct Common {
    /// A tenth of it.
    #[arg(long)]
    short: bool,
    /// Where all chance comes from; any number by default, and printed.
    #[arg(long)]
    seed: Option<u64>,
    /// The program. Without it, Cargo builds it in release mode, or it is the one beside this program.
    #[arg(long, value_name = "PATH")]
    binary: Option<String>,
}

#[tokio::main]
async fn main() {
    let is_clean = match Command::parse().what {
        What::Reliability(wishes) => reliability::run(wishes).await,
        What::Kill(wishes) => kill::run(wishes).await,
        What::Stalled(wishes) => stalled::run(wishes).await,
    };
    std::process::exit(i32::from(!is_clean));
}
