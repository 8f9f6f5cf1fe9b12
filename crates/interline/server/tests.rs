//! The bounds of connections, over real sockets.

use axum::routing::get;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::*;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";

struct Stand {
    address: SocketAddr,
    telemetry: Arc<Telemetry>,
    closing: Closing,
    server: JoinHandle<()>,
}

async fn stand(config: ServerConfig) -> Stand {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, telemetry, closing) = (listener.local_addr().unwrap(), Arc::new(Telemetry::new()), Closing::default());
    let endless = || async { axum::body::Body::from_stream(futures_util::stream::pending::<Result<bytes::Bytes, io::Error>>()) };
    let flood = || async {
        let chunk = bytes::Bytes::from_static(&[b'x'; 65_536]);
        axum::body::Body::from_stream(futures_util::stream::repeat_with(move || Ok::<_, io::Error>(chunk.clone())))
    };
    let swallow = |body: axum::body::Body| async {
        match http_body_util::BodyExt::collect(body).await {
            Ok(body) => format!("{} bytes", body.to_bytes().len()),
            Err(error) => format!("none: {error}"),
        }
    };
    let router = Router::new().route("/", get(async || "hello").post(swallow)).route("/endless", get(endless)).route("/flood", get(flood));
    let server = tokio::spawn(serve(listener, router, Arc::new(ArcSwap::from_pointee(config)), telemetry.clone(), closing.clone()));
    Stand { address, telemetry, closing, server }
}

fn short() -> ServerConfig {
    ServerConfig { header_read_timeout_ms: 200, ..ServerConfig::default() }
}

