//! Any text is read as a frame without harm: every documented member is asked for, and the text stays what it was.

#![no_main]

use std::hint::black_box;

use interline_fuzz::mutate;
use interline_fuzz::words::FRAME;
use interline_model::Text;
use interline_native::Frame;
use interline_native::frame::Control;
use libfuzzer_sys::{fuzz_mutator, fuzz_target};

fuzz_target!(|data: &[u8]| {
    let text = Text::from(String::from_utf8_lossy(data).into_owned());
    let before = text.to_string();
    let known = serde_json::from_str::<&serde_json::value::RawValue>(&text);
    match Frame::parse(&text) {
        Ok(frame) => {
            let raw = known.expect("what is a frame is JSON");
            assert!(raw.get().starts_with('{'), "what is a frame is an object");
            black_box((frame.name(), frame.key(), format!("{frame:?}")));
            if let Frame::Control(control) = &frame {
                match control {
                    Control::Request(request) => {
                        drop(black_box((request.request_id(), request.subtype(), request.body().members().count())))
                    }
                    Control::Response(response) => {
                        drop(black_box((response.kind(), response.request_id(), response.response(), response.error())));
                    }
                    Control::Cancel(cancel) => drop(black_box(cancel.request_id())),
                }
            }
            let names: Vec<String> = frame.object().members().map(|(name, _)| name.to_owned()).collect();
            for name in names.iter().map(String::as_str).chain(FRAME.members.iter().copied()) {
                getters(frame.object(), name);
                if let Some(inner) = frame.object().object(name) {
                    FRAME.members.iter().for_each(|name| getters(&inner, name));
                }
            }
        }
        Err(error) => {
            assert!(!known.is_ok_and(|raw| raw.get().starts_with('{')), "an object is a frame: {error}");
        }
    }
    assert_eq!(*text, *before, "the text has changed");
});

fn getters(object: &interline_native::Object<'_>, name: &str) {
    let raw = object.raw(name);
    if let Some(json) = object.json(name) {
        let raw = raw.expect("what is JSON is there").get();
        assert!(json.as_str() == raw || raw.contains(['\n', '\r']), "a value has changed");
    }
    black_box((object.str(name), object.cow(name), object.bool(name), object.truthy(name), object.u64(name), object.f64(name)));
    black_box((object.array(name), object.objects(name).count(), object.strs(name).count()));
}

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| { mutate::lines(data, size, max_size, seed) });
