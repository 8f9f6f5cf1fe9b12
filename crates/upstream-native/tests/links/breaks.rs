//! Connections that break in the middle, against the simulator: every text once, in order.

use interline_hub::RunStatus;
use interline_model::FailureKind;
use interline_sim::{Voice, counted_text};
use interline_upstream_native::{Kind, LinkConfig, Mode};

use crate::world::{Line, World, end_of, fast, is_completed, sim, text_of, until};

/// What `fault drop N` and `fault gap N` say altogether.
fn counted(frames: u64) -> String {
    (0..frames).map(counted_text).collect()
}

#[tokio::test]
async fn a_dropped_socket_costs_nothing() {
    for voice in [Voice::Documented, Voice::Observed] {
        for (kind, mode) in [(Kind::Cloud, Mode::Chat), (Kind::Cloud, Mode::Agent), (Kind::Bridge, Mode::Chat)] {
            for cursor in [false, true] {
                let world = World::new(sim(voice), kind, mode, LinkConfig { cursor, ..fast() }).await;
                // The second run checks that the count over turns survived the break.
                let first = world.start("fault drop 7");
                for (run, after) in [(&first, 7), (&world.again_when_over(&first, "fault drop 0").await, 0)] {
                    let lines = run.lines().await;
                    let what = format!("{voice} {kind:?} {mode:?} cursor {cursor} drop {after}: {lines:?}");
                    assert_eq!(text_of(&lines), counted(after + 10), "{what}");
                    assert!(is_completed(&end_of(&lines)), "{what}");
                    assert!(lines.contains(&Line::Lost) && lines.contains(&Line::Back), "{what}");
                }
            }
        }
    }
}

#[tokio::test]
async fn what_was_sent_meanwhile_is_had_wherever_the_server_keeps_it() {
    // A documented cloud replays nothing to whoever names no number: only the cursor saves the gap there.
    for (voice, kind, cursor) in [
        (Voice::Observed, Kind::Cloud, false),
        (Voice::Observed, Kind::Cloud, true),
        (Voice::Documented, Kind::Cloud, true),
        (Voice::Observed, Kind::Bridge, false),
        (Voice::Documented, Kind::Bridge, false),
    ] {
        let world = World::new(sim(voice), kind, Mode::Chat, LinkConfig { cursor, ..fast() }).await;
        let lines = world.start("fault gap 6").lines().await;
        assert_eq!(text_of(&lines), counted(6 + 5 + 10), "{voice} {kind:?} {lines:?}");
        assert!(is_completed(&end_of(&lines)), "{voice} {kind:?}");
    }
}

/// Why the cursor is on unless somebody switches it off: then the gap is lost, and said to be.
#[tokio::test]
async fn without_the_cursor_a_server_that_only_streams_live_keeps_the_gap_to_itself() {
    let link = LinkConfig { cursor: false, ..fast() };
    let world = World::new(sim(Voice::Documented), Kind::Cloud, Mode::Chat, link).await;
    let lines = world.start("fault gap 6").lines().await;
    let expected: String = (0..6).chain(11..21).map(counted_text).collect();
    assert_eq!(text_of(&lines), expected);
    assert!(lines.contains(&Line::Missed), "clients are told: {lines:?}");
}

#[tokio::test]
async fn a_cursor_that_the_server_has_no_history_for_is_left_out() {
    // Today's servers number all sessions together: after enough of other sessions' frames, a small number is gone.
    let options = interline_sim::Options { retained_frames: 40, ..sim(Voice::Observed) };
    let world = World::new(options, Kind::Cloud, Mode::Agent, LinkConfig { cursor: true, ..fast() }).await;
    assert!(is_completed(&world.start("flood 200").outcome().await));
    let lines = world.start("fault gap 3").lines().await;
    assert_eq!(text_of(&lines), counted(3 + 5 + 10), "{lines:?}");
    assert!(is_completed(&end_of(&lines)));
}

#[tokio::test]
async fn a_token_that_expires_is_renewed_before_it_is_used_again() {
    let ttl = std::time::Duration::from_secs(60);
    let options = interline_sim::Options { session_token_ttl: ttl, ..sim(Voice::Observed) };
    let world = World::new(options, Kind::Cloud, Mode::Chat, LinkConfig { token_refresh_ms: 120_000, ..fast() }).await;
    let lines = world.start("fault drop 5").lines().await;
    assert_eq!(text_of(&lines), counted(15));
    assert_eq!(world.sim.stats().token_refreshes, 1);
}

#[tokio::test]
async fn a_token_that_is_refused_is_renewed() {
    let ttl = std::time::Duration::from_secs(1);
    let options = interline_sim::Options { session_token_ttl: ttl, ..sim(Voice::Observed) };
    let link = LinkConfig { backoff_first_ms: 2_200, backoff_max_ms: 2_200, ..fast() };
    let world = World::new(options, Kind::Cloud, Mode::Chat, link).await;
    let lines = world.start("fault drop 5").lines().await;
    assert_eq!(text_of(&lines), counted(15), "{lines:?}");
    assert!(world.sim.stats().token_refreshes >= 1);
}

#[tokio::test]
async fn a_server_that_goes_away_for_good_fails_the_run() {
    let world = World::new(sim(Voice::Documented), Kind::Cloud, Mode::Chat, fast()).await;
    let run = world.start("fault hang-after 4");
    run.says("frame 3").await;
    world.shut_down();
    let lines = run.lines().await;
    assert_eq!(text_of(&lines), counted(4));
    assert!(lines.contains(&Line::Lost) && !lines.contains(&Line::Back), "{lines:?}");
    assert_eq!(run.failure().await.0, FailureKind::MissingTerminalEvent);
}

#[tokio::test]
async fn a_stop_while_the_connection_is_lost_ends_the_run() {
    let link = LinkConfig { backoff_first_ms: 60_000, backoff_max_ms: 60_000, ..fast() };
    let world = World::new(sim(Voice::Documented), Kind::Cloud, Mode::Chat, link).await;
    let run = world.start("fault drop 4");
    run.says("frame 3").await;
    until("the connection is lost", || world.sim.stats().open_sockets == 0).await;
    run.stop();
    assert_eq!(run.status().await, RunStatus::Interrupted);
    // It still gets to the server, on a connection of its own.
    until("the cancel arrived", || world.sim.stats().control.iter().any(|frame| frame.text.contains("control_cancel_request"))).await;
}