async fn answer(stream: &mut TcpStream) -> String {
    let mut buffer = vec![0; 4096];
    let length = stream.read(&mut buffer).await.unwrap();
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

/// How long until the server has closed the connection.
async fn closed(stream: &mut TcpStream) -> Duration {
    let begun = Instant::now();
    let mut rest = Vec::new();
    let _ = timeout(Duration::from_secs(5), stream.read_to_end(&mut rest)).await.expect("it is closed");
    begun.elapsed()
}

#[tokio::test]
async fn who_says_nothing_or_speaks_too_slowly_is_cut() {
    let stand = stand(short()).await;
    for said in [&b""[..], b"P", b"GET / HTTP/1.1\r\nHos", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut stream = TcpStream::connect(stand.address).await.unwrap();
        stream.write_all(said).await.unwrap();
        let took = closed(&mut stream).await;
        assert!(took >= Duration::from_millis(150) && took < Duration::from_secs(2), "{took:?} after {said:?}");
    }
    // And who is done with its requests does not stay for ever, either.
    let mut stream = TcpStream::connect(stand.address).await.unwrap();
    stream.write_all(REQUEST).await.unwrap();
    assert!(answer(&mut stream).await.ends_with("hello"));
    assert!(closed(&mut stream).await < Duration::from_secs(2));
}

#[tokio::test]
async fn a_stream_outlives_the_time_for_headers() {
    let stand = stand(short()).await;
    let mut stream = TcpStream::connect(stand.address).await.unwrap();
    stream.write_all(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    assert!(answer(&mut stream).await.starts_with("HTTP/1.1 200"));
    let more = timeout(Duration::from_millis(700), stream.read(&mut [0; 16])).await;
    assert!(more.is_err(), "{more:?}");
}

#[tokio::test]
async fn one_connection_too_many_is_told_so() {
    let stand = stand(ServerConfig { max_connections: 1, ..ServerConfig::default() }).await;
    let mut first = TcpStream::connect(stand.address).await.unwrap();
    first.write_all(REQUEST).await.unwrap();
    assert!(answer(&mut first).await.ends_with("hello"));
    let mut second = TcpStream::connect(stand.address).await.unwrap();
    let refusal = answer(&mut second).await;
    let body = refusal.split("\r\n\r\n").nth(1).unwrap();
    assert!(refusal.starts_with("HTTP/1.1 503") && refusal.contains(&format!("Content-Length: {}\r\n", body.len())), "{refusal}");
    assert_eq!(serde_json::from_str::<serde_json::Value>(body).unwrap()["kind"], "too_many_connections");
    drop(first);
    for _ in 0..100 {
        if stand.telemetry.text().contains("interline_connections_open 0") {
            break;
        }
        sleep(Duration::from_millis(10)).await;
    }
    let mut third = TcpStream::connect(stand.address).await.unwrap();
    third.write_all(REQUEST).await.unwrap();
    assert!(answer(&mut third).await.ends_with("hello"));
    assert!(stand.telemetry.text().contains("interline_connections_refused_total 1"));
}

#[tokio::test]
async fn headers_have_a_bound() {
    let stand = stand(ServerConfig { max_header_bytes: 8192, ..ServerConfig::default() }).await;
    let mut stream = TcpStream::connect(stand.address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nX: ").await.unwrap();
    let _ = stream.write_all(&[b'a'; 20_000]).await;
    assert!(answer(&mut stream).await.starts_with("HTTP/1.1 431"));
}

#[tokio::test]
async fn idle_connections_end_when_told_to_and_nobody_new_comes_in() {
    let stand = stand(ServerConfig::default()).await;
    let mut stream = TcpStream::connect(stand.address).await.unwrap();
    stream.write_all(REQUEST).await.unwrap();
    assert!(answer(&mut stream).await.ends_with("hello"));
    stand.closing.begin();
    assert!(closed(&mut stream).await < Duration::from_secs(1));
    timeout(Duration::from_secs(1), stand.server).await.expect("the server is done").unwrap();
    assert!(TcpStream::connect(stand.address).await.is_err());
}

/// Asks for what never ends.
async fn flooded(stand: &Stand) -> TcpStream {
    let mut stream = TcpStream::connect(stand.address).await.unwrap();
    stream.write_all(b"GET /flood HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    stream
}

/// How long it takes until nobody is connected any more.
async fn empty(stand: &Stand) -> Duration {
    let begun = Instant::now();
    while !stand.telemetry.text().contains("interline_connections_open 0") {
        assert!(begun.elapsed() < Duration::from_secs(10), "still connected");
        sleep(Duration::from_millis(20)).await;
    }
    begun.elapsed()
}

#[tokio::test]
async fn case_d5_who_does_not_read_is_cut() {
    let stand = stand(ServerConfig { write_stall_ms: 700, ..ServerConfig::default() }).await;
    let _silent = flooded(&stand).await;
    sleep(Duration::from_millis(100)).await;
    assert!(stand.telemetry.text().contains("interline_connections_open 1"));
    let took = empty(&stand).await;
    assert!(took > Duration::from_millis(400) && took < Duration::from_secs(3), "{took:?}");
    assert!(stand.telemetry.text().contains("interline_connections_stalled_total 1"));
}

/// The kernel's own bound, where it has one.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn case_d5_who_does_not_read_is_cut_by_the_kernel_too() {
    let stand = stand(ServerConfig { tcp_user_timeout_ms: 1000, ..ServerConfig::default() }).await;
    let _silent = flooded(&stand).await;
    sleep(Duration::from_millis(200)).await;
    let took = empty(&stand).await;
    assert!(took > Duration::from_millis(600), "a short pause is no reason: {took:?}");
    assert!(stand.telemetry.text().contains("interline_connections_stalled_total 0"));
}

#[tokio::test]
async fn case_d6_who_reads_slowly_is_not_cut() {
    let stand = stand(ServerConfig { write_stall_ms: 1200, tcp_user_timeout_ms: 1200, ..ServerConfig::default() }).await;
    let mut stream = flooded(&stand).await;
    let mut some = vec![0; 100_000];
    for _ in 0..20 {
        stream.read_exact(&mut some).await.expect("it goes on");
        sleep(Duration::from_millis(100)).await;
    }
    drop(stream);
    empty(&stand).await;
    assert!(stand.telemetry.text().contains("interline_connections_stalled_total 0"));
}

/// An HTTP/2 client takes every frame from its socket, and gives no window for more.
#[tokio::test]
async fn case_d5_who_gives_no_window_is_cut() {
    let stand = stand(ServerConfig { write_stall_ms: 700, ..ServerConfig::default() }).await;
    let stream = TcpStream::connect(stand.address).await.unwrap();
    let (mut client, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let ask =
        |path: &str| http::Request::get(format!("http://x{path}")).body(http_body_util::Empty::<bytes::Bytes>::new()).expect("a request");
    // What is silent is not stalled, and while anything is read there is no reason to cut what is beside it.
    let _endless = client.send_request(ask("/endless")).await.unwrap();
    let _unread = client.send_request(ask("/flood")).await.unwrap();
    let mut read = client.send_request(ask("/flood")).await.unwrap().into_body();
    for _ in 0..20 {
        for _ in 0..8 {
            http_body_util::BodyExt::frame(&mut read).await.expect("it goes on").expect("it is not cut");
        }
        sleep(Duration::from_millis(100)).await;
    }
    assert!(stand.telemetry.text().contains("interline_connections_stalled_total 0"));
    let took = empty(&stand).await;
    assert!(took > Duration::from_millis(400) && took < Duration::from_secs(3), "{took:?}");
    assert!(stand.telemetry.text().contains("interline_connections_stalled_total 1"));
    let _ = connection.await;
}

async fn post(stand: &Stand, length: usize, sent: usize) -> TcpStream {
    let mut stream = TcpStream::connect(stand.address).await.unwrap();
    let head = format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![b'x'; sent]).await.unwrap();
    stream
}

#[tokio::test]
async fn a_body_has_to_come_on() {
    let stand = stand(ServerConfig { body_stall_ms: 200, ..ServerConfig::default() }).await;
    assert!(answer(&mut post(&stand, 1000, 1000).await).await.ends_with("1000 bytes"));
    for sent in [0, 999] {
        let begun = Instant::now();
        let told = answer(&mut post(&stand, 1000, sent).await).await;
        assert!(told.ends_with("the body did not come on"), "{told}");
        assert!((150..3_000).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
    }
    // Nor may it come on for ever, a byte at a time.
    let mut stream = post(&stand, 1000, 1).await;
    let (mut reader, mut writer) = stream.split();
    let trickle = async {
        for _ in 0..100 {
            let _ = writer.write_all(b"x").await;
            sleep(Duration::from_millis(50)).await;
        }
    };
    let mut told = vec![0; 4096];
    tokio::select! {
        () = trickle => panic!("it was read for five seconds"),
        length = reader.read(&mut told) => assert!(String::from_utf8_lossy(&told[..length.unwrap()]).contains("did not come on")),
    }
}

#[tokio::test]
async fn all_bodies_together_have_a_bound_and_give_it_back() {
    let stand = stand(ServerConfig { max_body_bytes: 100_000, body_stall_ms: 5_000, ..ServerConfig::default() }).await;
    let held = post(&stand, 90_000, 80_000).await;
    sleep(Duration::from_millis(100)).await;
    let told = answer(&mut post(&stand, 40_000, 40_000).await).await;
    assert!(told.contains("server.max_body_bytes"), "{told}");
    drop(held);
    sleep(Duration::from_millis(100)).await;
    for _ in 0..20 {
        let told = answer(&mut post(&stand, 90_000, 90_000).await).await;
        assert!(told.ends_with("90000 bytes"), "{told}");
    }
}
