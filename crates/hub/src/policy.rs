//! Policies: which asks are decided without asking anybody. The decision is a record of the session's log before the ask itself, so
//! that what clients see can be built again from the log after the policy has changed.

use interline_model::{Answer, Ask, AskKind, CellName, Json, Text};
use regex::Regex;

/// What a policy says to a permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// People are asked.
    Ask,
    /// The tool may run.
    Allow,
    /// The tool may not run.
    Deny,
}

/// One rule.
#[derive(Clone, Debug)]
pub struct Policy {
    name: Text,
    /// Where it holds; nowhere in particular is everywhere.
    cells: Vec<CellName>,
    tool: Regex,
    argument: Option<(String, Regex)>,
    decision: Decision,
}

/// Rules, in the order in which they are tried.
#[derive(Clone, Debug, Default)]
pub struct Policies(Vec<Policy>);

/// What was decided about an ask, and by which rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// Whether the tool may run.
    pub allowed: bool,
    /// The rule's name.
    pub rule: Text,
}

impl Decided {
    /// What the upstream is told.
    pub(crate) fn answer(&self) -> Answer {
        if self.allowed {
            Answer::Allow { input: None, always: false }
        } else {
            Answer::Deny { message: Text::from(format!("denied by the policy {}", self.rule)) }
        }
    }
}

impl Policy {
    /// A rule of this name. `tool` is compared with the whole name of the tool; `argument` names a member of its input, at the top or by JSON
    /// pointer, and what the whole of it is compared with. A member that is no text is compared as JSON. An input that lacks it does not match.
    ///
    /// # Errors
    /// When an expression is not one.
    pub fn new(name: impl Into<Text>, tool: &str, argument: Option<(&str, &str)>, decision: Decision) -> Result<Self, Box<regex::Error>> {
        let argument = match argument {
            Some((member, pattern)) => Some((member.to_owned(), whole(pattern)?)),
            None => None,
        };
        Ok(Self { name: name.into(), cells: Vec::new(), tool: whole(tool)?, argument, decision })
    }

    /// The same rule in these cells only, if there are any.
    #[must_use]
    pub fn in_cells(self, cells: Vec<CellName>) -> Self {
        Self { cells, ..self }
    }

    fn matches(&self, ask: &Ask) -> bool {
        if !self.tool.is_match(&ask.tool_name) {
            return false;
        }
        let Some((member, pattern)) = &self.argument else { return true };
        let input = ask.input.to_value();
        let value = if member.starts_with('/') { input.pointer(member) } else { input.get(member) };
        match value {
            Some(serde_json::Value::String(text)) => pattern.is_match(text),
            Some(value) => pattern.is_match(&value.to_string()),
            None => false,
        }
    }
}

/// An expression that must match all of a text, over several lines, too.
fn whole(pattern: &str) -> Result<Regex, Box<regex::Error>> {
    // Judged by itself first: what is no expression must not become one by the brackets.
    Regex::new(pattern)?;
    Ok(Regex::new(&format!(r"\A(?s:{pattern})\z"))?)
}

impl Policies {
    /// These rules; the first that matches decides.
    #[must_use]
    pub fn new(rules: Vec<Policy>) -> Self {
        Self(rules)
    }

    /// Those of them that hold in a cell.
    #[must_use]
    pub fn of(&self, cell: &CellName) -> Self {
        Self(self.0.iter().filter(|rule| rule.cells.is_empty() || rule.cells.contains(cell)).cloned().collect())
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is decided about an ask; `None` if people are asked. Only permissions are decided by rules: nobody but people can answer a question.
    #[must_use]
    pub fn decide(&self, ask: &Ask) -> Option<Decided> {
        let rule = self.rule_for(ask)?;
        let allowed = match rule.decision {
            Decision::Ask => return None,
            Decision::Allow => true,
            Decision::Deny => false,
        };
        Some(Decided { allowed, rule: rule.name.clone() })
    }

    /// What is decided about an ask of a run without people (socketio.md §2.3): its tools are approved, unless a rule says otherwise, and its
    /// questions are not asked. A rule that wants people asked refuses: there are none.
    #[must_use]
    pub(crate) fn decide_without_people(&self, ask: &Ask) -> Decided {
        match self.rule_for(ask) {
            Some(rule) => Decided { allowed: rule.decision == Decision::Allow, rule: rule.name.clone() },
            None => Decided { allowed: ask.kind == AskKind::Permission, rule: Text::from_static("headless") },
        }
    }

    /// The rule that refuses this input for the ask's tool, if one does.
    pub(crate) fn refuses(&self, ask: &Ask, input: &Json) -> Option<Text> {
        let edited = Ask { input: input.clone(), ..ask.clone() };
        self.rule_for(&edited).filter(|rule| rule.decision == Decision::Deny).map(|rule| rule.name.clone())
    }

    fn rule_for(&self, ask: &Ask) -> Option<&Policy> {
        if ask.kind != AskKind::Permission {
            return None;
        }
        self.0.iter().find(|rule| rule.matches(ask))
    }
}

#[cfg(test)]
mod tests {
    use interline_model::AskId;

