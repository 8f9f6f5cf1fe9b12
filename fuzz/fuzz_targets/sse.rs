//! Reader and SSE writer end to end: the grammar of `sse.md` §3.5 holds in every block, no text is lost, a replay gives the same bytes, and
//! extras change nothing of what is there without them.

#![no_main]

use interline_fuzz::mutate;
use interline_fuzz::play::{Delivery, play};
use interline_fuzz::script::Script;
use interline_fuzz::sse::Checker;
use interline_model::Writer;
use interline_surface_sse::{ArgumentsForm, AskLimits, Block, Extras, InterruptTerminal, Options, SseWriter, SubAgents};
use libfuzzer_sys::{fuzz_mutator, fuzz_target};

fn options(script: &Script) -> Options {
    let mut options = Options::default();
    if script.option(0) {
        options.max_event_bytes = 1;
    }
    if script.option(1) {
        options.sub_agents = SubAgents::Hide;
    }
    if script.option(2) {
        options.interrupt_terminal = InterruptTerminal::Done;
    }
    if script.option(3) {
        options.arguments = ArgumentsForm::String;
    }
    if script.option(4) {
        options.first_turn_num = u64::MAX;
    }
    options.extras = [Extras::Off, Extras::Fields, Extras::Events, Extras::Events][script.choice(5) as usize];
    if script.option(7) {
        options.ask_limits = Some(AskLimits { permission_ms: u64::MAX, form_ms: 1 });
    }
    options
}

fuzz_target!(|data: &[u8]| {
    let script = Script::read(data);
    let write = |options: Options| {
        let mut checker = Checker::new(options.extras);
        let mut writer = SseWriter::new(options);
        let mut all: Vec<Block> = Vec::new();
        play(&script, Delivery::Once, |record, events| {
            let before = all.len();
            writer.write(record, events, &mut all);
            checker.see(events, &all[before..]);
        });
        checker.end();
        all
    };
    let blocks = write(options(&script));
    assert_eq!(blocks, write(options(&script)), "a replay");
    let plain = write(Options { extras: Extras::Off, ..options(&script) });
    let numbered: Vec<&Block> = blocks.iter().filter(|block| !block.is_aside()).collect();
    assert_eq!(numbered.len(), plain.len(), "extras have numbers");
    if script.option(0) {
        // What extras take of the little room there is, arguments and results lack.
        return;
    }
    for (extended, plain) in numbered.into_iter().zip(&plain) {
        let json = plain.json();
        let documented = json.strip_suffix(b"}").unwrap_or(&json);
        assert!(extended.json().starts_with(documented), "{} with extras: {}", text(plain), text(extended));
    }
});

fn text(block: &Block) -> String {
    String::from_utf8_lossy(&block.json()).into_owned()
}

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| { mutate::lines(data, size, max_size, seed) });
