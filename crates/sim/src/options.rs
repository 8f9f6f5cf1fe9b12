//! What a simulator can be told: its voice, its pace, its credentials and its timers.
//!
//! Every pause and limit of the real servers is a value here, so that a test can run in a fraction of the real times.

use std::{fmt, path::PathBuf, str::FromStr, time::Duration};

/// How the simulated servers behave where their document and what they really do differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Voice {
    /// What the vendor's document promises.
    #[default]
    Documented,
    /// What the servers were seen to do, oddities included.
    Observed,
}

impl FromStr for Voice {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self, Error> {
        match word {
            "documented" => Ok(Self::Documented),
            "observed" => Ok(Self::Observed),
            _ => Err(Error::UnknownVoice(word.to_owned())),
        }
    }
}

impl fmt::Display for Voice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Documented => "documented",
            Self::Observed => "observed",
        })
    }
}

/// A factor on every pause the simulated agent makes: 1 is the real servers' rhythm, 0 is no waiting.
///
/// Deadlines (an ask's, a pong's, a token's) are not pauses and are not scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace(f64);

impl Pace {
    /// No waiting: frames come as fast as they can be written.
    pub const fn none() -> Self {
        Self(0.0)
    }

    /// The real servers' rhythm.
    pub const fn real() -> Self {
        Self(1.0)
    }

    /// `factor` times the real pauses. What is not a number from 0 to 1000 counts as 1.
    pub fn times(factor: f64) -> Self {
        if (0.0..=1000.0).contains(&factor) { Self(factor) } else { Self::real() }
    }

    /// True if there are no pauses at all.
    pub fn is_none(self) -> bool {
        self.0 == 0.0
    }

    pub(crate) fn of(self, pause: Duration) -> Duration {
        pause.mul_f64(self.0)
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self::real()
    }
}

/// The settings of a [`crate::Simulator`].
#[derive(Clone)]
pub struct Options {
    /// Which of the two voices both servers speak with.
    pub voice: Voice,
    /// A directory of transcripts (`NAME.jsonl`) for `play NAME`; without one, the bundled transcripts.
    pub transcripts: Option<PathBuf>,
    /// The factor on the simulated agent's pauses.
    pub pace: Pace,
    /// The only bearer the cloud plane accepts; with `None` any bearer is accepted, but one is still required.
    pub cloud_token: Option<String>,
    /// The bearer the local bridge demands; with `None` it demands nothing.
    pub bridge_token: Option<String>,
    /// How long a permission request waits before it is denied. 30 s on the real servers.
    pub permission_timeout: Duration,
    /// How long a form waits before it times out. 5 min on the real servers.
    pub form_timeout: Duration,
    /// How long a control message waits for a reader that does not fetch it, before it is discarded. 30 s on the real servers.
    pub control_retention: Duration,
    /// Largest body of an upload to the bridge. 50 MiB on the real bridge.
    pub attachment_limit: usize,
    /// How long a run is held back until the first socket is attached.
    ///
    /// `None` holds a run for 10 s, except in the observed voice at a pace other than none, which does not hold, as the
    /// real servers do not: there, a run that is over before anybody attached is lost (409).
    pub attach_wait: Option<Duration>,
    /// Time between the server's pings. 30 s on the real servers.
    pub ping_interval: Duration,
    /// How long a socket may go without a pong before it is cut without a close frame. 60 s on the real servers.
    pub pong_timeout: Duration,
    /// How long a write to a socket may take before the socket is cut. 10 s on the real servers.
    pub write_timeout: Duration,
    /// Lifetime of a session token. 30 min on the real servers.
    pub session_token_ttl: Duration,
    /// How many frames a cloud session (observed voice: the whole cloud) keeps for replay.
    pub retained_frames: usize,
    /// How long sessions are kept after their last run. 1 h on the real servers.
    pub session_retention: Duration,
}

impl Options {
    /// The same options with the limits for asks and control messages `factor` times as long: what is 30 s on the real servers is
    /// 30 ms at 0.001. What is not a number from 0 to 1000 counts as 1.
    #[must_use]
    pub fn with_limits(mut self, factor: f64) -> Self {
        let factor = if (0.0..=1000.0).contains(&factor) { factor } else { 1.0 };
        for limit in [&mut self.permission_timeout, &mut self.form_timeout, &mut self.control_retention] {
            *limit = limit.mul_f64(factor);
        }
        self
    }