    use super::*;

    fn ask(tool: &'static str, input: &str) -> Ask {
        Ask {
            id: AskId::from("q"),
            kind: AskKind::Permission,
            call: None,
            tool_name: Text::from_static(tool),
            message: None,
            input: Json::parse(input).unwrap(),
            questions: Vec::new(),
            suggestions: None,
        }
    }

    fn rule(name: &'static str, tool: &str, argument: Option<(&str, &str)>, decision: Decision) -> Policy {
        Policy::new(name, tool, argument, decision).unwrap()
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let policies = Policies::new(vec![
            rule("never", "Bash", Some(("command", ".*rm .*")), Decision::Deny),
            rule("git", "Bash", Some(("command", "git (status|diff)")), Decision::Allow),
            rule("careful", "Bash", None, Decision::Ask),
            rule("reading", "Read|Glob", None, Decision::Allow),
            rule("deep", "Mcp", Some(("/a/0/b", "7")), Decision::Allow),
            rule("rest", ".*", None, Decision::Deny),
        ]);
        for (tool, input, expected) in [
            ("Bash", r#"{"command":"git status"}"#, Some((true, "git"))),
            // The whole of it, and not what it begins with.
            ("Bash", r#"{"command":"git status; curl x | sh"}"#, None),
            ("Bash", r#"{"command":"git status\n"}"#, None),
            ("Bash", r#"{"command":"cd /\nrm -rf x"}"#, Some((false, "never"))),
            ("Bash", "{}", None),
            ("Read", "{}", Some((true, "reading"))),
            ("Readme", "{}", Some((false, "rest"))),
            ("Mcp", r#"{"a":[{"b":7}]}"#, Some((true, "deep"))),
            ("Mcp", r#"{"a":[{"b":71}]}"#, Some((false, "rest"))),
        ] {
            let decided = policies.decide(&ask(tool, input)).map(|decided| (decided.allowed, decided.rule.to_string()));
            assert_eq!(decided, expected.map(|(allowed, rule)| (allowed, rule.to_owned())), "{tool} {input}");
        }
    }

    #[test]
    fn a_rule_holds_in_its_cells() {
        let narrow = rule("narrow", "Bash", None, Decision::Allow).in_cells(vec![CellName::from("a")]);
        let policies = Policies::new(vec![narrow]);
        assert!(policies.of(&CellName::from("a")).decide(&ask("Bash", "{}")).is_some());
        assert!(policies.of(&CellName::from("b")).is_empty());
    }

    #[test]
    fn questions_are_for_people_and_without_people_for_nobody() {
        let policies = Policies::new(vec![rule("all", ".*", None, Decision::Allow)]);
        let question = Ask { kind: AskKind::Question, ..ask("AskUserQuestion", "{}") };
        assert_eq!(policies.decide(&question), None);
        let none = Policies::default();
        assert!(!none.decide_without_people(&question).allowed);
        assert!(none.decide_without_people(&ask("Bash", "{}")).allowed);
        let careful = Policies::new(vec![rule("careful", "Bash", None, Decision::Ask)]);
        let decided = careful.decide_without_people(&ask("Bash", "{}"));
        assert_eq!((decided.allowed, &*decided.rule), (false, "careful"));
    }

    #[test]
    fn what_is_no_expression_is_an_error() {
        for pattern in ["(", "a)(b", "[", "(?P<"] {
            assert!(Policy::new("x", pattern, None, Decision::Allow).is_err(), "{pattern}");
        }
    }
}
