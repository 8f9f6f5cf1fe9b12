//! The bridge's uploads: one multipart field `file`, checked as the bridge checks it and then forgotten.
//!
//! Nothing on the real bridge ever reads an uploaded file either (native-ws.md §4.2).

use axum::{body::Body, response::Response};
use futures_util::StreamExt;
use http::{HeaderMap, StatusCode, header};
use serde::Serialize;

use crate::{
    frames,
    replies::{self, bridge_error},
    state::State,
    stats::Attachment,
};

/// How much of a body that is too large is still read, so that the refusal can be.
const DRAINED: usize = 256 * 1024 * 1024;

const ALLOWED: [&str; 6] = ["image/jpeg", "image/png", "image/gif", "image/webp", "application/pdf", "text/plain"];

pub(crate) async fn receive(state: &State, session: &str, headers: &HeaderMap, body: Body) -> Response {
    let refuse = |message: &str| bridge_error(StatusCode::BAD_REQUEST, message);
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let Some(boundary) = boundary(content_type) else {
        return refuse("parse multipart: request Content-Type isn't multipart/form-data");
    };
    // Too large is a 400 here, not a 413.
    let body = match read(body, state.options.attachment_limit).await {
        Read::Whole(body) => body,
        Read::TooLarge => return refuse("parse multipart: http: request body too large"),
        Read::Broken => return refuse("parse multipart: multipart: NextPart: unexpected EOF"),
    };
    let Some(parts) = parts(&body, boundary) else {
        return refuse("parse multipart: multipart: NextPart: EOF");
    };
    let Some(file) = parts.iter().find(|part| part.name == Some("file")) else {
        return refuse("missing 'file' field");
    };
    let mime_type = file.content_type.unwrap_or("application/octet-stream");
    if !ALLOWED.contains(&mime_type) {
        return refuse(&format!("disallowed mime type {mime_type:?}"));
    }
    #[derive(Serialize)]
    struct Attached<'a> {
        attachment_id: String,
        size: usize,
        mime_type: &'a str,
    }
    let attached = Attached { attachment_id: frames::frame_id(), size: file.content.len(), mime_type };
    state.counters.attachment(Attachment {
        session: session.to_owned(),
        id: attached.attachment_id.clone(),
        file_name: file.file_name.map(str::to_owned),
        mime_type: mime_type.to_owned(),
        size: file.content.len(),
    });
    replies::json(StatusCode::CREATED, &attached)
}

/// A body, as far as it could be read.
enum Read {
    Whole(Vec<u8>),
    TooLarge,
    Broken,
}

async fn read(body: Body, limit: usize) -> Read {
    let mut chunks = body.into_data_stream();
    let (mut whole, mut size) = (Vec::new(), 0_usize);
    while let Some(chunk) = chunks.next().await {
        let Ok(chunk) = chunk else { return Read::Broken };
        size = size.saturating_add(chunk.len());
        if size <= limit {
            whole.extend_from_slice(&chunk);
        } else if size > DRAINED.max(limit) {
            break;
        }
    }
    if size > limit { Read::TooLarge } else { Read::Whole(whole) }
}

struct Part<'a> {
    name: Option<&'a str>,
    file_name: Option<&'a str>,
    content_type: Option<&'a str>,
    content: &'a [u8],
}

fn boundary(content_type: &str) -> Option<&str> {
    let mut parameters = content_type.split(';');
    if !parameters.next()?.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let boundary = parameters.find_map(|parameter| parameter.trim().strip_prefix("boundary="))?;
    Some(boundary.trim_matches('"')).filter(|boundary| !boundary.is_empty())
}

fn parts<'a>(body: &'a [u8], boundary: &str) -> Option<Vec<Part<'a>>> {
    let delimiter = format!("--{boundary}");
    let mut parts = Vec::new();
    let (_, mut rest) = split(body, delimiter.as_bytes())?;
    while !rest.starts_with(b"--") {
        let (part, after) = split(rest, format!("\r\n{delimiter}").as_bytes())?;
        let (head, content) = split(part.strip_prefix(b"\r\n")?, b"\r\n\r\n")?;
        let head = std::str::from_utf8(head).ok()?;
        let field = |wanted: &str| {
            head.split("\r\n").find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.trim().eq_ignore_ascii_case(wanted).then(|| value.trim())
            })
        };
        let parameter = |wanted: &str| {
            let parameters = field("content-disposition")?.split(';');
            parameters.into_iter().find_map(|parameter| parameter.trim().strip_prefix(wanted)).map(|value| value.trim_matches('"'))
        };
        let (name, file_name) = (parameter("name="), parameter("filename="));
        parts.push(Part { name, file_name, content_type: field("content-type"), content });
        rest = after;
    }
    Some(parts)
}

/// The bytes before and after the first `mark`.
fn split<'a>(bytes: &'a [u8], mark: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = bytes.windows(mark.len()).position(|window| window == mark)?;
    let (before, from) = bytes.split_at(at);
    Some((before, from.get(mark.len()..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found() {
        let body = b"--x\r\nContent-Disposition: form-data; name=\"note\"\r\n\r\nhi\r\n--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.png\"\r\nContent-Type: image/png\r\n\r\n\x89P\r\nG\r\n--x--\r\n";
        let parts = parts(body, "x").unwrap();
        assert_eq!(parts.len(), 2);
        assert_eq!(parts[1].name, Some("file"));
        assert_eq!(parts[1].file_name, Some("a.png"));
        assert_eq!(parts[1].content_type, Some("image/png"));
        assert_eq!(parts[1].content, b"\x89P\r\nG");
    }

    #[test]
    fn broken_bodies_are_refused() {
        assert_eq!(boundary("multipart/form-data; boundary=\"x y\""), Some("x y"));
        assert_eq!(boundary("text/plain; boundary=x"), None);
        for body in [&b""[..], b"--x", b"--x\r\nnothing", b"--x\r\n\r\n\r\nopen"] {
            assert!(parts(body, "x").is_none());
        }
    }
}
