//! Nanoseconds of CPU a frame, for each load and surface, beside what parsing the same bytes into a tree costs.
//!
//! `cargo bench --package interline-bench`

#![allow(missing_docs, reason = "criterion's macros write none")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use interline_bench::{Load, Path, loads};
use interline_model::{Text, Writer};
use interline_surface_socketio::{Options, PatchFormat, SocketWriter};
use interline_surface_sse::SseWriter;
use rustix::time::{ClockId, clock_gettime};

fn translate(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("translate");
    group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    for load in loads() {
        // One iteration is one frame.
        group.throughput(Throughput::Bytes(load.frame_bytes() as u64));
        let mut measure = |name: &str, run: &dyn Fn(&Load, u64) -> Duration| {
            group.bench_with_input(BenchmarkId::new(name, load.name), &load, |bencher, load| {
                bencher.iter_custom(|frames| run(load, frames));
            });
        };
        measure("value", &|load, frames| {
            timed(load, frames, || {
                |frame: &Text| {
                    let _ = black_box(serde_json::from_str::<serde_json::Value>(frame));
                }
            })
        });
        measure("sse", &|load, frames| path(load, frames, || SseWriter::new(Default::default())));
        measure("socketio", &|load, frames| path(load, frames, || SocketWriter::new(Options::default())));
        let delta = Options { patch_format: PatchFormat::Delta, ..Options::default() };
        measure("socketio-delta", &|load, frames| path(load, frames, || SocketWriter::new(delta.clone())));
    }
    group.finish();
}

fn path<W: Writer>(load: &Load, frames: u64, writer: impl Fn() -> W) -> Duration {
    timed(load, frames, || {
        let mut path = Path::new(writer());
        move |frame: &Text| path.frame(black_box(frame))
    })
}

/// The time that `frames` frames take, in runs of one load each; making and dropping a run is not counted.
fn timed<F: FnMut(&Text)>(load: &Load, mut frames: u64, begin: impl Fn() -> F) -> Duration {
    let mut spent = Duration::ZERO;
    while frames > 0 {
        let mut step = begin();
        let part = load.frames.get(..usize::try_from(frames).unwrap_or(usize::MAX)).unwrap_or(&load.frames);
        let from = cpu_time();
        for frame in part {
            step(frame);
        }
        spent += cpu_time().saturating_sub(from);
        frames -= part.len() as u64;
    }
    spent
}

/// What this thread has spent, whatever else the machine did meanwhile.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

criterion_group!(benches, translate);
criterion_main!(benches);
