//! A user's input as the native servers take it: a prompt, and images where there is a place for them.

use std::fmt::Write as _;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use interline_hub::LinkError;
use interline_model::Part;
use serde::Serialize;

use crate::Mode;
use crate::refusal::invalid;

/// What a cloud session is created with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CloudPrompt {
    pub(crate) text: String,
    pub(crate) images: Vec<Image>,
}

/// An image as the create request holds it (native-ws.md §2.2).
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Image {
    mime_type: String,
    /// Base64, without a `data:` prefix.
    data: String,
}

impl CloudPrompt {
    /// Fits the parts of an input into a create request.
    pub(crate) fn of(parts: &[Part], mode: Mode, upstream: &str) -> Result<Self, LinkError> {
        let mut prompt = Self { text: String::new(), images: Vec::new() };
        let mut files = String::new();
        for part in parts {
            match part {
                Part::Text(text) => prompt.text.push_str(text),
                Part::Image { .. } if mode != Mode::Chat => {
                    // The server would take it and leave it out (§6.10).
                    let mode = mode.as_str();
                    return Err(invalid(format!(
                        "upstream {upstream} takes no images in {mode} mode; leave them out, or use a chat upstream"
                    )));
                }
                Part::Image { url } => prompt.images.push(Image::of(url, upstream)?),
                Part::File { name, data } => add_file(&mut files, name, data, upstream)?,
            }
        }
        prompt.text.push_str(&files);
        if prompt.text.trim().is_empty() && prompt.images.is_empty() {
            // Such a session would stay silent for ever (§2.2).
            return Err(invalid("the input is empty: give some text or an image"));
        }
        Ok(prompt)
    }
}

/// Fits the parts of an input into a message to the bridge, which is text and nothing else (§4.2). Instructions for the model, for which it has no
/// place of their own, stand before it: to leave them out would change what the agent is.
pub(crate) fn bridge_prompt(instructions: Option<&str>, parts: &[Part], upstream: &str) -> Result<String, LinkError> {
    let (mut text, mut files) = (String::new(), String::new());
    for part in parts {
        match part {
            Part::Text(part) => text.push_str(part),
            Part::File { name, data } => add_file(&mut files, name, data, upstream)?,
            Part::Image { .. } => {
                return Err(invalid(format!("upstream {upstream} is a local bridge, which takes no images; leave them out")));
            }
        }
    }
    text.push_str(&files);
    if text.trim().is_empty() {
        return Err(invalid("the input is empty: give some text"));
    }
    if let Some(instructions) = instructions.filter(|instructions| !instructions.trim().is_empty()) {
        text.insert_str(0, &format!("Instructions:\n{instructions}\n\n"));
    }
    Ok(text)
}

impl Image {
    fn of(url: &str, upstream: &str) -> Result<Self, LinkError> {
        let refused = |why: &str| invalid(format!("upstream {upstream} cannot take this image: {why}"));
        let Some(rest) = url.get(..5).filter(|head| head.eq_ignore_ascii_case("data:")).and_then(|_| url.get(5..)) else {
            return Err(refused("it is given by its address; send the image itself as a data: URL"));
        };
        let (head, data) = rest.split_once(',').ok_or_else(|| refused("its data: URL holds no data"))?;
        let mut head = head.split(';').map(str::trim);
        let mime_type = head.next().unwrap_or_default().to_ascii_lowercase();
        if !mime_type.starts_with("image/") {
            return Err(refused("its data: URL does not say that it is an image"));
        }
        if !head.any(|word| word.eq_ignore_ascii_case("base64")) {
            return Err(refused("its data: URL is not base64"));
        }
        let data: String = data.chars().filter(|c| !c.is_ascii_whitespace()).collect();
        match STANDARD.decode(&data) {
            Ok(bytes) if !bytes.is_empty() => Ok(Self { mime_type, data }),
            _ => Err(refused("its data: URL is not valid base64")),
        }
    }
}

