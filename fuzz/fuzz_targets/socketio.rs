//! Reader and Socket.IO writer end to end: patches and snapshots add up to the same turns, no text is lost, whoever comes late sees it all,
//! too, and a replay gives the same bytes.

#![no_main]

use interline_fuzz::mutate;
use interline_fuzz::play::{Delivery, play};
use interline_fuzz::script::Script;
use interline_fuzz::socketio::Checker;
use interline_model::Writer;
use interline_surface_socketio::{HeadlessResult, Options, PatchFormat, PauseStatus, SocketEvent, SocketWriter};
use libfuzzer_sys::{fuzz_mutator, fuzz_target};

fn options(script: &Script) -> Options {
    let mut options = Options {
        patch_format: [PatchFormat::Hybrid, PatchFormat::Delta, PatchFormat::Sync, PatchFormat::Sync][script.choice(0) as usize],
        headless_result: [HeadlessResult::Superset, HeadlessResult::Docs, HeadlessResult::Sdk, HeadlessResult::Sdk]
            [script.choice(2) as usize],
        thinking_delta: script.option(4),
        ..Options::default()
    };
    if script.option(5) {
        options.pause_status = PauseStatus::Paused;
    }
    if script.option(6) {
        options.snapshot_ms = 0;
    }
    if script.option(7) {
        options.snapshot_bytes = 16;
    }
    options
}

fuzz_target!(|data: &[u8]| {
    let script = Script::read(data);
    let format = script.choice(0);
    let join_at = script.options as usize >> 8 & 0xff;
    let write = |mut checker: Option<Checker>| {
        let mut writer = SocketWriter::new(options(&script));
        let mut all: Vec<SocketEvent> = Vec::new();
        let mut records = 0;
        play(&script, Delivery::Once, |record, events| {
            if let Some(checker) = &mut checker
                && records == join_at
            {
                checker.join(&writer);
            }
            records += 1;
            let before = all.len();
            writer.write(record, events, &mut all);
            if let Some(checker) = &mut checker {
                checker.see(events, &all[before..]);
            }
        });
        if let Some(checker) = &checker {
            checker.end(&writer);
        }
        all
    };
    let events = write(Some(Checker::new(format)));
    assert_eq!(events, write(None), "a replay");
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| { mutate::lines(data, size, max_size, seed) });
