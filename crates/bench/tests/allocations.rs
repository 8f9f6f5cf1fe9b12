//! Allocations a frame, which are the same on every machine, so that a bound on them can be a test.
//!
//! `cargo test --package interline-bench -- --nocapture` prints the table.

use allocation_counter::measure;
use interline_bench::{Load, Path, loads};
use interline_model::Writer;
use interline_surface_socketio::{Options, PatchFormat, SocketWriter};
use interline_surface_sse::SseWriter;

/// The first frames of a run open a turn and make the buffers.
const WARM: usize = 20;

/// Allocations of a frame, on average.
fn allocations<W: Writer>(load: &Load, writer: W) -> f64 {
    let mut path = Path::new(writer);
    let (first, rest) = load.frames.split_at(WARM);
    first.iter().for_each(|frame| path.frame(frame));
    let counted = measure(|| rest.iter().for_each(|frame| path.frame(frame)));
    counted.count_total as f64 / rest.len() as f64
}

#[test]
fn a_text_delta_costs_two_allocations_at_most() {
    println!("| frame | bytes | `Value` | SSE | Socket.IO | Socket.IO, `delta` |\n|---|---|---|---|---|---|");
    for load in loads() {
        let value = measure(|| {
            for frame in &load.frames {
                drop(std::hint::black_box(serde_json::from_str::<serde_json::Value>(frame)));
            }
        });
        let value = value.count_total as f64 / load.frames.len() as f64;
        let delta = Options { patch_format: PatchFormat::Delta, ..Options::default() };
        let [sse, hybrid, delta] = [
            allocations(&load, SseWriter::new(Default::default())),
            allocations(&load, SocketWriter::new(Options::default())),
            allocations(&load, SocketWriter::new(delta)),
        ];
        println!("| {} | {} | {value:.1} | {sse:.2} | {hybrid:.2} | {delta:.2} |", load.name, load.frame_bytes());
        // A text that holds escapes has to be decoded, and a provider's delta is kept to be held against its snapshot: one more each.
        let bound = match load.name {
            "text" => Some(2.0),
            "text-escaped" | "text-provider" => Some(3.0),
            _ => None,
        };
        // Unoptimised builds read again what they have written as JSON.
        let bound = bound.map(|bound| if cfg!(debug_assertions) { bound + 1.0 } else { bound });
        if let Some(bound) = bound {
            for (surface, count) in [("sse", sse), ("socketio", hybrid), ("socketio-delta", delta)] {
                assert!(count <= bound, "{}: {count} allocations a frame on {surface}", load.name);
            }
        }
    }
}
