//! Environment variables that a client wants the agent's tools to have, and which of them no client may set.

use std::collections::BTreeMap;

use interline_model::Text;

/// Variables of one run at most.
const MOST_VARIABLES: usize = 64;
/// The longest value of one, in bytes.
const LONGEST_VALUE: usize = 8192;

/// Environment variables. Their values may be secret: `Debug` shows their names alone.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment(pub BTreeMap<Text, Text>);

/// Why variables are not taken. Never holds a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// There are too many.
    #[error("there may be at most {MOST_VARIABLES} environment variables")]
    TooMany,
    /// A name is none.
    #[error("the name of an environment variable has letters, digits and `_` only, and no digit first")]
    Name,
    /// No client may set it.
    #[error("{0} changes what the agent's programs are, or whom they talk to")]
    Harmful(Text),
    /// A value is too long, or holds NUL.
    #[error("{0} must be at most {LONGEST_VALUE} bytes without NUL")]
    Value(Text),
}

impl Environment {
    /// Variables from a client.
    ///
    /// # Errors
    /// When there are too many or too long ones, or some that no client may set.
    pub fn checked<N: Into<Text>, V: Into<Text>>(variables: impl IntoIterator<Item = (N, V)>) -> Result<Self, EnvironmentError> {
        let mut checked = BTreeMap::new();
        for (name, value) in variables {
            let (name, value) = (name.into(), value.into());
            if !is_name(&name) {
                return Err(EnvironmentError::Name);
            }
            if is_harmful(&name) {
                return Err(EnvironmentError::Harmful(name));
            }
            if value.len() > LONGEST_VALUE || value.contains('\0') {
                return Err(EnvironmentError::Value(name));
            }
            checked.insert(name, value);
            if checked.len() > MOST_VARIABLES {
                return Err(EnvironmentError::TooMany);
            }
        }
        Ok(Self(checked))
    }
}

impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

fn is_name(name: &str) -> bool {
    name.len() <= 128
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Variables by which whoever sets them has programs of his choice run, has others read other files, or has credentials sent elsewhere. That
/// is not a web client's to do (sse.md §2): nobody would be asked.
fn is_harmful(name: &str) -> bool {
    const NAMES: [&str; 24] = [
        "PATH",
        "HOME",
        "SHELL",
        "IFS",
        "ENV",
        "BASH_ENV",
        "PS4",
        "PROMPT_COMMAND",
        "SHELLOPTS",
        "BASHOPTS",
        "CDPATH",
        "PAGER",
        "EDITOR",
        "VISUAL",
        "BROWSER",
        "PWD",
        "USER",
        "TMPDIR",
        "USERPROFILE",
        "GOFLAGS",
        "GOPATH",
        "GOROOT",
        "GOPROXY",
        "GOTOOLCHAIN",
    ];
    const STARTS: [&str; 25] = [
        "LD_",
        "DYLD_",
        "NODE_",
        "NPM_",
        "PYTHON",
        "PIP_",
        "PERL",
        "RUBY",
        "GEM_",
        "BUNDLE_",
        "JAVA_",
        "JDK_",
        "_JAVA",
        "MAVEN_",
        "GRADLE_",
        "CARGO_",
        "RUSTC",
        "GO",
        "GIT_",
        "SSH_",
        "SSL_",
        "ANTHROPIC_",
        "CLAUDE",
        "OPENAI_",
        "XDG_",
    ];
    const ENDS: [&str; 4] = ["_PROXY", "_BASE_URL", "_ENDPOINT", "_OPTIONS"];
    let name = name.to_ascii_uppercase();
    NAMES.contains(&&*name) || STARTS.iter().any(|start| name.starts_with(start)) || ENDS.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(name: &str, value: &str) -> Result<Environment, EnvironmentError> {
        Environment::checked([(name, value)])
    }

    #[test]
    fn what_changes_programs_or_whom_they_talk_to_is_not_a_clients_to_set() {
        for name in [
            "PATH",
            "ld_preload",
            "LD_PRELOAD",
            "ANTHROPIC_BASE_URL",
            "HTTPS_PROXY",
            "https_proxy",
            "NODE_OPTIONS",
            "BASH_ENV",
            "GIT_SSH_COMMAND",
        ] {
            assert_eq!(checked(name, "x"), Err(EnvironmentError::Harmful(name.into())), "{name}");
        }
        for name in ["", "1A", "A=B", "A B", "\u{e9}"] {
            assert_eq!(checked(name, "x"), Err(EnvironmentError::Name), "{name}");
        }
        assert_eq!(checked("A", "a\0b"), Err(EnvironmentError::Value("A".into())));
        assert_eq!(checked("A", &"x".repeat(LONGEST_VALUE + 1)), Err(EnvironmentError::Value("A".into())));
        let many = (0..=MOST_VARIABLES).map(|n| (format!("A{n}"), "x"));
        assert_eq!(Environment::checked(many), Err(EnvironmentError::TooMany));
        let taken = checked("DEPLOY_TARGET", "canary").unwrap();
        assert_eq!(format!("{taken:?}"), r#"{"DEPLOY_TARGET"}"#);
    }
}
