//! `interline sim`: the simulated agent server alone.

use std::error::Error;

use interline_sim::{Options, Pace, Simulator, Voice};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::args;
use crate::config::LogConfig;
use crate::logging;
use crate::signals::Signals;

/// Serves until a signal.
pub(crate) async fn run(args: args::Sim) -> Result<(), Box<dyn Error>> {
    logging::start(&LogConfig::default());
    let voice = match args.voice {
        args::Voice::Documented => Voice::Documented,
        args::Voice::Observed => Voice::Observed,
    };
    let pace = if args.pace == 0.0 { Pace::none() } else { Pace::times(args.pace) };
    let options = Options { voice, pace, transcripts: args.transcripts, ..Options::default() };
    let simulator = Simulator::new(options.with_limits(args.limits))?;
    let listener = bind(&args.listen.to_string()).await?;
    let base = format!("http://{}", listener.local_addr()?);
    println!("Simulated agent server, {voice} voice, at {base}");
    println!("  cloud agent plane   POST {base}/v1/agent/sessions (any bearer token)");
    println!("  local bridge        POST {base}/v1/code/sessions");
    println!("  talk to it          {} chat {base} --surface native --token any", args::program());
    println!("Ctrl-C ends it.");
    let mut signals = Signals::catch()?;
    let stop = CancellationToken::new();
    let server = tokio::spawn(simulator.serve(listener, stop.clone()));
    signals.next().await;
    signals.end_at_next();
    stop.cancel();
    Ok(server.await?)
}

/// Binds a listener, or says which address could not be had.
pub(crate) async fn bind(address: &str) -> Result<TcpListener, BindError> {
    TcpListener::bind(address).await.map_err(|error| BindError { address: address.to_owned(), error })
}

/// An address could not be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {error}{}", hint(error))]
pub(crate) struct BindError {
    address: String,
    error: std::io::Error,
}

/// What to do about it.
fn hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "; something listens there already. Choose another address with --listen, for example --listen 127.0.0.1:0 for any free port"
        }
        std::io::ErrorKind::AddrNotAvailable | std::io::ErrorKind::PermissionDenied => "; choose another address with --listen",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_port_in_use_is_told_with_the_way_out() {
        let taken = bind("127.0.0.1:0").await.unwrap();
        let address = taken.local_addr().unwrap().to_string();
        let said = bind(&address).await.unwrap_err().to_string();
        assert!(said.starts_with(&format!("cannot listen on {address}: ")) && said.contains("--listen 127.0.0.1:0"), "{said}");
    }
}
