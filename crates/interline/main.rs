//! The program `interline`: reads what was typed and what is configured, puts the parts together, and runs them.
//!
//! | file | what it is |
//! |---|---|
//! | `args.rs` | the command line and its help |
//! | `config.rs` | every option, where it may come from, what is checked |
//! | `surfaces.rs`, `upstreams.rs` | the two registration lists: one line each |
//! | `app.rs` | a hub and its routes, made of a checked config |
//! | `reload.rs` | what changes while it runs |
//! | `server.rs` | connections: accepted, bounded, ended |
//! | `admin.rs` | `/healthz`, `/readyz`, `/metrics` |
//! | `serve.rs`, `demo.rs`, `sim.rs`, `map.rs`, `chat.rs` | the commands |

mod admin;
mod app;
mod args;
mod chat;
mod config;
mod contracts;
mod demo;
mod logging;
mod map;
mod page;
mod reload;
mod serve;
mod server;
mod signals;
mod sim;
mod surfaces;
mod telemetry;
mod upstreams;

use std::error::Error;
use std::future::Future;
use std::process::ExitCode;

use args::{Args, Check, Command};
use clap::Parser as _;

/// What was typed or configured is wrong; the same as clap's own.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    // First of all: rustls does not choose a provider by itself where it was built with more than one.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // A damaged journal is no crash, and says so itself.
        if !interline_journal::catches_panics() {
            print(panic);
        }
    }));
    match run(Args::parse().command) {
        Ok(code) => code,
        Err(error) if error.is::<config::Problems>() => {
            eprintln!("interline: the config is not right\n{error}");
            ExitCode::from(USAGE)
        }
        Err(error) => {
            report(&*error);
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<ExitCode, Box<dyn Error>> {
    match command {
        Command::Serve(args) => wait(serve::run(args))?,
        Command::Demo(args) => wait(demo::run(args))?,
        Command::Sim(args) => wait(sim::run(args))?,
        Command::Check(args) => check(&args)?,
        Command::Map(args) => map::run(&args)?,
        Command::Chat(args) => return wait(chat::run(args)),
    }
    Ok(ExitCode::SUCCESS)
}

fn wait<T>(work: impl Future<Output = Result<T, Box<dyn Error>>>) -> Result<T, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(work);
    // A thread that waits for standard input would keep the program alive.
    runtime.shutdown_background();
    result
}

fn check(args: &Check) -> Result<(), Box<dyn Error>> {
    let checked = config::load(&args.file, Vec::new())?;
    for warning in &checked.warnings {
        eprintln!("interline: warning: {warning}");
    }
    println!("{}: right. {}", args.file.display(), checked.summary());
    Ok(())
}

/// Says what went wrong, and why if that is known.
fn report(error: &dyn Error) {
    eprintln!("interline: {error}");
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !said.contains(&text) {
            eprintln!("  because: {text}");
        }
        said = text;
        cause = error.source();
    }
}