/// Adds a file that is text to the prompt, in a fence that its content cannot close.
fn add_file(prompt: &mut String, name: &str, data: &str, upstream: &str) -> Result<(), LinkError> {
    let name: String = name.chars().filter(|c| !c.is_control() && *c != '`').take(200).collect();
    let packed: String = data.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    let bytes = [STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD].iter().find_map(|engine| engine.decode(&packed).ok());
    let bytes = bytes.ok_or_else(|| invalid(format!("file {name:?} is not valid base64")))?;
    let content = String::from_utf8(bytes).ok().filter(|text| text.chars().all(|c| !c.is_control() || matches!(c, '\n' | '\r' | '\t')));
    let Some(content) = content else {
        return Err(invalid(format!("upstream {upstream} takes files as text only, and {name:?} is not UTF-8 text")));
    };
    let longest = content.split(|c| c != '`').map(str::len).max().unwrap_or_default();
    let fence = "`".repeat(longest.saturating_add(1).max(3));
    let end = if content.ends_with('\n') || content.is_empty() { "" } else { "\n" };
    let _ = write!(prompt, "\n\nAttached file `{name}`:\n{fence}\n{content}{end}{fence}\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    use interline_model::Text;

    use super::*;

    fn text(text: &str) -> Part {
        Part::Text(Text::from(text))
    }

    fn image(url: &str) -> Part {
        Part::Image { url: Text::from(url) }
    }

    fn file(name: &str, content: &[u8]) -> Part {
        Part::File { name: Text::from(name), data: Text::from(STANDARD.encode(content)) }
    }

    fn refused<T: std::fmt::Debug>(result: Result<T, LinkError>) -> String {
        match result {
            Err(LinkError::Refused { kind: interline_model::FailureKind::InvalidRequest, message }) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn text_and_images() {
        let prompt = CloudPrompt::of(&[text("a"), image("DATA:image/PNG;base64,aGk="), text("b")], Mode::Chat, "u").unwrap();
        assert_eq!(prompt.text, "ab");
        assert_eq!(prompt.images, [Image { mime_type: "image/png".into(), data: "aGk=".into() }]);
        for bad in [
            "https://x/y.png",
            "data:image/png;base64",
            "data:text/plain;base64,aGk=",
            "data:image/svg+xml,<svg/>",
            "data:image/png;base64,%",
            "é",
            "",
        ] {
            assert!(refused(CloudPrompt::of(&[image(bad)], Mode::Chat, "u")).contains("image"), "{bad}");
        }
        assert!(refused(CloudPrompt::of(&[text("a"), image("data:image/png;base64,aGk=")], Mode::Agent, "u")).contains("agent mode"));
        refused(CloudPrompt::of(&[text(" \n")], Mode::Chat, "u"));
        refused(CloudPrompt::of(&[], Mode::Task, "u"));
    }

    #[test]
    fn files_are_text_in_a_fence_they_cannot_close() {
        let prompt = CloudPrompt::of(&[file("a`b\n.md", b"x\n````\ny"), text("read this")], Mode::Task, "u").unwrap();
        assert_eq!(prompt.text, "read this\n\nAttached file `ab.md`:\n`````\nx\n````\ny\n`````\n");
        refused(CloudPrompt::of(&[file("a.png", &[0x89, b'P', 0, 1])], Mode::Chat, "u"));
        refused(CloudPrompt::of(&[Part::File { name: "x".into(), data: "%".into() }], Mode::Chat, "u"));
    }

    #[test]
    fn the_bridge_takes_text_and_files_that_are_text() {
        assert_eq!(bridge_prompt(None, &[text("a"), text("b")], "u").unwrap(), "ab");
        assert_eq!(bridge_prompt(Some("Be brief."), &[text("a")], "u").unwrap(), "Instructions:\nBe brief.\n\na");
        assert_eq!(bridge_prompt(Some(" "), &[text("a")], "u").unwrap(), "a");
        assert!(bridge_prompt(None, &[text("a"), file("f", b"x")], "u").unwrap().starts_with("a\n\nAttached file `f`"));
        assert!(refused(bridge_prompt(None, &[text("a"), image("data:image/png;base64,aGk=")], "u")).contains("takes no images"));
        refused(bridge_prompt(None, &[file("a", b"\xff")], "u"));
        refused(bridge_prompt(None, &[text("  ")], "u"));
    }
}