    /// How long a run waits for its first socket.
    pub(crate) fn attach_hold(&self) -> Duration {
        match (self.attach_wait, self.voice) {
            (Some(wait), _) => wait,
            (None, Voice::Observed) if !self.pace.is_none() => Duration::ZERO,
            (None, _) => Duration::from_secs(10),
        }
    }

    pub(crate) fn observed(&self) -> bool {
        self.voice == Voice::Observed
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        // An empty secret would let an empty bearer in.
        for (name, token) in [("cloud_token", &self.cloud_token), ("bridge_token", &self.bridge_token)] {
            if token.as_deref().is_some_and(|token| token.trim().is_empty()) {
                return Err(Error::EmptyToken(name));
            }
        }
        match &self.transcripts {
            Some(dir) if !dir.is_dir() => Err(Error::NoTranscripts(dir.clone())),
            _ => Ok(()),
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            voice: Voice::default(),
            transcripts: None,
            pace: Pace::real(),
            cloud_token: None,
            bridge_token: None,
            permission_timeout: Duration::from_secs(30),
            form_timeout: Duration::from_secs(300),
            control_retention: Duration::from_secs(30),
            attachment_limit: 50 * 1024 * 1024,
            attach_wait: None,
            ping_interval: Duration::from_secs(30),
            pong_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(10),
            session_token_ttl: Duration::from_secs(30 * 60),
            retained_frames: 1 << 20,
            session_retention: Duration::from_secs(60 * 60),
        }
    }
}

/// Shows everything but the tokens.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("voice", &self.voice)
            .field("transcripts", &self.transcripts)
            .field("pace", &self.pace)
            .field("cloud_token", &self.cloud_token.is_some())
            .field("bridge_token", &self.bridge_token.is_some())
            .finish_non_exhaustive()
    }
}

/// Why a simulator cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The directory of transcripts cannot be read.
    #[error("transcripts: {} is not a directory", .0.display())]
    NoTranscripts(PathBuf),
    /// A token was given and is blank.
    #[error("{0} is empty: leave it out to accept everybody, or give it a value")]
    EmptyToken(&'static str),
    /// Not the name of a voice.
    #[error("unknown voice {0:?}: it is documented or observed")]
    UnknownVoice(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pace_scales_and_survives_nonsense() {
        let second = Duration::from_secs(1);
        assert_eq!(Pace::none().of(second), Duration::ZERO);
        assert_eq!(Pace::times(0.05).of(second), Duration::from_millis(50));
        for nonsense in [f64::NAN, -1.0, f64::INFINITY, 1e9] {
            assert_eq!(Pace::times(nonsense).of(second), second);
        }
    }

    #[test]
    fn limits_scale_together() {
        let options = Options::default().with_limits(0.01);
        let limits = [options.permission_timeout, options.form_timeout, options.control_retention];
        assert_eq!(limits, [300, 3000, 300].map(Duration::from_millis));
        assert_eq!(Options::default().with_limits(f64::NAN).form_timeout, Duration::from_secs(300));
    }

    #[test]
    fn blank_tokens_and_missing_directories_are_refused() {
        let blank = Options { bridge_token: Some(" ".into()), ..Options::default() };
        assert!(matches!(blank.check(), Err(Error::EmptyToken("bridge_token"))));
        let nowhere = Options { transcripts: Some("no/such/place".into()), ..Options::default() };
        assert!(matches!(nowhere.check(), Err(Error::NoTranscripts(_))));
        assert!(Options::default().check().is_ok());
    }

    #[test]
    fn tokens_are_never_shown() {
        let options = Options { cloud_token: Some("canary-1".into()), ..Options::default() };
        assert!(!format!("{options:?}").contains("canary"));
    }

    #[test]
    fn voices_have_names() {
        for voice in [Voice::Documented, Voice::Observed] {
            assert_eq!(voice.to_string().parse::<Voice>().unwrap(), voice);
        }
        assert!("loud".parse::<Voice>().is_err());
    }
}
