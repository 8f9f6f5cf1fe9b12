//! What a session's runs said they cost, for upstreams that keep no account of a session.

use interline_model::{Event, Json, Record, RunId, SessionId, Text, Usage, What, Writer, write_json_string};

use crate::extras;

/// Writes what each run of a session came to; its items are JSON objects.
#[derive(Debug, Default)]
pub(crate) struct CostWriter {
    run: Option<RunId>,
    usage: Usage,
    /// In billionths of a dollar: sums of decimal fractions stay what they are.
    nano_usd: Option<u128>,
}

impl Writer for CostWriter {
    type Item = Text;

    fn write(&mut self, _: &Record, events: &[Event], items: &mut Vec<Text>) {
        for event in events {
            match &event.what {
                What::RunStarted { run, .. } => self.run = Some(*run),
                What::RunEnded(end) => {
                    let Some(run) = self.run.take() else { continue };
                    let mut out = format!("{{\"run_id\":\"{run}\"");
                    if let Some(usage) = &end.usage {
                        let sum = &mut self.usage;
                        sum.input_tokens = sum.input_tokens.saturating_add(usage.input_tokens);
                        sum.output_tokens = sum.output_tokens.saturating_add(usage.output_tokens);
                        sum.cache_read_tokens = sum.cache_read_tokens.saturating_add(usage.cache_read_tokens);
                        sum.cache_write_tokens = sum.cache_write_tokens.saturating_add(usage.cache_write_tokens);
                        out.push_str(",\"usage\":{");
                        extras::usage(&mut out, usage);
                        out.push('}');
                    }
                    if let Some(nano) = end.cost_usd.as_ref().and_then(nano_usd) {
                        self.nano_usd = Some(self.nano_usd.unwrap_or_default().saturating_add(nano));
                        out.push_str(&format!(",\"total_cost_usd\":{}", dollars(nano)));
                    }
                    out.push('}');
                    items.push(out.into());
                }
                _ => {}
            }
        }
    }
}

impl CostWriter {
    /// The answer to `GET …/cost`; `runs` are the items.
    pub(crate) fn answer(&self, session: &SessionId, runs: &[Text]) -> String {
        let mut out = String::from("{\"session_id\":");
        write_json_string(&mut out, session.as_str());
        out.push_str(",\"source\":\"runs\",\"usage\":{");
        extras::usage(&mut out, &self.usage);
        out.push('}');
        if let Some(nano) = self.nano_usd {
            out.push_str(&format!(",\"total_cost_usd\":{}", dollars(nano)));
        }
        out.push_str(&format!(",\"runs\":[{}]}}", runs.join(",")));
        out
    }
}

/// A sane amount of dollars in billionths.
fn nano_usd(cost: &Json) -> Option<u128> {
    /// More than anybody pays for a run, and far from where sums would not fit.
    const MOST: f64 = 1e9;
    let dollars: f64 = cost.as_str().parse().ok()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within bounds, and not negative")]
    (0.0..=MOST).contains(&dollars).then(|| (dollars * 1e9).round() as u128)
}

fn dollars(nano: u128) -> String {
    const NANO: u128 = 1_000_000_000;
    let text = format!("{}.{:09}", nano / NANO, nano % NANO);
    let short = text.trim_end_matches('0');
    short.strip_suffix('.').unwrap_or(short).to_owned()
}

#[cfg(test)]
mod tests {
    use interline_model::{Body, Completion, Outcome, RunEnd};

    use super::*;

    #[test]
    fn runs_are_summed_to_the_last_digit() {
        let (mut writer, mut items) = (CostWriter::default(), Vec::new());
        for (n, cost) in [(1, "0.1"), (2, "0.2"), (3, "\"free\""), (4, "-1"), (5, "1e300"), (6, "12")] {
            let run = RunId::from_u128(n);
            let start = What::RunStarted { run, session: SessionId::from("s"), model: "m".into() };
            let end = RunEnd {
                usage: (n < 3).then_some(Usage { input_tokens: 1, output_tokens: 2, cache_read_tokens: 3, cache_write_tokens: u64::MAX }),
                cost_usd: Some(Json::written(cost)),
                ..RunEnd::synthesised(Outcome::Completed(Completion::EndTurn))
            };
            let events = [Event::root(start), Event::root(What::RunEnded(Box::new(end)))];
            writer.write(&Record { at: 0, body: Body::Frame(Text::new()) }, &events, &mut items);
        }
        let answer: serde_json::Value = serde_json::from_str(&writer.answer(&SessionId::from("s"), &items)).unwrap();
        assert_eq!(answer["total_cost_usd"].to_string(), "12.3");
        assert_eq!(answer["runs"][1]["total_cost_usd"].to_string(), "0.2");
        assert_eq!(answer["runs"][2].get("total_cost_usd"), None);
        assert_eq!((&answer["usage"]["input_tokens"], &answer["usage"]["cache_write_tokens"]), (&2.into(), &u64::MAX.into()));
        assert_eq!(answer["runs"].as_array().unwrap().len(), 6);
    }
}
