//! One connection of bytes: it passes, and breaks where it was planned or as soon as all are broken.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Fault, Plan, Shared, locked};

/// How long a side that was told of the end has to close its own.
const FAREWELL: Duration = Duration::from_secs(5);

pub(super) async fn pass(mut client: TcpStream, from: SocketAddr, shared: &Shared) -> Option<()> {
    client.set_nodelay(true).ok()?;
    let mut all = shared.all.subscribe();
    let already = *all.borrow_and_update();
    if let Some(fault) = already {
        shared.counts.add(fault.name());
        return broken(client, None, fault).await;
    }
    let mut up = vec![0; 16 * 1024];
    // Who comes with a plan has told it by its first byte.
    let first = client.read(&mut up).await.ok()?;
    if first == 0 {
        return None;
    }
    let mut plan = locked(&shared.plans).remove(&from);
    if let Some(Plan { fault: fault @ (Fault::Refuse | Fault::Silent), .. }) = plan {
        shared.counts.add(fault.name());
        return broken(client, None, fault).await;
    }
    let target = locked(&shared.target).clone();
    let mut server = TcpStream::connect(target).await.ok()?;
    server.set_nodelay(true).ok()?;
    server.write_all(up.get(..first)?).await.ok()?;
    let mut down = vec![0; 16 * 1024];
    let mut passed = 0_u64;
    loop {
        let fault = tokio::select! {
            read = client.read(&mut up) => match read {
                Ok(length @ 1..) => {
                    server.write_all(up.get(..length)?).await.ok()?;
                    continue;
                }
                _ => return None,
            },
            read = server.read(&mut down) => match read {
                Ok(length @ 1..) => {
                    let bytes = down.get(..length)?;
                    match due(&mut plan, passed, bytes) {
                        None => {
                            client.write_all(bytes).await.ok()?;
                            passed += length as u64;
                            continue;
                        }
                        Some((upto, fault)) => {
                            client.write_all(bytes.get(..upto)?).await.ok()?;
                            shared.counts.add(fault.name());
                            if let Fault::Delay(delay) = fault {
                                tokio::time::sleep(delay).await;
                                client.write_all(bytes.get(upto..)?).await.ok()?;
                                passed += length as u64;
                                continue;
                            }
                            fault
                        }
                    }
                }
                Ok(_) => return finish(client).await,
                Err(_) => return broken(client, None, Fault::Reset).await,
            },
            changed = all.changed() => {
                changed.ok()?;
                let Some(fault) = *all.borrow_and_update() else { continue };
                shared.counts.add(fault.name());
                fault
            }
        };
        return broken(client, Some(server), fault).await;
    }
}

/// Whether the plan's time has come in these bytes: then how many of them still pass, and what happens. A plan is carried out once.
fn due(plan: &mut Option<Plan>, passed: u64, bytes: &[u8]) -> Option<(usize, Fault)> {
    let wanted = (*plan)?;
    let end = passed + bytes.len() as u64;
    if end <= wanted.after {
        return None;
    }
    let mut upto = usize::try_from(wanted.after.saturating_sub(passed)).ok()?.min(bytes.len());
    if wanted.fault == Fault::Cut {
        // Behind the first byte of a character of several.
        upto += bytes.get(upto..)?.iter().position(|byte| *byte >= 0xc0)? + 1;
    }
    *plan = None;
    Some((upto, wanted.fault))
}

/// Ends a connection in this way.
pub(super) async fn broken(client: TcpStream, server: Option<TcpStream>, fault: Fault) -> Option<()> {
    match fault {
        Fault::Fin | Fault::Cut | Fault::Delay(_) => {
            drop(server);
            return finish(client).await;
        }
        Fault::Reset | Fault::Refuse => reset(client),
        Fault::Stall | Fault::Silent => {
            let mut client = client;
            swallow(&mut client).await;
            drop(server);
        }
        Fault::HalfOpen => {
            let (mut from_client, to_client) = client.into_split();
            if let Some(server) = server {
                let (mut from_server, mut to_server) = server.into_split();
                // When the server gives up, the client still does not hear of it.
                let upwards = tokio::io::copy(&mut from_client, &mut to_server);
                tokio::select! {
                    _ = upwards => {}
                    _ = swallow(&mut from_server) => {
                        swallow(&mut from_client).await;
                    }
                }
            }
            drop(to_client);
        }
        Fault::HalfOpenUp => {
            let (mut from_client, mut to_client) = client.into_split();
            if let Some(server) = server {
                let (mut from_server, to_server) = server.into_split();
                tokio::select! {
                    _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
                    _ = swallow(&mut from_client) => {}
                }
                drop(to_server);
            }
        }
    }
    Some(())
}

/// Tells the client that nothing more comes, and waits for it to close: closing while it still sends would take from it what it has not read
/// yet.
pub(super) async fn finish(mut client: TcpStream) -> Option<()> {
    client.shutdown().await.ok()?;
    tokio::time::timeout(FAREWELL, swallow(&mut client)).await.ok().filter(|clean| *clean).map(|_| ())
}

pub(super) fn reset(client: TcpStream) {
    let _ = socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO));
    drop(client);
}

/// Reads and forgets, until the other side has given the connection up. True if it ended in good order.
pub(super) async fn swallow(from: &mut (impl AsyncRead + Unpin)) -> bool {
    let mut scrap = vec![0; 4096];
    loop {
        match from.read(&mut scrap).await {
            Ok(0) => return true,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}
