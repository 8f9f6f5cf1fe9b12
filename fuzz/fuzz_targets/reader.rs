//! Any frames and facts in any order: the order of the events holds, each run ends once, a replay means the same, a repeat means nothing, and
//! what is said is heard.

#![no_main]

use interline_fuzz::mutate;
use interline_fuzz::play::{Delivery, play};
use interline_fuzz::said;
use interline_fuzz::script::Script;
use interline_model::Event;
use libfuzzer_sys::{fuzz_mutator, fuzz_target};

fuzz_target!(|data: &[u8]| {
    let script = Script::read(data);
    let events = |delivery| {
        let mut all: Vec<Event> = Vec::new();
        play(&script, delivery, |_, events| all.extend_from_slice(events));
        all
    };
    let once = events(Delivery::Once);
    assert_eq!(once, events(Delivery::Once), "a replay");
    assert_eq!(once, events(Delivery::Repeated), "repeats");
    said::is_heard(&script);
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| { mutate::lines(data, size, max_size, seed) });
