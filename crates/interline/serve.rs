//! `interline serve`: the proxy, as configured.

use std::error::Error;

use axum::Router;
use axum::routing::get;
use interline_journal::JournalConfig;

use crate::app::App;
use crate::args::Serve;
use crate::config::{self, Layer};
use crate::logging;
use crate::signals::{Hangups, Signals};
use crate::sim::bind;

/// What `/` says: somebody who finds this by its address should learn what it is.
const WHAT: &str =
    concat!("Interline ", env!("CARGO_PKG_VERSION"), ": AI-agent sessions as SSE run events, Socket.IO turns and the native protocol.\n");

/// Serves until a signal.
pub(crate) async fn run(args: Serve) -> Result<(), Box<dyn Error>> {
    let flags: Vec<Layer> = args.listen.iter().map(|listen| Layer::flag("--listen", "server.listen", listen)).collect();
    let checked = config::load(&args.config, flags.clone())?;
    let log = logging::start(&checked.config.log);
    for warning in &checked.warnings {
        tracing::warn!("{warning}");
    }
    let listener = bind(&checked.config.server.listen.to_string()).await?;
    let base = format!("http://{}", listener.local_addr()?);
    let mut signals = Signals::catch()?;
    let mut hangups = Hangups::catch()?;
    let cells: Vec<String> = checked.routes.iter().map(|route| format!("{} ({})", route.cell, route.upstream.name())).collect();
    let kept = kept(&checked.config.journal);
    let mut app = App::start(checked, listener, Router::new().route("/", get(async || WHAT)), log)?;
    println!("Interline {} at {base}", env!("CARGO_PKG_VERSION"));
    println!("  SSE        POST {base}/cells/CELL/run");
    println!("  Socket.IO  {base} (path /socket.io/, REST under /api)");
    println!("  native     POST {base}/v1/agent/sessions or {base}/v1/code/sessions");
    println!("  operators  {base}/healthz  {base}/readyz  {base}/metrics");
    println!("  cells      {}", cells.join(", "));
    println!("  sessions   {kept}");
    println!("  reload     kill -HUP {} reads {} again", std::process::id(), args.config.display());
    tracing::info!(address = %app.address(), "serving");
    let signal = loop {
        tokio::select! {
            biased;
            signal = signals.next() => break signal,
            deaf = app.deaf() => return Err(deaf.into()),
            () = hangups.next() => app.reload(config::layers_of(&args.config, flags.clone())),
        }
    };
    tracing::info!(signal, "told to end; a second signal ends at once");
    signals.end_at_next();
    app.end().await;
    Ok(())
}

/// Where sessions are kept, in a sentence.
fn kept(config: &JournalConfig) -> String {
    if config.path.is_empty() {
        return "in memory: nothing outlives the program ([journal] path names a file for them)".to_owned();
    }
    format!("in {}", config.path)
}
