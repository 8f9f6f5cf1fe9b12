//! One file as a form: what a browser sends for an input of the type `file`, and what bridges take uploads as (native-ws.md §4.2). Pure.

use bytes::Bytes;
use interline_hub::Upload;

use crate::http::Payload;

/// What a file without a declared type is.
const UNKNOWN: &str = "application/octet-stream";

/// The longest name, in bytes: no common file system keeps longer ones.
const LONGEST_NAME: usize = 255;

/// The declared type cannot stand in a header.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the file's declared media type is none")]
pub(crate) struct NoMediaType;

/// The form with `upload` in the field `file`. The boundary is made of `random`, so that no file can hold it.
pub(crate) fn form(upload: &Upload, random: u128) -> Result<Payload, NoMediaType> {
    let declared = upload.mime.trim();
    let media_type = if declared.is_empty() { UNKNOWN } else { declared };
    if !is_media_type(media_type) {
        return Err(NoMediaType);
    }
    let boundary = format!("interline-{random:032x}");
    let name = safe_name(&upload.name);
    let head =
        format!("--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\nContent-Type: {media_type}\r\n\r\n");
    let tail = format!("\r\n--{boundary}--\r\n");
    Ok(Payload {
        media_type: format!("multipart/form-data; boundary={boundary}"),
        pieces: [Bytes::from(head), upload.data.clone(), Bytes::from(tail)],
    })
}

/// `type/subtype`, perhaps with parameters, in characters that cannot end a header.
fn is_media_type(text: &str) -> bool {
    let essence = text.split(';').next().unwrap_or_default().trim_end();
    let is_token = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&byte));
    let is_essence = essence.split_once('/').is_some_and(|(kind, subtype)| is_token(kind) && is_token(subtype));
    is_essence && text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic())
}

/// A name that is one path segment, whatever it was, and cannot end the header that it stands in.
fn safe_name(name: &str) -> String {
    let segment = name.rsplit(['/', '\\']).next().unwrap_or_default().trim();
    let mut safe = String::with_capacity(segment.len());
    for character in segment.chars() {
        let at = safe.len();
        match character {
            // As browsers write it.
            '"' => safe.push_str("%22"),
            _ if character.is_control() => safe.push('_'),
            _ => safe.push(character),
        }
        if safe.len() > LONGEST_NAME {
            safe.truncate(at);
            break;
        }
    }
    if safe.chars().all(|character| character == '.') { "file".to_owned() } else { safe }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn upload(name: &str, mime: &str) -> Upload {
        Upload { name: name.into(), mime: mime.into(), data: Bytes::from_static(b"\x89P\r\nG") }
    }

    fn body(upload: &Upload) -> Vec<u8> {
        form(upload, 7).unwrap().pieces.concat()
    }

    #[test]
    fn a_file_is_the_field_that_bridges_look_for() {
        let payload = form(&upload("a b.png", "image/png"), 7).unwrap();
        assert_eq!(payload.media_type, "multipart/form-data; boundary=interline-00000000000000000000000000000007");
        let expected = b"--interline-00000000000000000000000000000007\r\n\
            Content-Disposition: form-data; name=\"file\"; filename=\"a b.png\"\r\n\
            Content-Type: image/png\r\n\r\n\x89P\r\nG\r\n--interline-00000000000000000000000000000007--\r\n";
        assert_eq!(payload.pieces.concat(), expected);
    }

    #[test]
    fn names_are_segments() {
        for (name, safe) in [
            ("a.txt", "a.txt"),
            ("/etc/passwd", "passwd"),
            ("..\\..\\a.txt", "a.txt"),
            ("..", "file"),
            ("", "file"),
            ("a/", "file"),
            (" ", "file"),
            ("größer 漢字.pdf", "größer 漢字.pdf"),
            ("a\"; name=\"x", "a%22; name=%22x"),
            ("a\r\nX: y", "a__X: y"),
            ("a\0b", "a_b"),
        ] {
            assert_eq!(safe_name(name), safe, "{name:?}");
        }
        assert_eq!(safe_name(&"é".repeat(200)).len(), 254);
        assert_eq!(safe_name(&"\"".repeat(200)).len(), 255);
    }

    #[test]
    fn types_are_what_was_declared_or_refused() {
        for good in ["image/png", "text/plain; charset=utf-8", "application/vnd.x+json"] {
            assert!(String::from_utf8_lossy(&body(&upload("a", good))).contains(&format!("\r\nContent-Type: {good}\r\n")), "{good}");
        }
        assert!(String::from_utf8_lossy(&body(&upload("a", " "))).contains("application/octet-stream"));
        for bad in ["png", "image/", "/png", "image/png\r\nX: y", "text/plain; charset=é", "a b/c", "image/png;\u{7f}"] {
            assert_eq!(form(&upload("a", bad), 7).err(), Some(NoMediaType), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn no_name_and_no_type_adds_a_header(name in "\\PC*|[\\x00-\\x20\"/\\\\.]*", mime in "[ -~\r\n]{0,20}") {
            if let Ok(payload) = form(&upload(&name, &mime), 7) {
                let head = String::from_utf8(payload.pieces[0].to_vec()).unwrap();
                prop_assert_eq!(head.matches("\r\n").count(), 4);
                prop_assert_eq!(head.matches('"').count(), 4);
                prop_assert!(!head.trim_end().replace("\r\n", "").contains(char::is_control));
            }
        }
    }
}
